"""Look at a folder that nobody described: all settings of its section `dataset`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from segmenter.base.errors import BandsError, DatasetError, SegmenterError, counted
from segmenter.base.finding import is_vector
from segmenter.base.threads import in_threads
from segmenter.config.datasets import FolderConfig
from segmenter.config.reading import recipe_from
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import RasterInfo, crs_title, open_raster, quiet_gdal
from segmenter.raster.ground import alignment_errors, both_placed

from .. import load_dataset
from ..check import image_lines
from ..files import few
from ..folder import load_folder
from ..made import MadeFilesError
from .choice import Choice, nested
from .classes import class_choices
from .folder_facts import FolderFacts, Place, find_pairs, place_of
from .legends import find_legend
from .published import published
from .published_classes import published_legend
from .sight import drivers_of
from .split import listed_splits
from .values import count_values, empty_share

_MOST_KINDS = 3
"""Kinds of images that a reason names."""


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
    facts, files = find_pairs(place)
    remark = f"; {counted(len(files.unreadable), 'file')} cannot be read" if files.unreadable else ""
    kind = Choice("dataset.kind", "folder", "no published layout: any folder of images and labels")
    root = Choice("dataset.root", place.text, f"{counted(len(place.paths), 'file')} below it{remark}")
    return _loadable((kind, root, *_choices(place, facts)))


def _loadable(choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return the choices once they load; images that a label for all does not reach are left out."""

    def load(more: tuple[Choice, ...] = ()) -> Dataset:
        recipe = recipe_from({"name": "start", **nested((*choices, *more))}, "what was seen")
        return load_dataset(recipe)

    try:
        load()
    except MadeFilesError:
        raise
    except DatasetError:
        skip = Choice("dataset.unlabelled", "skip", "")
        beside = [path.name for path, _ in load((skip,)).unused]
        why = f"no label lies on {counted(len(beside), 'image')}: {few(beside, 2)}"
        return (*choices, replace(skip, reason=why))
    return choices


@dataclass(frozen=True)
class _Headers:
    """Headers of a dataset's scenes.

    Attributes:
        images, labels: header by relative path; without unreadable ones.
        measured: number of the alpha band that holds measurements; 0: none.
        faults: scenes that cannot be used, with the reason.
        elsewhere: scenes whose label lies on another grid, with both placed.
    """

    images: dict[str, RasterInfo]
    labels: dict[str, RasterInfo]
    measured: int
    faults: dict[str, str]
    elsewhere: dict[str, str]


def _choices(place: Place, facts: FolderFacts) -> Iterator[Choice]:
    root, vector = place.root, is_vector(facts.labels)
    drivers = list(dict.fromkeys(d for path in (*facts.images, facts.labels) for d in drivers_of(path)))
    dataset = _scenes(place, facts, drivers)
    headers = _headers(dataset, vector=vector)
    placed = not vector and (facts.shared or 2 * len(headers.elsewhere) > len(dataset.scenes))
    left = headers.faults | ({} if placed else headers.elsewhere)
    if len(left) == len(dataset.scenes):
        raise DatasetError(
            f"{root}: none of {counted(len(left), 'image')} can be used: {next(iter(left.values()))}"
        )
    pairs = [_relative(root, scene) for scene in dataset.scenes if scene.name not in left]
    yield from _file_choices(facts, headers, drivers, dataset)
    if placed and not facts.shared:
        yield Choice("dataset.labels_by", "georeference", "labels lie on another grid than their images")
    if vector:
        from .polygons import polygon_choices  # the extra `vectors`

        yield from polygon_choices(root, sorted({label for _, label in pairs}))
    else:
        yield from _value_choices(place, facts, pairs, headers)
    yield from _image_choices(headers)
    if left:
        why = f"{counted(len(left), 'scene')}: {next(iter(left.values()))}"
        yield Choice("dataset.split.leave_out", sorted(left), why)
    for split, globs in facts.splits.items():
        yield Choice(f"dataset.split.{split}", list(globs), "the folders hold this split")
    if not facts.splits:
        yield from listed_splits(place, [scene for scene in dataset.scenes if scene.name not in left])


def _scenes(place: Place, facts: FolderFacts, drivers: list[str]) -> Dataset:
    """Return the scenes that the patterns give; their classes are not known yet.

    Raises:
        DatasetError: two files of one scene, or labels without an image; the line says how files were taken.
    """
    files = {"images": list(facts.images), "labels": facts.labels, "drivers": drivers, "unlabelled": "skip"}
    data = {"kind": "folder", "root": place.text, **files, "classes": [{"name": "unknown", "code": 0}]}
    try:
        return load_folder(FolderConfig.model_validate(data))
    except DatasetError as error:
        taken = f"images are taken to be {facts.images[0]}, labels {facts.labels}"
        raise DatasetError(f"{error} ({taken})") from None


def _relative(root: Path, scene: Scene) -> tuple[str, str]:
    assert scene.label is not None, "the loader pairs them"
    return scene.image.relative_to(root).as_posix(), scene.label.relative_to(root).as_posix()


# ------------------------------------------------------------------------------------------------- headers


