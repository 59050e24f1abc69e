"""Audit of a dataset: unreadable files, labels that do not match, unknown values, leaks between splits.

The loader checks pairs earlier: files without a partner never become a scene.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import BandsError, SegmenterError, counted, group_lines, plain
from segmenter.base.terminal import fit_table
from segmenter.base.threads import Spread, in_threads
from segmenter.evaluation.drawing import percent
from segmenter.grid.labels import IGNORE, UNKNOWN, Colour, class_pixels
from segmenter.grid.scenes import SPLITS, Dataset, Scene, Split
from segmenter.grid.sight import APART, SIGHTS, nearest
from segmenter.raster import RasterInfo, ask_for_bands, crs_title, raster_info
from segmenter.raster.ground import alignment_errors
from segmenter.raster.header import Names, names_of, order_of, other_names, used_names

from .contents import Contents, ImageContent, coarse_mask, in_turn, pieces
from .files import few
from .gsd import contradictions, gsd_line
from .leaks import AuditedScene, Comparison, cut_pictures, equal_scenes, find_leaks

_MOST_TIMES = 4
"""A label of more times its image's pixels is not read on: that it does not fit is all there is to say."""
_SHOWN = 10
"""Findings of one kind that are printed unless all are asked for."""


@dataclass(frozen=True)
class Finding:
    """One fault of a dataset.

    Attributes:
        kind: unreadable, bands, fill value, label, size, georeferencing, unknown value, image type, class, or
            leak.
        text: description of the fault; for an unknown value, the value.
        scene: name of the scene; None for a fault of the whole dataset.
        pixels: number of pixels with the unknown value.
    """

    kind: str
    text: str
    scene: Scene | None = None
    pixels: int = 0


