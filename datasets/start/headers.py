"""Headers of the images and labels of scenes, with the contents of small files, each read once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from segmenter.base.errors import BandsError, RasterError, SegmenterError
from segmenter.base.threads import in_threads
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import KnownRasters, RasterInfo, open_raster, outlines
from segmenter.raster.ground import alignment_errors, both_placed
from segmenter.raster.placement import LabelPart, part_under

from ..contents import Contents
from .sight import drivers_of
from .values import Tally, tally_of

_SMALL, _MOST_TALLIES, _MOST_TALLIED = 1 << 20, 20_000, 512
"""Pixels of a label that is read with its header, such labels, and values of one that are kept."""

Damaged = dict[str, str]
"""Label that cannot be read → reason."""


@dataclass(frozen=True)
class SeenScene:
    """A scene by the headers of its files.

    Attributes:
        paths: relative paths of image and label.
        image, label: their headers; None if one of them cannot be read, or if labels are polygons.
        measured: number of an alpha band that holds measurements; 0: none.
        fault: reason why the scene cannot be used; empty: it can.
        elsewhere: True if the reason is only that the label lies on another grid, with both placed.
    """

    scene: Scene
    paths: tuple[str, str]
    image: RasterInfo | None = None
    label: RasterInfo | None = None
    measured: int = 0
    fault: str = ""
    elsewhere: bool = False


def headers(
    dataset: Dataset, contents: Contents, tallies: dict[str, Tally] | None, *, vector: bool, shared: bool
) -> list[SeenScene]:
    """Read the headers of all images and labels, with a bar, and small ones whole, once each.

    Args:
        tallies: is filled with the values of labels; None: they are polygons, or masks.
        shared: one label is for all images, also for those that it does not reach.
    """
    header = cache(partial(_header, dataset.root, None))  # one label may serve all
    of_image = partial(_header, dataset.root, contents)
    of_label = cache(partial(_label_header, dataset.root, contents.files, tallies))
    finest = _finest_band(dataset)

    def read(scene: Scene) -> SeenScene:
        assert scene.label is not None, "the loader pairs them"
        own = (scene.files or (scene.image,))[finest]
        files = (own, scene.label, *(path for _, path in scene.masks[1:]))
        image, label, *further = (path.relative_to(dataset.root).as_posix() for path in files)
        try:
            info, measured = header(image) if scene.files else of_image(image)
            other = None if vector else of_label(label)
            wrong = [] if other is None else alignment_errors(info, other)
            wrong += [each for mask in further for each in alignment_errors(info, header(mask)[0])]
        except SegmenterError as error:
            return SeenScene(scene, (image, label), fault=str(error))
        meet = both_placed if shared else _share_ground
        elsewhere = bool(wrong) and other is not None and meet(info, other)
        fault = wrong[0][1] if wrong else ""
        return SeenScene(scene, (image, label), info, other, measured, fault, elsewhere)

    return list(in_threads(read, dataset.scenes, description="headers", unit="scene"))


def _share_ground(image: RasterInfo, label: RasterInfo) -> bool:
    """Return whether both are georeferenced, and a label lies on its image."""
    if not both_placed(image, label):
        return False
    one, other = outlines([image, label])
    if one is None or other is None:
        return False
    return bool(((one.min(axis=0) < other.max(axis=0)) & (other.min(axis=0) < one.max(axis=0))).all())


def _finest_band(dataset: Dataset) -> int:
    """Return which file of a scene has the most pixels: the one on whose grid the others are brought."""
    for scene in dataset.scenes:
        with contextlib.suppress(SegmenterError):  # a damaged file, which is said later
            paths = (path.relative_to(dataset.root).as_posix() for path in scene.files)
            sizes = [_header(dataset.root, None, path)[0].size.pixels for path in paths]
            return sizes.index(max(sizes)) if sizes else 0
    return 0


def _label_header(root: Path, files: KnownRasters, tallies: dict[str, Tally] | None, path: str) -> RasterInfo:
    """Return a label's header; the values of a small one are counted on the way."""
    if tallies is None:
        return _header(root, None, path)[0]
    with files.label(root / path, drivers=drivers_of(path)) as label:
        if label.info.size.pixels <= _SMALL and len(tallies) < _MOST_TALLIES:
            tally = tally_of(label)
            if len(tally[0]) <= _MOST_TALLIED:
                tallies[path] = tally
        return label.info


def _header(root: Path, contents: Contents | None, path: str) -> tuple[RasterInfo, int]:
    """Return a file's header, and its alpha band if that holds measurements, else 0.

    Args:
        contents: takes in the content of a small image on the way; None: it is not read.
    """
    drivers = drivers_of(path)
    try:
        if contents is not None:
            return contents.image(root / path, drivers=drivers, most=_SMALL).info, 0
        with open_raster(root / path, drivers=drivers) as raster:
            return raster.info, 0
    except BandsError:
        with open_raster(root / path, (1,), drivers=drivers) as raster:
            info = raster.info
    return info, info.alpha[0] if info.alpha else 0


def unreadable(contents: Contents, seen: Sequence[SeenScene], bands: tuple[int, ...] | None) -> Damaged:
    """Return the scenes whose image cannot be read, with the reason; reads all but what was read before."""

    def fault(each: SeenScene) -> str:
        if each.scene.files:  # joined later
            return ""
        try:
            return contents.image(each.scene.image, bands).fault
        except SegmenterError as error:
            return str(error)

    faults = in_threads(fault, seen, description="looking at images", unit="scene")
    return {each.scene.name: why for each, why in zip(seen, faults, strict=True) if why}


def parts_with_images(seen: Sequence[SeenScene]) -> dict[str, list[LabelPart]]:
    """Return the parts of each label that images lie on; files without a place have none."""
    parts: dict[str, list[LabelPart]] = {}
    for each in seen:
        if each.image is not None and each.label is not None and both_placed(each.image, each.label):
            own = parts.setdefault(each.paths[1], [])
            with contextlib.suppress(
                RasterError
            ):  # an image where the label's CRS ends is named when it is placed
                own += filter(None, [part_under(each.image, each.label)])
    return parts
