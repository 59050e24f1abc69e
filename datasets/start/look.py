"""Look at a folder that nobody described: all settings of its section `dataset`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.base.errors import BandsError, DatasetError, SegmenterError, counted
from segmenter.base.finding import is_vector
from segmenter.base.threads import in_threads
from segmenter.config.datasets import FolderConfig
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import RasterInfo, crs_title, open_raster, quiet_gdal
from segmenter.raster.ground import alignment_errors, both_placed

from ..check import image_lines
from ..files import few
from ..folder import load_folder
from .choice import Choice
from .classes import class_choices
from .found import Found, Place, find_pairs, named_drivers, place_of
from .known import known_legend
from .legends import find_legend
from .published import published
from .sight import drivers_of
from .values import LabelValues, count_values, empty_share

_MOSTLY = 0.5
_LEAST_SCENES = 1


def look(data: Path, labels: Path | None = None) -> tuple[Choice, ...]:
    """Return the settings of section `dataset` that follow from a folder's files, without split.

    Only a split that folders hold is among them. Labels are read whole, images by their headers.

    Raises:
        DatasetError: there is no reading of the folder as a data set; the line says what was looked for.
        LabelError: values of labels are no classes.
    """
    quiet_gdal()
    place = place_of(data, labels)
    if (known := published(place)) is not None:
        return tuple(known)
    found, files = find_pairs(place)
    return tuple(_choices(place, found, _further(files.unreadable)))


def _further(unreadable: dict[str, str]) -> str:
    return f"; {counted(len(unreadable), 'file')} of those looked at cannot be read" if unreadable else ""


@dataclass(frozen=True)
class _Headers:
    """Headers of a dataset's scenes.

    Attributes:
        images, labels: header by relative path; without unreadable ones.
        measured: number of bands of images whose alpha band holds measurements; 0: none.
        faults: scenes that cannot be used, with the reason.
        elsewhere: scenes whose label lies on another grid, with both placed.
    """

    images: dict[str, RasterInfo]
    labels: dict[str, RasterInfo]
    measured: int
    faults: dict[str, str]
    elsewhere: dict[str, str]


def _choices(place: Place, found: Found, remark: str) -> Iterator[Choice]:
    root, vector = place.root, is_vector(found.labels)
    yield Choice("dataset.kind", "folder", "no published layout: any folder of images and labels")
    yield Choice("dataset.root", place.text, f"{counted(len(place.paths), 'file')} below it{remark}")
    drivers = named_drivers(found)
    base = _section(place, found, drivers)
    dataset = load_folder(base)
    headers = _headers(dataset, vector=vector)
    usable = [scene for scene in dataset.scenes if scene.name not in headers.faults]
    placed = _placed(found, headers, len(dataset.scenes), vector=vector)
    left = headers.faults | ({} if placed else headers.elsewhere)
    if len(left) >= len(dataset.scenes):
        raise DatasetError(
            f"{root}: none of {counted(len(left), 'image')} fits its label: {next(iter(left.values()))}"
        )
    yield from _file_choices(found, headers, drivers, dataset)
    yield from _label_choices(found, base, dataset, placed=placed)
    if vector:
        from .polygons import polygon_choices  # the extra `vectors`

        yield from polygon_choices(root, sorted({_relative(root, scene)[1] for scene in usable}))
    else:
        pairs = [_relative(root, scene) for scene in usable if scene.name not in left]
        shown = {label for _, label in pairs}
        values = count_values(root, {path: info for path, info in headers.labels.items() if path in shown})
        patterns = " ".join((*found.images, found.labels))
        yield from _value_choices(place, patterns, pairs, values)
    yield from _band_choices(headers)
    yield from _split_choices(found, left)


def _section(place: Place, found: Found, drivers: Sequence[str]) -> FolderConfig:
    """Return a section that finds the files; its class is none of theirs."""
    config: dict[str, Any] = {
        "kind": "folder",
        "root": place.text,
        "images": list(found.images),
        "labels": found.labels,
        "drivers": list(drivers),
        "classes": [{"name": "unknown", "code": 0}],
        "unlabelled": "skip",
    }
    return FolderConfig.model_validate(config)


def _relative(root: Path, scene: Scene) -> tuple[str, str]:
    assert scene.label is not None, "the loader pairs them"
    return scene.image.relative_to(root).as_posix(), scene.label.relative_to(root).as_posix()


# ------------------------------------------------------------------------------------------------- headers


def _headers(dataset: Dataset, *, vector: bool) -> _Headers:
    """Read the headers of all images and labels, with a bar."""
    root, infos = dataset.root, (dict[str, RasterInfo](), dict[str, RasterInfo]())
    faults, elsewhere, measured = dict[str, str](), dict[str, str](), 0
    whole: dict[str, RasterInfo | SegmenterError] = {}

    def read(scene: Scene) -> tuple[RasterInfo | SegmenterError, RasterInfo | SegmenterError | None, int]:
        image, label = _relative(root, scene)
        of_label = None if vector else whole.get(label) or _header(root, label)[0]
        if of_label is not None:
            whole[label] = of_label
        return (*_header(root, image)[:1], of_label, _header(root, image)[1])

    each = in_threads(read, dataset.scenes, description="headers", unit="scene")
    for scene, (image, label, bands) in zip(dataset.scenes, each, strict=True):
        paths, both = _relative(root, scene), (image, label)
        measured = max(measured, bands)
        wrong = next((str(header) for header in both if isinstance(header, SegmenterError)), None)
        if wrong is not None:
            faults[scene.name] = wrong
            continue
        for path, header, of in zip(paths, both, infos, strict=True):
            if isinstance(header, RasterInfo):
                of[path] = header
        if isinstance(image, RasterInfo) and isinstance(label, RasterInfo):
            for _, text in alignment_errors(image, label)[:1]:
                (elsewhere if both_placed(image, label) else faults)[scene.name] = text
    return _Headers(*infos, measured, faults, elsewhere)


def _header(root: Path, path: str) -> tuple[RasterInfo | SegmenterError, int]:
    """Return a file's header or fault, and its bands if one that is tagged as alpha holds measurements."""
    try:
        with open_raster(root / path, (1,), drivers=drivers_of(path)) as raster:
            info = raster.info
    except SegmenterError as error:
        return error, 0
    if info.alpha:
        try:
            open_raster(root / path, drivers=drivers_of(path)).close()
        except BandsError:
            return info, info.count
        except SegmenterError:
            pass  # found by the check
    return info, 0