def _headers(dataset: Dataset, *, vector: bool) -> _Headers:
    """Read the headers of all images and labels, with a bar."""
    headers = _Headers({}, {}, 0, {}, {})
    measured = 0
    header = lru_cache(partial(_header, dataset.root))  # one label may serve all

    def read(scene: Scene) -> list[tuple[RasterInfo | str, int]]:
        return [header(path) for path in _relative(dataset.root, scene)[: 1 if vector else 2]]

    each = in_threads(read, dataset.scenes, description="headers", unit="scene")
    for scene, both in zip(dataset.scenes, each, strict=True):
        infos = [info for info, _ in both if isinstance(info, RasterInfo)]
        measured = max(measured, both[0][1])
        if len(infos) < len(both):
            headers.faults[scene.name] = next(info for info, _ in both if isinstance(info, str))
            continue
        for path, info, known in zip(
            _relative(dataset.root, scene), infos, (headers.images, headers.labels), strict=False
        ):
            known[path] = info
        if len(infos) == 2 and (wrong := alignment_errors(*infos)):
            (headers.elsewhere if both_placed(*infos) else headers.faults)[scene.name] = wrong[0][1]
    return _Headers(headers.images, headers.labels, measured, headers.faults, headers.elsewhere)


def _header(root: Path, path: str) -> tuple[RasterInfo | str, int]:
    """Return a file's header, or its fault, and the alpha band that holds measurements; 0 if none does."""
    try:
        with open_raster(root / path, (1,), drivers=drivers_of(path)) as raster:
            info = raster.info
        if info.alpha:
            open_raster(root / path, drivers=drivers_of(path)).close()
    except BandsError:
        return info, info.alpha[0]
    except SegmenterError as error:
        return str(error), 0
    return info, 0


# ------------------------------------------------------------------------------------------------- choices


def _file_choices(
    facts: FolderFacts, headers: _Headers, drivers: list[str], dataset: Dataset
) -> Iterator[Choice]:
    lines = list(image_lines([(info, tuple(range(1, info.count + 1))) for info in headers.images.values()]))
    more = f"; {len(lines) - _MOST_KINDS} more kinds" if len(lines) > _MOST_KINDS else ""
    others = {
        kind: [text for text in facts.others if ("images like" in text) == kind] for kind in (True, False)
    }
    if spelt := [path.name for path, why in dataset.unused if "ending" in why]:
        others[True].append(f"also {counted(len(spelt), 'file')} of another ending: {few(spelt, 2)}")
    images = list(facts.images) if len(facts.images) > 1 else facts.images[0]
    yield Choice("dataset.images", images, "; ".join(lines[:_MOST_KINDS]) + more, "; ".join(others[True]))
    if drivers:
        yield Choice("dataset.drivers", drivers, "images are JPEG 2000")
    why = f"{counted(len(dataset.scenes), 'label')} found by the names of the images"
    if facts.shared:
        why = f"one file for {counted(len(dataset.scenes), 'image')}, placed by georeference"
    yield Choice("dataset.labels", facts.labels, why, "; ".join(others[False]))
    if skipped := [path.name for path, why in dataset.unused if "unlabelled" in why]:
        why = f"{counted(len(skipped), 'image')} without a label: {few(skipped, 2)}"
        yield Choice("dataset.unlabelled", "skip", why)


def _value_choices(
    place: Place, facts: FolderFacts, pairs: Sequence[tuple[str, str]], headers: _Headers
) -> Iterator[Choice]:
    infos = {label: headers.labels[label] for _, label in pairs}
    values = count_values(place.root, infos)
    colours, tags = values.encoding == "colours", {info.nodata[0] for info in infos.values()} - {None}
    tag = tags.pop() if values.void and len(tags) == 1 and not colours else None
    if tag is not None and (tag == 0 or (0 < tag < 0xFFFF and len(values.pixels) < 2)):  # as a class may be
        values = replace(values, pixels=dict(sorted({int(tag): values.void, **values.pixels}.items())))
    legend = find_legend(place.root, place.paths, list(values.pixels), colours=colours)
    if not legend.entries:
        legend = published_legend(" ".join((*facts.images, facts.labels)), values.pixels, colours=colours)
    if not legend.entries and all(info.count > 2 for info in infos.values()):
        values = values.as_codes()
    chosen = list(class_choices(values, legend, partial(empty_share, place.root, pairs, colours=colours)))
    yield from chosen
    why = f"{counted(values.void, 'pixel')} that label files mark as nodata or transparent"
    if values.void and tag not in values.pixels:
        yield Choice("dataset.label_nodata", "ignore", why, "class, if that value is one")
    elif values.void and tag not in nested(chosen)["dataset"].get("ignore", ()):
        yield Choice(
            "dataset.label_nodata", "class", f"{why}, where images have data", "ignore, if unlabelled"
        )


def _image_choices(headers: _Headers) -> Iterator[Choice]:
    infos = list(headers.images.values())
    counts = Counter(info.count for info in infos)
    if headers.measured or len(counts) > 1:
        why = "images differ: " + ", ".join(f"{n} of {count} bands" for count, n in counts.most_common())
        if len(counts) == 1:
            why = f"band {headers.measured} is tagged as alpha, but holds measurements and no mask"
        yield Choice("dataset.bands", list(range(1, min(counts) + 1)), why)
    if known := sorted(info.metres_per_pixel for info in infos if info.metres_per_pixel is not None):
        size = f"{known[0]:.3g} m" if known[-1] < 1.01 * known[0] else f"{known[0]:.3g} to {known[-1]:.3g} m"
        names = Counter(crs_title(info.crs) for info in infos if info.crs is not None)
        why = f"{size} a pixel, {few([name for name, _ in names.most_common()], 3)}"
        yield Choice("dataset.metres_per_pixel", "georeference", why)
