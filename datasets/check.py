"""Audits a dataset: can every file be read, does every label fit its image, is every value known?

Pairing is checked before, by the loader: what cannot be paired never becomes a scene.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from datasets.files import few
from segmenter.errors import BandsError, SegmenterError, plain
from segmenter.labels import IGNORE, UNKNOWN, class_pixels
from segmenter.pairs import misfits, raw_label, row_bands
from segmenter.raster import ask_for_bands, open_raster, raster_info
from segmenter.scenes import SPLITS, Dataset, Scene
from segmenter.terminal import padded, terminal_width
from segmenter.threads import in_threads

_SHOWN = 10
"""Findings of one kind that are printed unless all are asked for."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: unreadable, bands, label, size, georeferencing, unknown value, image type, or class.
        text: what is wrong; for an unknown value the value.
        scene: None where it is wrong of the whole dataset.
        pixels: how many have the unknown value.
    """

    kind: str
    text: str
    scene: Scene | None = None
    pixels: int = 0


@dataclass(frozen=True)
class CheckReport:
    """What `check_dataset` found.

    Attributes:
        pixels_K: labelled pixels with data of each class, over all scenes.
        scenes_K: number of scenes that have each class.
        ignored: pixels that the class map ignores or the images have no data for.
        unlabelled: names of scenes without a single labelled pixel.
        remarks: on images, of what is not wrong but may not be meant.
    """

    dataset: Dataset
    findings: tuple[Finding, ...]
    pixels_K: NDArray[np.int64]
    scenes_K: NDArray[np.int64]
    ignored: int
    unlabelled: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def shares(self) -> NDArray[np.float64]:
        """(K,) share of each class in the labelled pixels."""
        return self.pixels_K / max(1, int(self.pixels_K.sum()))

    def text(self, *, everything: bool = False) -> str:
        """The report for people; `everything`: every finding and file name, not only the first."""
        return "\n".join([*self._head(everything), *self._found(everything), *self._table(), self._verdict()])

    def _head(self, everything: bool) -> Iterator[str]:
        scenes = ", ".join(f"{len(self.dataset.of(split))} {split}" for split in SPLITS)
        where = plain(str(self.dataset.root))
        yield f"{self.dataset.name}: {len(self.dataset.scenes)} scenes ({scenes}) in {where}"
        yield from self.dataset.notes
        for reason, count in Counter(reason for _, reason in self.dataset.unused).items():
            files = [path.name for path, why in self.dataset.unused if why == reason]
            yield f"left out, {reason}: {count} files: {_list(files, everything)}"
        if self.unlabelled:
            names = _list(self.unlabelled, everything)
            yield f"without a labelled pixel: {len(self.unlabelled)} scenes: {names}"
        shown = len(self.remarks) if everything else _SHOWN
        yield from (f"warning: {remark}" for remark in self.remarks[:shown])
        if len(self.remarks) > shown:
            yield f"warning: {len(self.remarks) - shown} more of them; --all shows them"

    def _found(self, everything: bool) -> Iterator[str]:
        for kind in dict.fromkeys(finding.kind for finding in self.findings):
            of_kind = [finding for finding in self.findings if finding.kind == kind]
            lines = _values(of_kind, everything) if kind == _VALUE else [finding.text for finding in of_kind]
            shown = len(lines) if everything else _SHOWN
            yield f"{kind}: {len(lines)}"
            yield from (f"  {line}" for line in lines[:shown])
            if len(lines) > shown:
                yield f"  … and {len(lines) - shown} more; --all shows them"

    def _table(self) -> Iterator[str]:
        width = max(map(terminal_width, ("class", *self.dataset.classes.names)))
        yield f"{'class':<{width}} {'pixels':>14} {'share':>9} {'scenes':>8}"
        rows = zip(self.dataset.classes.names, self.pixels_K, self.shares(), self.scenes_K, strict=True)
        for name, pixels, share, scenes in rows:
            yield f"{padded(name, width)} {pixels:>14,} {share:>9.4%} {scenes:>8,}"
        yield f"{self.ignored:,} pixels are ignored or without data"

    def _verdict(self) -> str:
        return "clean" if self.clean else f"not clean: {len(self.findings)} findings"


_VALUE = "unknown value"


def _list(names: Sequence[str], everything: bool) -> str:
    return plain(", ".join(names) if everything else few(names))


def _values(findings: list[Finding], everything: bool) -> list[str]:
    """A line for each unknown value, the most frequent first, with its pixels and files."""
    pixels: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for finding in findings:
        pixels[finding.text] += finding.pixels
        files.setdefault(finding.text, []).append(_label_name(finding))
    return [
        f"{value}: {count:,} pixels in {len(files[value])} files: {_list(files[value], everything)}"
        for value, count in pixels.most_common()
    ]


def _label_name(finding: Finding) -> str:
    assert finding.scene is not None, "a value is found in a label"
    return str(finding.scene.label)


def check_dataset(dataset: Dataset, *, workers: int | None = None, progress: bool = True) -> CheckReport:
    """Read every file of a dataset and report all that is wrong; nothing is changed and nothing is raised.

    A label of another size than its image is reported, and its values are still looked at.
    """
    audits = list(
        in_threads(
            lambda scene: _audit(dataset, scene),
            dataset.scenes,
            description="checking",
            unit="scene",
            workers=workers,
            progress=progress,
        )
    )
    findings = [finding for audit in audits for finding in audit.findings]
    findings += _other_types(dataset, audits)
    counts_SK = np.array([audit.pixels_K for audit in audits]).reshape(-1, len(dataset.classes))
    findings += _missing_classes(dataset, counts_SK)
    return CheckReport(
        dataset=dataset,
        findings=tuple(findings),
        pixels_K=counts_SK.sum(axis=0),
        scenes_K=(counts_SK > 0).sum(axis=0),
        ignored=sum(audit.ignored for audit in audits),
        unlabelled=tuple(audit.scene.name for audit in audits if not audit.pixels_K.any()),
        remarks=tuple(audit.remark for audit in audits if audit.remark is not None),
    )


@dataclass
class _Audit:
    """What was found in one scene; `image` is its number of bands and type, None if it cannot be opened."""

    scene: Scene
    pixels_K: NDArray[np.int64]
    ignored: int = 0
    image: tuple[int, str] | None = None
    remark: str | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: str, text: str, pixels: int = 0) -> None:
        self.findings.append(Finding(kind, text, self.scene, pixels))

    @contextlib.contextmanager
    def noting(self, kind: str) -> Iterator[None]:
        """A user's error becomes a finding."""
        try:
            yield
        except SegmenterError as error:
            self.add("bands" if isinstance(error, BandsError) else kind, str(error))


