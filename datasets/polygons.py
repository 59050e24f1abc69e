"""Labels that are polygons: rasterised into the cache, scene by scene, before anything reads a label."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.addresses import is_address
from segmenter.config.datasets import FolderConfig
from segmenter.errors import DatasetError, SegmenterError, counted, grouped, plain
from segmenter.invocation import invocation
from segmenter.scenes import Dataset, Scene
from segmenter.threads import in_threads
from segmenter.tiles.cache import cache_folder
from segmenter.vectors import INSTALL

from .files import few

if TYPE_CHECKING:
    from segmenter.vectors.label_files import LabelFiles
    from segmenter.vectors.rule import BurnRule


FOLDER = "labels"
"""Of the cache."""
MOST = 10
"""Faults that are printed unless all are asked for."""
_SKIPPED = "without a polygon (unlabelled: skip)"


class PolygonsError(DatasetError):
    """Polygons that cannot be labels.

    Attributes:
        lines: what is wrong, a line for each scene.
    """

    def __init__(self, faults: Sequence[str], scenes: int) -> None:
        self.lines = tuple(dict.fromkeys(faults))
        first, *others = grouped(self.lines)
        more = f"; {len(others)} more such lines by `{invocation('datasets')} check`" if others else ""
        super().__init__(f"{first} ({len(faults)} of {scenes} scenes{more})")

    def text(self, *, everything: bool = False) -> str:
        """For people: a line for each fault, or for the first of them."""
        shown = self.lines if everything else grouped(self.lines)
        lines = [
            f"label: {len(self.lines)}",
            *(f"  {line}" for line in shown[: None if everything else MOST]),
        ]
        if len(shown) + 1 > len(lines):
            lines.append(f"  … and {len(shown) + 1 - len(lines)} more; --all shows them")
        return "\n".join(map(plain, [*lines, f"not clean: {counted(len(self.lines), 'finding')}"]))


def with_rasterised_labels(dataset: Dataset, section: FolderConfig) -> Dataset:
    """The dataset with a raster in place of each label that is a file of polygons.

    Rasters of an earlier call are used again where image, polygons and rule are as they were.

    Raises:
        PolygonsError: polygons that cannot be labels, of whichever scenes.
        DatasetError: images on which no polygon lies, unless they are to be skipped; the extra is missing.
    """
    if is_address(str(dataset.root)):
        raise DatasetError(
            f"dataset.labels: polygons are read from files, got {dataset.root}; copy images and polygons "
            "here, or rasterise the polygons first"
        )
    files, rule = _libraries(dataset, section)
    shared = len({scene.label for scene in dataset.scenes}) == 1 and len(dataset.scenes) > 1

    def label(scene: Scene) -> Path | SegmenterError | None:
        assert scene.label is not None, "the loader pairs them"
        try:
            found: Path | None = files.label(scene.name, scene.image, scene.label, shared=shared)
            return found
        except SegmenterError as error:
            return error

    waiting = [s for s in dataset.scenes if s.label and not files.has(s.name, s.image, s.label)]
    # Processes that start together each begin elsewhere, and find what the others have made.
    first = os.getpid() % max(1, len(waiting))
    waiting = [*waiting[first:], *waiting[:first]]
    made = in_threads(label, waiting, description="rasterising", unit="label")
    found = {scene.name: one for scene, one in zip(waiting, made, strict=True)}
    files.tidy()
    found |= {scene.name: label(scene) for scene in dataset.scenes if scene.name not in found}
    rasterised = _with(dataset, found, skip=section.unlabelled == "skip")
    sources = sorted({scene.label for scene in dataset.scenes if scene.label})
    crs = files.crs_name(sources[0])
    note = (
        f"labels: polygons of {few(map(str, sources))} ({crs}), rasterised on the grid of each image, in "
        f"{files.folder}"
    )
    return replace(rasterised, classes=rule.classes, notes=(*dataset.notes, note))


def _libraries(dataset: Dataset, section: FolderConfig) -> tuple[LabelFiles, BurnRule]:
    try:
        from segmenter.vectors.label_files import LabelFiles
        from segmenter.vectors.rule import BurnRule
    except ModuleNotFoundError as error:
        raise DatasetError(f"dataset.labels: polygons need the package {error.name}: {INSTALL}") from None
    rule = BurnRule.of(section.vector, dataset.classes, section.ignore)
    return LabelFiles(cache_folder(dataset) / FOLDER, rule), rule


def _with(dataset: Dataset, found: Mapping[str, Path | SegmenterError | None], *, skip: bool) -> Dataset:
    """The dataset with the labels that were found, without scenes that have none."""
    total = len(dataset.scenes)
    if faults := [str(each) for each in found.values() if isinstance(each, SegmenterError)]:
        raise PolygonsError(faults, total)
    empty = [scene for scene in dataset.scenes if found[scene.name] is None]
    if empty and not skip:
        raise DatasetError(
            f"dataset.labels: no polygon lies on {len(empty)} of {total} images: "
            f"{few(str(scene.image) for scene in empty)}; add polygons, set dataset.vector.outside to the "
            "class that lies there, or leave such images out by dataset.unlabelled: skip"
        )
    scenes = tuple(
        replace(scene, label=label)
        for scene in dataset.scenes
        if isinstance(label := found[scene.name], Path)
    )
    if not any(scene.split == "train" for scene in scenes):
        raise DatasetError(f"dataset.labels: polygons lie on none of the {total} images that are to train")
    return replace(
        dataset, scenes=scenes, unused=(*dataset.unused, *((scene.image, _SKIPPED) for scene in empty))
    )