@dataclass(frozen=True)
class CheckReport:
    """Findings of `check_dataset`.

    Attributes:
        pixels_PK: labelled pixels with data by split (in the order of `SPLITS`) and class.
        scenes_K: number of scenes with each class.
        ignored: number of pixels ignored by the class map or without image data.
        unlabelled: names of scenes without a single labelled pixel.
        remarks: warnings about images: possibly unintended properties.
        images: lines on bands, types, pixel sizes and CRS of the images.
        equal: names of scenes with equal pixels within one split.
        scale: line on the scenes' metres a pixel; empty without scenes.
        copies: line on how many images were compared for parts of one picture; empty: none was.
    """

    dataset: Dataset
    findings: tuple[Finding, ...]
    pixels_PK: NDArray[np.int64]
    scenes_K: NDArray[np.int64]
    ignored: int
    unlabelled: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    equal: tuple[tuple[str, ...], ...] = ()
    scale: str = ""
    copies: str = ""

    @property
    def pixels_K(self) -> NDArray[np.int64]:
        """Labelled pixels with data of each class, over all scenes."""
        total: NDArray[np.int64] = self.pixels_PK.sum(axis=0)
        return total

    @property
    def clean(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def shares(self) -> NDArray[np.float64]:
        """Return each class's share (K,) of the labelled pixels."""
        return self.pixels_K / max(1, int(self.pixels_K.sum()))

    def text(self, *, everything: bool = False, fits: bool = True) -> str:
        """Return the report as text.

        Args:
            everything: include every finding and file name, not only the first ones.
            fits: True if the recipe can train on these files; else the caller prints the reason next.
        """
        verdict = "clean" if self.clean else f"not clean: {counted(len(self.findings), 'finding')}"
        if self.clean and self.remarks:
            verdict = f"clean, with {counted(len(self.remarks), 'warning')}"
        verdict = verdict if fits or not self.clean else "the files are clean; the recipe does not fit:"
        parts = (self._head(everything), self._fault_lines(everything), self._table(), [verdict])
        return "\n".join(plain(line) for part in parts for line in part)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON, with every finding."""
        names = self.dataset.classes.names
        return {
            "dataset": self.dataset.name,
            "clean": self.clean,
            "scenes": {split: len(self.dataset.of(split)) for split in SPLITS},
            "findings": [
                {
                    "kind": finding.kind,
                    "scene": None if finding.scene is None else finding.scene.name,
                    "text": finding.text,
                    "pixels": finding.pixels,
                }
                for finding in self.findings
            ],
            "pixels": {
                split: dict(zip(names, pixels_K, strict=True))
                for split, pixels_K in zip(SPLITS, self.pixels_PK.tolist(), strict=True)
            },
            "ignored": self.ignored,
            "unlabelled": list(self.unlabelled),
            "remarks": list(self.remarks),
        }

    def _head(self, everything: bool) -> Iterator[str]:
        scenes = ", ".join(f"{len(self.dataset.of(split))} {split}" for split in SPLITS)
        where = plain(str(self.dataset.root))
        yield f"{self.dataset.name}: {counted(len(self.dataset.scenes), 'scene')} ({scenes}) in {where}"
        for split in SPLITS[1:]:
            groups = list(dict.fromkeys(scene.group for scene in self.dataset.of(split)))
            if groups:
                yield f"{split}: {_list(groups, everything)}"
        yield from (f"images: {line}" for line in self.images)
        yield from (f"scale: {line}" for line in filter(None, [self.scale]))
        yield from (f"copies: {line}" for line in filter(None, [self.copies]))
        yield from self.dataset.notes
        for alike in self.equal[: None if everything else 1]:
            more = "" if everything or len(self.equal) == 1 else f"; {len(self.equal) - 1} more such sets"
            yield f"same pixels within one split: {_list(alike, everything)}{more}"
        yield from self.left_out_lines(everything)
        if self.unlabelled:
            names = _list(self.unlabelled, everything)
            yield f"without a labelled pixel: {counted(len(self.unlabelled), 'scene')}: {names}"
        shown = len(self.remarks) if everything else _SHOWN
        yield from (f"warning: {remark}" for remark in self.remarks[:shown])
        if len(self.remarks) > shown:
            yield f"warning: {len(self.remarks) - shown} more of them; --all shows them"

    def left_out_lines(self, everything: bool = False) -> Iterator[str]:
        """Yield a line for each reason why files are left out."""
        for reason in dict.fromkeys(reason for _, reason in self.dataset.unused):
            paths = (str(path) for path, why in self.dataset.unused if why == reason)
            files = [path.removeprefix(f"{self.dataset.root}/") for path in paths]
            yield f"left out, {reason}: {counted(len(files), 'file')}: {_list(files, everything)}"

    def faults(self, everything: bool = False) -> dict[str, list[str]]:
        """Return the lines of each kind of finding; like ones of several files are one line."""
        faults: dict[str, list[str]] = {}
        for kind in dict.fromkeys(finding.kind for finding in self.findings):
            of_kind = [finding for finding in self.findings if finding.kind == kind]
            texts = [finding.text for finding in of_kind]
            lines = texts if everything else group_lines(texts)
            faults[kind] = _values(of_kind, everything) if kind == _VALUE else lines
        return faults

    def _fault_lines(self, everything: bool) -> Iterator[str]:
        for kind, lines in self.faults(everything).items():
            shown = len(lines) if everything else _SHOWN
            count = sum(finding.kind == kind for finding in self.findings)
            yield f"{kind}: {len(lines) if kind == _VALUE else count}"
            yield from (f"  {line}" for line in lines[:shown])
            if len(lines) > shown:
                yield f"  … and {len(lines) - shown} more; --all shows them"
            yield f"  to settle it: {_SETTLED[kind].format(leave_out=self.dataset.leave_out)}"

    def _table(self) -> Iterator[str]:
        yield from class_table(self.dataset.classes.names, self.pixels_PK, self.scenes_K)
        yield f"{self.ignored:,} pixels are ignored or without data"


_VALUE = "unknown value"
_SETTLED = {
    "unreadable": "mend the file, or name its scene in {leave_out}",
    "bands": "say which are data in dataset.bands, or name the scene in {leave_out}",
    "fill value": "declare it, since statistics and the model take it for a measurement: gdal_edit.py "
    "-a_nodata VALUE FILE for each file",
    "label": "dataset.labels says where labels are, a folder's dataset.encoding what they hold; or name the "
    "scene in {leave_out}",
    "size": "give the label its image's size, or name the scene in {leave_out}",
    "georeferencing": "mend the file, or name its scene in {leave_out}",
    _VALUE: "name the value in dataset.ignore or a folder's dataset.classes, or the scene in {leave_out}",
    "image type": "choose bands that all have in dataset.bands, or name the scene in {leave_out}",
    "class": "change a folder's dataset.classes, or hold out other scenes by dataset.split",
    "leak": "keep scenes together by dataset.split (a folder's group), or name one in {leave_out}",
}
"""Kind of finding → keys of a recipe that settle it."""


def _list(names: Sequence[str], everything: bool) -> str:
    return plain(", ".join(names) if everything else few(names))


def _values(findings: list[Finding], everything: bool) -> list[str]:
    """Return a line for each unknown value, the most frequent first, with its pixels and files."""
    pixels: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for finding in findings:
        pixels[finding.text] += finding.pixels
        assert finding.scene is not None, "a value is found in a label"
        files.setdefault(finding.text, []).append(str(finding.scene.label))
    return [
        f"{value}: {counted(count, 'pixel')} in {counted(len(files[value]), 'file')}: "
        f"{_list(files[value], everything)}"
        for value, count in pixels.most_common()
    ]


def check_dataset(
    dataset: Dataset,
    *,
    progress: bool = True,
    spread: Spread = in_threads,
    contents: Contents | None = None,
) -> CheckReport:
    """Read every file of a dataset and report all faults, without changing files or raising errors.

    A label whose size differs from its image is reported, and its values are still checked.

    Args:
        spread: runs the work over the scenes.
        contents: what was read before of its files; None: nothing.
    """
    known = contents or Contents()
    audits = list(
        spread(
            lambda scene: _audit(dataset, scene, known),
            dataset.scenes,
            description="checking",
            unit="scene",
            progress=progress,
        )
    )
    findings = [finding for audit in audits for finding in audit.findings]
    findings += _other_types(dataset, audits)
    findings += _other_order(audits)
    findings += _without_crs(audits)
    findings += _equal_colours(dataset)
    seen = [audit.scene_facts(dataset) for audit in audits]
    compared, equal = Comparison(), equal_scenes(seen)
    findings += (Finding("leak", leak.text(), leak.second) for leak in find_leaks(seen, compared))
    images = [(audit.scene, audit.info) for audit in audits if audit.info is not None]
    counts_SK = np.array([audit.pixels_K for audit in audits]).reshape(-1, len(dataset.classes))
    findings += _missing_classes(dataset, counts_SK)
    splits = np.array([scene.split for scene in dataset.scenes])
    return CheckReport(
        dataset=dataset,
        findings=tuple(findings),
        pixels_PK=np.array([counts_SK[splits == split].sum(axis=0) for split in SPLITS], np.int64),
        scenes_K=(counts_SK > 0).sum(axis=0),
        ignored=sum(audit.ignored for audit in audits),
        unlabelled=tuple(audit.scene.name for audit in audits if not audit.pixels_K.any()),
        remarks=(*cut_pictures(seen), *_unlike_labels(audits, equal), *_remarks(dataset, audits, images)),
        scale=gsd_line(dataset, images) if images else "",
        copies=compared.text() if compared.images else "",
        images=tuple(image_lines([(audit.info, audit.bands) for audit in audits if audit.info is not None])),
        equal=tuple(
            tuple(scene.name for scene in scenes)
            for scenes in equal
            if len({scene.split for scene in scenes}) == 1
        ),
    )


@dataclass
class _Audit:
    """Findings in one scene; `info` and `content` are None if it cannot be opened.

    Attributes:
        classes: digest of the class of each pixel; None if the label cannot be read.
    """

    scene: Scene
    pixels_K: NDArray[np.int64]
    ignored: int = 0
    remark: str | None = None
    info: RasterInfo | None = None
    bands: tuple[int, ...] = ()
    content: ImageContent | None = None
    classes: bytes | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: str, text: str, pixels: int = 0) -> None:
        self.findings.append(Finding(kind, text, self.scene, pixels))

    @contextlib.contextmanager
    def noting(self, kind: str) -> Iterator[None]:
        """Convert a user's error in the block to a finding."""
        try:
            yield
        except SegmenterError as error:
            self.add("bands" if isinstance(error, BandsError) else kind, str(error))

    def scene_facts(self, dataset: Dataset) -> AuditedScene:
        """Return the facts of a scene that are compared to detect leaks."""
        if (content := self.content) is None:
            return AuditedScene(self.scene, None, None)
        mask = functools.cache(lambda: coarse_mask(self.scene.image, dataset.bands))
        valid = mask if content.masked and not content.fault else None
        found = content.landmarks, content.bands, content.borders
        return AuditedScene(self.scene, content.digest, content.info, valid, *found)


def _audit(dataset: Dataset, scene: Scene, contents: Contents) -> _Audit:
    audit = _Audit(scene, np.zeros(len(dataset.classes), np.int64))
    with audit.noting("unreadable"):
        content = audit.content = contents.image(scene.image, dataset.bands)
        audit.info, audit.bands = content.info, content.bands
        if content.fault:
            audit.add("unreadable", content.fault)
        for value, share in content.fill.items():
            seen = f"{value:g} in all bands of {share:.0%} of the pixels, far from all others"
            audit.add("fill value", f"{scene.image}: {seen}, and not declared as nodata")
        audit.remark = content.remark if content.has_data else f"{scene.image}: has no pixel with data"
    if scene.label is None:
        audit.add("label", f"{scene.image}: expected a label for scene {scene.name}, there is none")
        return audit
    with audit.noting("unreadable"):
        label = raster_info(scene.label)
        wrong = alignment_errors(audit.info, label) if audit.info is not None else []
        for kind, text in wrong:
            audit.add(kind, text)
        if audit.info is None or label.size.pixels <= _MOST_TIMES * audit.info.size.pixels:
            whole = audit.content is None or audit.content.fault or not audit.content.masked
            _look_at_label(dataset, audit, contents, masked=not whole and not wrong)
    return audit


def _look_at_label(dataset: Dataset, audit: _Audit, contents: Contents, *, masked: bool) -> None:
    """Count classes and unknown values; `masked`: leave out pixels without image data."""
    scene, classes = audit.scene, dataset.classes
    assert scene.label is not None, "seen before"
    unknown: Counter[str] = Counter()
    digest = hashlib.blake2b(digest_size=16)
    with contextlib.ExitStack() as stack, audit.noting("label"):
        label = stack.enter_context(contents.files.label(scene.label, classes))
        stack.enter_context(in_turn(label.info.size))
        raster = stack.enter_context(contents.files.image(scene.image, dataset.bands)) if masked else None
        for window in pieces(label.info.size):
            raw, void = label.stored_values(window)
            ids = classes.decode_known(raw, str(scene.label), void)
            if (ids == UNKNOWN).any():
                unknown.update(classes.unknown(raw, str(scene.label), void))
            if raster is not None:
                ids[~raster.read(window)[1]] = IGNORE
            audit.pixels_K += class_pixels(ids, len(classes))
            audit.ignored += int((ids == IGNORE).sum())
            digest.update(ids.tobytes())
        audit.classes = digest.digest()
    for value, pixels in unknown.items():
        audit.add(_VALUE, value, pixels)


def _other_types(dataset: Dataset, audits: list[_Audit]) -> Iterator[Finding]:
    """Yield images whose type or number of bands differs from the majority."""
    images = [(audit, (len(audit.bands), audit.info.dtype)) for audit in audits if audit.info is not None]
    kinds = Counter(image for _, image in images)
    for audit, image in images:
        (bands, dtype), _ = kinds.most_common(1)[0]
        if image != (bands, dtype):
            expected = f"expected {bands} bands of {dtype} as most have"
            text = f"{audit.scene.image}: {expected}, got {image[0]} of {image[1]}"
            if image[0] != bands and dataset.bands is None:
                text += f"; {ask_for_bands(min(image[0], bands))}"
            yield Finding("image type", text, audit.scene)


def _other_order(audits: list[_Audit]) -> Iterator[Finding]:
    """Yield images whose named bands are in another order than in the majority."""
    wanted, images = _usual_names(audits)
    for audit, info in images:
        if order_of(wanted, names_of(info), audit.bands) is not None:
            got = ", ".join(map(str, used_names(info, audit.bands)))
            text = f"{info.path}: expected bands named {', '.join(map(str, wanted))} as most have, got {got}"
            yield Finding("bands", f"{text}; bring the bands of all files into one order", audit.scene)


def _usual_names(audits: list[_Audit]) -> tuple[Names, list[tuple[_Audit, RasterInfo]]]:
    """Return the band names of most images, and the images that could be opened."""
    images = [(audit, audit.info) for audit in audits if audit.info is not None]
    counts = Counter(filter(None, (used_names(info, audit.bands) for audit, info in images)))
    return counts.most_common(1)[0][0] if counts else (), images


def _other_names(audits: list[_Audit]) -> Iterator[str]:
    """Yield a line on each band that is named otherwise than in the majority of images, the others alike."""
    wanted, images = _usual_names(audits)
    for audit, info in images:
        for usual, own in other_names(wanted, info, audit.bands):
            yield f"{info.path}: a band is named {own}, in most images {usual}"


def _without_crs(audits: list[_Audit]) -> Iterator[Finding]:
    """Yield images without CRS, if other images have one."""
    crs_counts = Counter(
        crs_name(audit.info) for audit in audits if audit.info is not None and audit.info.crs
    )
    for audit in audits:
        if crs_counts and audit.info is not None and audit.info.crs is None:
            (name, _), count = crs_counts.most_common(1)[0], crs_counts.total()
            text = f"{audit.scene.image}: has no CRS, {count} other images have one ({name})"
            yield Finding("georeferencing", text, audit.scene)


def _remarks(
    dataset: Dataset, audits: list[_Audit], images: Sequence[tuple[Scene, RasterInfo]]
) -> Iterator[str]:
    yield from (audit.remark for audit in audits if audit.remark is not None)
    yield from (*contradictions(images), *_other_names(audits))
    yield from (*_one_class(dataset), *_alike_colours(dataset))


def _unlike_labels(audits: list[_Audit], equal: Sequence[Sequence[Scene]]) -> Iterator[str]:
    """Yield sets of scenes whose images are equal and whose labels are not."""
    of = {audit.scene: audit.classes for audit in audits}
    for scenes in equal:
        if len({of[scene] for scene in scenes} - {None}) > 1:
            names = few([scene.name for scene in scenes])
            yield f"{names}: images of the same pixels have labels that contradict each other"


def _one_class(dataset: Dataset) -> Iterator[str]:
    if len(dataset.classes) == 1:
        name = dataset.classes.names[0]
        yield (
            f"dataset.classes: {name} is the only class, so that every map shows it everywhere; name what is "
            "not of it as a class, too"
        )


def _equal_colours(dataset: Dataset) -> Iterator[Finding]:
    """Yield classes with equal colours, which a map could not distinguish."""
    names: dict[Colour, list[str]] = {}
    for each in dataset.classes.classes:
        names.setdefault(each.colour, []).append(each.name)
    for (r, g, b), alike in names.items():
        if len(alike) > 1:
            text = f"{few(alike)}: have one colour, #{r:02x}{g:02x}{b:02x}; give each its own"
            yield Finding("class", text)


def _alike_colours(dataset: Dataset) -> Iterator[str]:
    """Yield a line on the two classes that are hardest to tell apart, if some people see one colour."""
    classes = dataset.classes.classes
    if len({each.colour for each in classes}) < max(2, len(classes)):
        return  # equal colours are a finding
    colours = [each.colour for each in classes]
    (apart, i, j), sight = min((nearest(colours, sight), sight) for sight in SIGHTS)
    if apart < APART / 2:
        one, other = (f"{classes[at].name} #{bytes(colours[at]).hex()}" for at in (i, j))
        whom = "people" if sight == "normal" else f"people with {sight}"
        yield f"dataset.classes: {whom} hardly tell the colours of {one} and {other} apart in maps"


def _missing_classes(dataset: Dataset, counts_SK: NDArray[np.int64]) -> Iterator[Finding]:
    """Yield classes that no scene has, or no training scene."""
    trains = np.array([scene.split == "train" for scene in dataset.scenes], np.bool_)
    for i, name in enumerate(dataset.classes.names):
        if not counts_SK[:, i].any():
            yield Finding("class", f"{name}: no pixel in any scene")
        elif not counts_SK[trains, i].any():
            yield Finding("class", f"{name}: no pixel in any training scene")


# ------------------------------------------------------------------------------------------------- inventory


_KINDS_SHOWN = 8
_UNEVEN = 4.0
"""Ratio of a class's shares in two splits from which it is pointed out."""
_COMMON = 0.01
"""Share that a class must have in one of them for that: few pixels differ by chance."""


def image_lines(images: Sequence[tuple[RasterInfo, tuple[int, ...]]]) -> Iterator[str]:
    """Yield a line for each group of images with equal bands, type, pixel size, CRS and sizes."""
    sizes: dict[str, list[RasterInfo]] = {}
    for info, bands in images:
        sizes.setdefault(_kind(info, bands), []).append(info)
    kinds = sorted(sizes.items(), key=lambda item: -len(item[1]))
    for kind, infos in kinds[:_KINDS_SHOWN]:
        low, high = (pick(infos, key=lambda info: info.size.pixels).size for pick in (min, max))
        extent = f"{low} pixels" if low == high else f"{low} to {high} pixels"
        yield f"{len(infos)} of {kind}, {extent}"
    if len(kinds) > _KINDS_SHOWN:
        further = kinds[_KINDS_SHOWN:]
        yield f"{sum(len(infos) for _, infos in further)} of {len(further)} further kinds"


def _kind(info: RasterInfo, bands: tuple[int, ...]) -> str:
    whole = bands == tuple(range(1, info.count + 1))
    count = f"{info.count} band{'s' * (info.count > 1)}"
    used = count if whole else f"bands {', '.join(map(str, bands))} of {info.count}"
    metres = info.metres_per_pixel
    if metres is not None:
        place = f"{metres:.3g} m a pixel, {crs_name(info)}"
    elif info.crs is not None:
        place = crs_name(info)
    else:
        place = "no CRS" if info.georeferenced else "no georeference"
    return f"{used}, {info.dtype}, {place}"


def crs_name(info: RasterInfo) -> str:
    """Return a short name of a raster's CRS; empty if it has none."""
    return "" if info.crs is None else crs_title(info.crs)


def class_table(
    names: Sequence[str], pixels_PK: NDArray[np.int64], scenes_K: NDArray[np.int64]
) -> Iterator[str]:
    """Yield each class's pixels, share and scenes, by split, and notes on splits that differ widely."""
    used = _splits_with_pixels(pixels_PK)
    header, rows = class_rows(names, pixels_PK, scenes_K)
    yield from fit_table(header, rows)
    for i, name in enumerate(names):
        low, high = (pick(((s[i], split) for split, s in used), default=None) for pick in (min, max))
        if low and high and high[0] >= max(_COMMON, _UNEVEN * low[0]):
            parts = (f"{percent(float(share))} of {split}" for share, split in (low, high))
            yield f"uneven: {name} has {', '.join(parts)}"


def class_rows(
    names: Sequence[str], pixels_PK: NDArray[np.int64], scenes_K: NDArray[np.int64]
) -> tuple[list[str], list[list[str]]]:
    """Return titles and a row for each class: its pixels, share and scenes, and the share of each split."""
    used, total_K = _splits_with_pixels(pixels_PK), pixels_PK.sum(axis=0)
    rows = [
        [
            name,
            f"{pixels:,}",
            percent(float(share)),
            f"{scenes_K[i]:,}",
            *(percent(float(shares[i])) for _, shares in used),
        ]
        for i, (name, pixels, share) in enumerate(zip(names, total_K, _shares(total_K), strict=True))
    ]
    return ["class", "pixels", "share", "scenes", *(split for split, _ in used)], rows


def _splits_with_pixels(pixels_PK: NDArray[np.int64]) -> list[tuple[Split, NDArray[np.float64]]]:
    """Return the splits that have pixels, with the classes' shares; nothing of a single one."""
    used = [(split, _shares(pixels)) for split, pixels in zip(SPLITS, pixels_PK, strict=True) if pixels.any()]
    return used if len(used) > 1 else []


def _shares(pixels_K: NDArray[np.int64]) -> NDArray[np.float64]:
    return pixels_K / max(1, int(pixels_K.sum()))