def _audit(dataset: Dataset, scene: Scene) -> _Audit:
    audit = _Audit(scene, np.zeros(len(dataset.classes), np.int64))
    masked = False
    with audit.noting("unreadable"), open_raster(scene.image, dataset.bands) as raster:
        audit.image = len(raster.bands), raster.info.dtype
        has_data = [raster.read(band)[1].any() for band in row_bands(raster.info.size)]
        audit.remark = raster.partial_remark if any(has_data) else f"{scene.image}: has no pixel with data"
        masked = raster.may_have_nodata
    if scene.label is None:
        audit.add("label", f"{scene.image}: expected a label for scene {scene.name}, there is none")
        return audit
    with audit.noting("unreadable"):
        image = raster_info(scene.image) if audit.image else None
        wrong = misfits(image, raster_info(scene.label)) if image else []
        for kind, text in wrong:
            audit.add(kind, text)
        _look_at_label(dataset, audit, masked=masked and not wrong)
    return audit


def _look_at_label(dataset: Dataset, audit: _Audit, *, masked: bool) -> None:
    """Count classes and unknown values; `masked`: leave out what the image has no data for."""
    scene, classes = audit.scene, dataset.classes
    assert scene.label is not None, "seen before"
    unknown: Counter[str] = Counter()
    with contextlib.ExitStack() as stack, audit.noting("label"):
        raster = stack.enter_context(open_raster(scene.image, dataset.bands)) if masked else None
        for band in row_bands(raster_info(scene.label).size):
            raw = raw_label(dataset, scene, band)
            ids = classes.decode_known(raw, str(scene.label))
            if (ids == UNKNOWN).any():
                unknown.update(classes.unknown(raw, str(scene.label)))
            if raster is not None:
                ids[~raster.read(band)[1]] = IGNORE
            audit.pixels_K += class_pixels(ids, len(classes))
            audit.ignored += int((ids == IGNORE).sum())
    for value, pixels in unknown.items():
        audit.add(_VALUE, value, pixels)


def _other_types(dataset: Dataset, audits: list[_Audit]) -> Iterator[Finding]:
    """Images of another type or number of bands than most."""
    kinds = Counter(audit.image for audit in audits if audit.image)
    for audit in audits:
        (bands, dtype), _ = kinds.most_common(1)[0] if kinds else ((0, ""), 0)
        if audit.image and audit.image != (bands, dtype):
            count, other = audit.image
            text = (
                f"{audit.scene.image}: expected {bands} bands of {dtype} as most have, got {count} of {other}"
            )
            if count != bands and dataset.bands is None:
                text += f"; {ask_for_bands(min(count, bands))}"
            yield Finding("image type", text, audit.scene)


def _missing_classes(dataset: Dataset, counts_SK: NDArray[np.int64]) -> Iterator[Finding]:
    """Classes that nobody has, or that training would never see."""
    trains = np.array([scene.split == "train" for scene in dataset.scenes], np.bool_)
    for i, name in enumerate(dataset.classes.names):
        if not counts_SK[:, i].any():
            yield Finding("class", f"{name}: no pixel in any scene")
        elif not counts_SK[trains, i].any():
            yield Finding("class", f"{name}: no pixel in any training scene")
