"""Labels with the accepted findings of a review burnt in, as rasters of their own.

In the cells of an accepted finding, pixels get its class that have the finding's label and that the model
sees as another class: the pixels that were contradicted. All other pixels stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError, SegmenterError, failing
from segmenter.base.files import Closing, folder_aside, is_vector
from segmenter.extras.review.answers import AnsweredFinding, check_classes
from segmenter.extras.review.held_out import Judge, mapped_parts
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap, rasterised_classes
from segmenter.grid.scenes import Dataset, Scene
from segmenter.grid.windows import COLUMN, grid
from segmenter.mapping.outputs.codes import CODES, VALUES
from segmenter.raster import LabelIds, RasterInfo, RasterSpec, RasterWriter, raster_info

FOLDER = "labels_mended"
"""Folder in the run."""
_ROWS = 512
Change = tuple[Window, NDArray[np.bool_], int]
"""Rectangle, its pixels that change, and the id of their class."""


@dataclass(frozen=True)
class Mended:
    """Written labels: number of files, of findings that were burnt, and of pixels that changed."""

    files: int
    findings: int
    pixels: int


def write_mended(
    judges: Sequence[Judge], dataset: Dataset, found: Sequence[AnsweredFinding], folder: Path
) -> Mended:
    """Write the label of each labelled scene of a dataset, with accepted findings; see `label_paths`.

    Args:
        judges: runs with the scenes that they did not learn from.
        dataset: all scenes, whole.
        folder: appears when all labels are complete; in one that is there, files of the same names are
            replaced.

    Raises:
        DatasetError: a finding is of none of these scenes, or a label lies in the folder.
        RasterError, LabelError: an image or label cannot be read, or a file cannot be written.
    """
    check_classes(found, dataset.classes.names)
    labelled = {scene.name: scene for scene in dataset.scenes if scene.label is not None}
    for scene in labelled.values():
        if scene.label is not None and folder.absolute() in scene.label.absolute().parents:
            raise DatasetError(scene.label, f"is a label of the run, and lies in {folder}", remedy="move it")
    owners: dict[str, list[tuple[Judge, Scene]]] = {}
    for judge in judges:
        for part in judge.scenes:
            owners.setdefault(part.title, []).append((judge, part))
    for one in found:
        if one.scene not in owners or one.scene not in labelled:
            raise DatasetError(
                one.place, expected="a scene that the run held out", got=one.scene, remedy="is it its review?"
            )
    accepted, pixels = [one for one in found if one.accepted], 0
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        folder_aside(folder) as aside,
        Bar(total=len(labelled), unit="label", desc="labels") as bar,
    ):
        made, paths = aside / FOLDER, label_paths(list(labelled.values()), dataset.root)
        for name, scene in labelled.items():
            own = [one for one in accepted if one.scene == name]
            with _SceneLabel(scene, dataset.classes) as label:
                changes = _changes(own, owners[name], label) if own else []
                pixels += _write(label, changes, made / paths[name])
            bar.update()
        _publish(made, folder)
    return Mended(len(labelled), len(accepted), pixels)


def label_paths(scenes: Sequence[Scene], root: Path) -> dict[str, Path]:
    """Return where each scene's label is written, below the folder.

    With the names that the labels have below the dataset's root and the ending `.tif`, so that the recipe's
    pattern finds them; `SCENE.tif` where labels are polygons, masks, of several scenes or elsewhere.
    """
    own: dict[str, Path] = {}
    for scene in scenes:
        label = scene.label
        if label is not None and not scene.masks and not is_vector(label) and label.is_relative_to(root):
            below = label.relative_to(root)
            if not any(part.startswith(".") for part in below.parts):  # a cache, of placed labels
                own[scene.name] = below.with_suffix(".tif")
    if len(set(own.values())) == len(scenes):
        return own
    return {scene.name: Path(f"{scene.name}.tif") for scene in scenes}


class _SceneLabel(Closing):
    """Label of a whole scene.

    Attributes:
        info: header of its image.
    """

    def __init__(self, scene: Scene, classes: ClassMap) -> None:
        assert scene.label is not None, "it is labelled"
        self.info, self.classes = raster_info(scene.image), classes
        self._ids = LabelIds(scene.label, classes, self.info)

    def read(self, window: Window) -> NDArray[np.uint8]:
        """Return (H, W) class ids."""
        return self._ids.read(window)

    def close(self) -> None:
        self._ids.close()


def _changes(
    found: Sequence[AnsweredFinding], of: Sequence[tuple[Judge, Scene]], label: _SceneLabel
) -> list[Change]:
    """Return what changes in a scene, in the order of the findings.

    Args:
        of: runs that did not learn from the scene, each with the part of its blocks that it held out.
    """
    ids = {name: number for number, name in enumerate(label.classes.names)}
    for one in found:
        if not Window.of(label.info.size).contains(one.window):
            raise DatasetError(one.place, expected=f"a place within {label.info.size} pixels", got=one.window)
    changes: dict[int, Change] = {}
    parts = [(*_owner(one, of), one.window) for one in found]
    for number, map_HW in mapped_parts(parts):
        one = found[number]
        inside = np.zeros(map_HW.shape, np.bool_)
        for cell in one.cells:
            inside[cell.relative_to(one.window).slices()] = True
        own = ids[one.label]
        inside &= (label.read(one.window) == own) & (map_HW != own) & (map_HW != IGNORE)
        changes[number] = one.window, inside, ids[one.reference]
    return [changes[number] for number in sorted(changes)]


def _owner(one: AnsweredFinding, of: Sequence[tuple[Judge, Scene]]) -> tuple[Judge, Scene]:
    """Return the run that a finding comes from: whose held-out label has most of the finding's pixels."""
    if len(of) == 1:
        return of[0]

    def pixels(owner: tuple[Judge, Scene]) -> int:
        judge, scene = owner
        own = judge.dataset.classes.names.index(one.label)
        with _SceneLabel(scene, judge.dataset.classes) as label:
            return sum(int(np.count_nonzero(label.read(cell) == own)) for cell in one.cells)

    return max(of, key=pixels)


def _write(label: _SceneLabel, changes: Sequence[Change], path: Path) -> int:
    """Write the label of a scene; return the number of pixels that changed."""
    changed, size = 0, label.info.size
    values, spec = _encode_classes(label.info, label.classes)
    with RasterWriter(path, size, spec) as writer:
        for placed in grid(size, Size(_ROWS, COLUMN)):
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


def _encode_classes(info: RasterInfo, classes: ClassMap) -> tuple[NDArray[Any], RasterSpec]:
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
