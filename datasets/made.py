"""Files made for a dataset in its cache, before other code reads them like any other file.

Images with bands in several files, or that need a named driver, become one GeoTIFF, and so do masks of one
class each. Polygons, and label rasters of another grid, become labels on the grid of each image.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.addresses import is_address
from segmenter.base.errors import DatasetError, SegmenterError, counted, group_lines, plain
from segmenter.base.files import is_vector
from segmenter.base.invocation import invocation, needing
from segmenter.base.threads import in_threads
from segmenter.config.datasets import FolderConfig
from segmenter.config.layouts import one_label
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster.band_stack import StackedImages
from segmenter.raster.masks import MaskLabels
from segmenter.raster.opening import check_drivers, opens_by_itself
from segmenter.raster.placement import PlacedLabels
from segmenter.tiles.index import cache_folder

from .files import few

if TYPE_CHECKING:
    from segmenter.extras.vectors.label_files import LabelFiles

IMAGES, LABELS = "scenes", "labels"
"""Folders of the cache."""
MOST = 10
"""Faults that are printed unless all are asked for."""
SKIPPED = "without a label on it (unlabelled: skip)"
_WORKERS = 4
"""Scenes whose bands are read at once: each takes the memory of a strip as wide as the scene."""

Made = Mapping[str, Path | SegmenterError | None]
"""Scene → the file made, or the error; None: its sources give none."""


class MadeFilesError(DatasetError):
    """Labels or images cannot be made from files.

    Attributes:
        faults: scene → its fault.
        scenes: number of all scenes.
        lines: the different faults.
    """

    def __init__(self, faults: Mapping[str, str], scenes: int, what: str) -> None:
        self.faults, self.scenes, self._what = faults, scenes, what
        self.lines = tuple(dict.fromkeys(faults.values()))
        first, *others = group_lines(self.lines)
        more = f"; {len(others)} more by `{invocation('check')}`" if others else ""
        super().__init__(f"{first} ({len(faults)} of {scenes} scenes{more})")

    def to_dict(self) -> dict[str, Any]:
        """Return the faults for JSON, as those of a `CheckReport`."""
        lines = [{"kind": self._what, "scene": None, "text": line, "pixels": 0} for line in self.lines]
        return {"clean": False, "findings": lines}

    def text(self, *, everything: bool = False) -> str:
        """Return a line for each fault, or only for the first ones."""
        faults = self.lines if everything else group_lines(self.lines)
        lines = [
            f"{self._what}: {len(self.lines)}",
            *(f"  {line}" for line in faults[: None if everything else MOST]),
        ]
        if len(faults) + 1 > len(lines):
            lines.append(f"  … and {len(faults) + 1 - len(lines)} more; --all shows them")
        return "\n".join(map(plain, [*lines, f"not clean: {counted(len(self.lines), 'finding')}"]))


def with_made_files(dataset: Dataset, section: FolderConfig) -> Dataset:
    """Return the dataset with made files in place of those that cannot be used directly.

    Files of an earlier call are reused if their sources are unchanged.

    Raises:
        MadeFilesError: files cannot be used as labels or images.
        DatasetError: an image has no label on it, unless such images are skipped; or the extra is missing.
    """
    check_drivers(section.drivers, "dataset.drivers")
    dataset = _with_images(dataset, section)
    if section.encoding == "masks":
        dataset = _with_masks(dataset, section)
    if not (is_vector(section.labels) or section.labels_by == "georeference" or one_label(section)):
        labels = [scene.label for scene in dataset.scenes if section.drivers and scene.label is not None]
        if all(map(opens_by_itself, labels)):
            return dataset
    return _with_labels(dataset, section)


# ---------------------------------------------------------------------------------------------- images


def _with_images(dataset: Dataset, section: FolderConfig) -> Dataset:
    """Return the dataset with one raster for each scene of several files, or that needs a driver."""
    several = [
        scene
        for scene in dataset.scenes
        if len(scene.files) > 1 or (scene.files and not opens_by_itself(scene.image))
    ]
    if not several:
        return replace(dataset, scenes=tuple(replace(scene, files=()) for scene in dataset.scenes))
    grid = None if section.grid is None else section.images.index(section.grid)
    stacks = StackedImages(cache_folder(dataset) / IMAGES, grid, section.drivers)
    results = make_files(
        several,
        lambda scene: stacks.image(scene.name, scene.files),
        description="bands of scenes into one file",
        unit="scene",
    )
    stacks.tidy()
    refuse(results, len(dataset.scenes), "image")
    scenes = tuple(
        replace(scene, image=image)
        if isinstance(image := results.get(scene.name), Path)
        else replace(scene, files=())
        for scene in dataset.scenes
    )
    files = max(len(scene.files) for scene in several)
    note = f"images: of {files} files each, " if files > 1 else "images: "
    note += f"brought into one GeoTIFF for each of {len(several)} scenes, in {stacks.path}"
    return replace(dataset, scenes=scenes, notes=(*dataset.notes, note))


# ---------------------------------------------------------------------------------------------- labels


def _with_masks(dataset: Dataset, section: FolderConfig) -> Dataset:
    """Return the dataset with one label raster in place of the masks of each scene."""
    files = MaskLabels(cache_folder(dataset) / LABELS, dataset.classes, section.drivers)
    first = {scene.label: scene for scene in dataset.scenes}  # one file may be that of all

    def label(scene: Scene) -> Path:
        assert scene.label is not None, "the loader pairs them"
        return files.join(scene.name, scene.masks or ((0, scene.label),))

    found = make_files([*first.values()], label, description="masks into labels", unit="label")
    files.tidy()
    results = {scene.name: found[first[scene.label].name] for scene in dataset.scenes}
    refuse(results, len(dataset.scenes), "label")
    scenes = tuple(
        replace(scene, label=made)
        for scene in dataset.scenes
        if isinstance(made := results[scene.name], Path)
    )
    lacking = sum(len(section.masks) - len(scene.masks) for scene in scenes)
    where = f"{counted(len(first), 'scene')}, in {files.path}"
    note = f"labels: of masks, brought into one GeoTIFF each for {where}"
    note += f"; {counted(lacking, 'mask is', 'masks are')} not there: no such class" if lacking else ""
    return replace(dataset, scenes=scenes, classes=files.classes, notes=(*dataset.notes, note))


def _with_labels(dataset: Dataset, section: FolderConfig) -> Dataset:
    """Return the dataset with each label replaced by a raster on the grid of its image."""
    files = _label_files(dataset, section)
    shared = len({scene.label for scene in dataset.scenes}) == 1 and len(dataset.scenes) > 1

    def label(scene: Scene) -> Path | None:
        assert scene.label is not None, "the loader pairs them"
        return files.label(scene.name, scene.image, scene.label, shared=shared)

    results = make_files(dataset.scenes, label, description="labels onto images", unit="label")
    files.tidy()
    refuse(results, len(dataset.scenes), "label")
    made = _without_empty(dataset, section, results)
    pairs = [
        (s.image, s.label) for s in dataset.scenes if s.label is not None and results[s.name] is not None
    ]
    notes = (*dataset.notes, *files.notes(pairs))
    return replace(made, classes=files.classes, notes=notes)


def _label_files(dataset: Dataset, section: FolderConfig) -> LabelFiles | PlacedLabels:
    folder = cache_folder(dataset) / LABELS
    if not is_vector(section.labels):
        return PlacedLabels(folder, dataset.classes, section.drivers)
    if is_address(str(dataset.root)):
        raise DatasetError(
            "dataset.labels",
            "polygons are read from files",
            got=dataset.root,
            remedy="copy images and polygons here, or rasterise the polygons first",
        )
    with needing("vectors", "polygons", "dataset.labels", DatasetError):
        from segmenter.extras.vectors.label_files import LabelFiles
        from segmenter.extras.vectors.rule import BurnRule
    rule = BurnRule.of(section.vector, dataset.classes, section.ignore, section.uncoded)
    return LabelFiles(folder, rule)


def _without_empty(dataset: Dataset, section: FolderConfig, labels: Made) -> Dataset:
    """Return the dataset with the labels made, without scenes that have none."""
    total = len(dataset.scenes)
    empty = [scene for scene in dataset.scenes if labels[scene.name] is None]
    if empty and section.unlabelled != "skip":
        what, outside = "label", ""
        if is_vector(section.labels):
            what, outside = "polygon", " set dataset.vector.outside to the class that lies there,"
        raise DatasetError(
            "dataset.labels",
            f"no {what} lies on {len(empty)} of {total} images: {few(str(scene.image) for scene in empty)}",
            remedy=f"add {what}s,{outside} or leave such images out by dataset.unlabelled: skip",
        )
    scenes = tuple(
        replace(scene, label=label)
        for scene in dataset.scenes
        if isinstance(label := labels[scene.name], Path)
    )
    if not any(scene.split == "train" for scene in scenes):
        raise DatasetError("dataset.labels", f"none lies on any of the {total} images that are to train")
    return replace(
        dataset, scenes=scenes, unused=(*dataset.unused, *((scene.image, SKIPPED) for scene in empty))
    )


# ------------------------------------------------------------------------------------------------ both


def make_files(
    scenes: Sequence[Scene],
    make: Callable[[Scene], Path | None],
    *,
    description: str,
    unit: str,
) -> Made:
    """Return each scene's file, made in several threads if it is missing."""

    def tried(scene: Scene) -> Path | SegmenterError | None:
        try:
            return make(scene)
        except SegmenterError as error:
            return error

    # Processes that start together each begin elsewhere, and find what the others have made.
    first = os.getpid() % max(1, len(scenes))
    turned = [*scenes[first:], *scenes[:first]]
    workers = _WORKERS if unit == "scene" else None
    made = in_threads(tried, turned, description=description, unit=unit, workers=workers)
    return {scene.name: one for scene, one in zip(turned, made, strict=True)}


def refuse(results: Made, scenes: int, what: str) -> None:
    if faults := {name: str(each) for name, each in results.items() if isinstance(each, SegmenterError)}:
        raise MadeFilesError(faults, scenes, what)