def _placed(found: Found, headers: _Headers, scenes: int, *, vector: bool) -> bool:
    """Return whether label rasters are placed by georeference."""
    return not vector and (found.shared or len(headers.elsewhere) > _MOSTLY * scenes)


# ------------------------------------------------------------------------------------------------- choices


def _file_choices(
    found: Found, headers: _Headers, drivers: Sequence[str], dataset: Dataset
) -> Iterator[Choice]:
    infos = list(headers.images.values())
    lines = list(image_lines([(info, tuple(range(1, info.count + 1))) for info in infos]))
    what = f"{found.why_images}: {'; '.join(lines[:3])}"
    if len(lines) > 3:
        what += f"; {len(lines) - 3} more kinds"
    images = found.images[0] if len(found.images) == 1 else list(found.images)
    others = [text for text in found.others if "images like" in text]
    spelt = [path for path, why in dataset.unused if "ending" in why]
    if spelt:
        others.append(
            f"{counted(len(spelt), 'file')} whose ending is spelt otherwise: {few([p.name for p in spelt], 2)}"
        )
    yield Choice("dataset.images", images, what, "; ".join(others))
    if drivers:
        yield Choice("dataset.drivers", list(drivers), "images are JPEG 2000")


def _label_choices(found: Found, base: FolderConfig, dataset: Dataset, *, placed: bool) -> Iterator[Choice]:
    others = [text for text in found.others if "images like" not in text]
    yield Choice("dataset.labels", found.labels, found.why_labels, "; ".join(others))
    if placed and not found.shared:
        yield Choice("dataset.labels_by", "georeference", "labels lie on another grid than their images")
    skipped = [path for path, why in dataset.unused if "unlabelled" in why]
    if skipped:
        yield Choice(
            "dataset.unlabelled",
            "skip",
            f"{counted(len(skipped), 'image')} without a label: {few([p.name for p in skipped], 2)}",
        )


def _value_choices(
    place: Place, patterns: str, pairs: Sequence[tuple[str, str]], values: LabelValues
) -> Iterator[Choice]:
    colours = values.encoding == "colours"
    legend = find_legend(place.root, place.paths, values.pixels, colours=colours)
    if not legend.entries:
        legend = known_legend(patterns, values.pixels, colours=colours)
    places = lambda value: empty_share(place.root, pairs, value, colours=colours)  # noqa: E731
    yield from class_choices(values, legend, places)
    if values.void:
        yield Choice(
            "dataset.label_nodata",
            "ignore",
            f"{counted(values.void, 'pixel')} that label files mark as nodata or transparent",
            "nodata values may be a class: then class",
        )


def _band_choices(headers: _Headers) -> Iterator[Choice]:
    counts = Counter(info.count for info in headers.images.values())
    fewest, most = min(counts), counts.most_common(1)[0][0]
    if headers.measured:
        yield Choice(
            "dataset.bands",
            list(range(1, fewest + 1)),
            f"band {headers.measured} is tagged as alpha, but holds measurements and no mask",
        )
    elif len(counts) > 1 and fewest not in (0, most):
        shown = ", ".join(f"{n} of {count} bands" for count, n in counts.most_common())
        yield Choice("dataset.bands", list(range(1, fewest + 1)), f"images differ: {shown}")
    known = [info.metres_per_pixel for info in headers.images.values() if info.metres_per_pixel is not None]
    if known:
        low, high = float(np.min(known)), float(np.max(known))
        size = f"{low:.3g} m" if high < 1.01 * low else f"{low:.3g} to {high:.3g} m"
        crs = Counter(crs_title(i.crs) for i in headers.images.values() if i.crs is not None)
        yield Choice(
            "dataset.metres_per_pixel",
            "georeference",
            f"{size} a pixel, {' and '.join(name for name, _ in crs.most_common(3))}",
        )


def _split_choices(found: Found, left: dict[str, str]) -> Iterator[Choice]:
    if left:
        first = next(iter(left.values()))
        yield Choice("dataset.split.leave_out", sorted(left), f"{counted(len(left), 'scene')}: {first}")
    for split, globs in found.splits.items():
        count = "the folders hold this split"
        yield Choice(f"dataset.split.{split}", list(globs), count)
