"""Labels with the accepted findings of a review burnt in, as rasters of their own.

In the cells of an accepted finding, pixels get its class that have the finding's label and that the model
sees as another class: the pixels that were contradicted. All other pixels stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError, SegmenterError, failing
from segmenter.base.files import folder_aside
from segmenter.extras.review.answers import AnsweredFinding, check_classes
from segmenter.extras.review.held_out import Judge, mapped_parts
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap, rasterised_classes
from segmenter.grid.scenes import Scene
from segmenter.grid.windows import COLUMN, grid
from segmenter.mapping.outputs.codes import CODES, VALUES
from segmenter.raster import LabelIds, RasterInfo, RasterSpec, RasterWriter, raster_info

FOLDER = "labels_mended"
"""Folder in the run."""
_ROWS = 512
Ids = NDArray[np.uint8]
Change = tuple[Window, NDArray[np.bool_], int]
"""Rectangle, its pixels that change, and the id of their class."""


@dataclass(frozen=True)
class Mended:
    """Written labels: number of files, of findings that were burnt, and of pixels that changed."""

    files: int
    findings: int
    pixels: int


def write_mended(judges: Sequence[Judge], found: Sequence[AnsweredFinding], folder: Path) -> Mended:
    """Write the label of each labelled scene of the dataset, with accepted findings, as `NAME.tif`.

    Args:
        judges: runs with the scenes that they did not learn from.
        folder: appears when all labels are complete; in one that is there, files of the same names are
            replaced.

    Raises:
        DatasetError: a finding is of none of these scenes, or a label lies in the folder.
        RasterError, LabelError: an image or label cannot be read, or a file cannot be written.
    """
    dataset = judges[0].dataset
    ids = {name: number for number, name in enumerate(dataset.classes.names)}
    check_classes(list(found), ids)
    by_title: dict[str, list[Scene]] = {}
    for scene in dataset.scenes:
        if scene.label is not None:
            by_title.setdefault(scene.title, []).append(scene)
            if folder.absolute() in scene.label.absolute().parents:
                raise DatasetError(scene.label, f"is a label of the run, and lies in {folder}; move it")
    accepted = [one for one in found if one.accepted]
    owners = {scene.title: (judge, scene) for judge in judges for scene in judge.scenes}
    for one in found:
        if one.scene not in owners:
            raise DatasetError(
                one.place, expected="a scene that the run held out", got=one.scene, remedy="is it its review?"
            )
    pixels = 0
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        folder_aside(folder) as aside,
        Bar(total=len(by_title), unit="label", desc="labels") as bar,
    ):
        made = aside / FOLDER
        for title, scenes in by_title.items():
            own = [one for one in accepted if one.scene == title]
            changes = _changes(own, owners[title], dataset.classes, ids) if own else []
            pixels += _write(scenes, dataset.classes, changes, made / f"{title}.tif")
            bar.update()
        _publish(made, folder)
    return Mended(len(by_title), len(accepted), pixels)


def _changes(
    found: Sequence[AnsweredFinding], of: tuple[Judge, Scene], classes: ClassMap, ids: Mapping[str, int]
) -> list[Change]:
    """Return what changes in a scene, in the order of the findings."""
    judge, scene = of
    size = raster_info(scene.image).size
    for one in found:
        if not Window.of(size).contains(one.window):
            raise DatasetError(one.place, expected=f"a place within {size} pixels", got=one.window)
    changes: list[Change | None] = [None] * len(found)
    with contextlib.closing(_Labels([scene], classes)) as label:
        for number, map_HW in mapped_parts([(judge, scene, one.window) for one in found]):
            one = found[number]
            inside = np.zeros(map_HW.shape, np.bool_)
            for cell in one.cells:
                inside[cell.relative_to(one.window).slices()] = True
            own = ids[one.label]
            inside &= (label.read(one.window) == own) & (map_HW != own) & (map_HW != IGNORE)
            changes[number] = one.window, inside, ids[one.reference]
    return [change for change in changes if change is not None]


class _Labels:
    """Class ids of the labels of a scene, each of some of its pixels."""

    def __init__(self, scenes: Sequence[Scene], classes: ClassMap) -> None:
        self._parts = [
            LabelIds(scene.label, classes, raster_info(scene.image)) for scene in scenes if scene.label
        ]

    def read(self, window: Window) -> Ids:
        ids_HW = self._parts[0].read(window)
        for part in self._parts[1:]:
            ids_HW = np.where(ids_HW == IGNORE, part.read(window), ids_HW)
        return ids_HW

    def close(self) -> None:
        for part in self._parts:
            part.close()


def _write(scenes: Sequence[Scene], classes: ClassMap, changes: Sequence[Change], path: Path) -> int:
    """Write the label of a scene; return the number of pixels that changed."""
    info, changed = raster_info(scenes[0].image), 0
    values, spec = _encoded(info, classes)
    with (
        contextlib.closing(_Labels(scenes, classes)) as label,
        RasterWriter(path, info.size, spec) as writer,
    ):
        for placed in grid(info.size, Size(_ROWS, COLUMN)):
            window = placed.keep
            ids_HW = before = label.read(window)
            for place, inside, number in changes:
                shared = place.intersection(window)
                if shared.size.pixels:
                    ids_HW = ids_HW.copy()
                    part = inside[shared.relative_to(place).slices()]
                    ids_HW[shared.relative_to(window).slices()][part] = number
            changed += int(np.count_nonzero(ids_HW != before))
            writer.write(window, values[ids_HW])
    return changed


def _encoded(info: RasterInfo, classes: ClassMap) -> tuple[NDArray[Any], RasterSpec]:
    """Return the stored value of each class id, codes or colours as in the recipe, and the file's format."""
    where = info.georeference(Window.of(info.size))
    if classes.encoding == "colours":
        colours = {one.colour for one in classes.classes}
        grey = next(value for value in range(256) if (value,) * 3 not in colours)
        table = np.full((256, 3), grey, np.uint8)
        table[: len(classes)] = [one.colour for one in classes.classes]
        return table, RasterSpec(bands=3, nodata=grey, **where)
    (none,) = (int(code) for code in rasterised_classes(classes).ignored if isinstance(code, int))
    codes = classes.codes()
    dtype = "uint8" if max(*codes.tolist(), none) < 256 else "uint16"
    stored = np.full(256, none, dtype)
    stored[: len(classes)] = codes
    tags = {VALUES: CODES}
    for number, one in enumerate(classes.classes):
        tags |= {f"CLASS_{number}": one.name, f"CODE_{number}": str(one.code)}
    palette = None
    if dtype == "uint8":
        palette = np.zeros((256, 3), np.uint8)
        palette[codes] = [one.colour for one in classes.classes]
    return stored, RasterSpec(dtype=dtype, nodata=none, tags=tags, colour_table=palette, **where)


def _publish(made: Path, folder: Path) -> None:
    """Move complete labels to their folder, which appears at once if it was not there."""
    with failing(SegmenterError, folder, "cannot write there"):
        if not folder.exists():
            made.rename(folder)
            return
        for file in sorted(path for path in made.rglob("*") if path.is_file()):
            target = folder / file.relative_to(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
