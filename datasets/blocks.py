"""Blocks inside scenes as splits: each scene once in each part, with labels of that part's blocks alone.

The law of this module: **every labelled pixel is used in at most one part, and no pixel of a part lies within
the buffer of a block of a later part** (train, validation, test); those of neither are ignored. What is given
up lies in the training blocks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.base.sealed import digest
from segmenter.config.datasets import BlocksConfig, FolderSplit
from segmenter.grid.deals import Deal, Deals
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap, rasterised_classes
from segmenter.grid.scenes import SPLITS, Dataset, Scene, Split
from segmenter.grid.windows import row_strips
from segmenter.raster import LabelRaster, RasterInfo, raster_info
from segmenter.raster.ground import check_label
from segmenter.raster.made import MadeRasters, label_spec, stored_values, write_strips

from .files import parts_of, split_of
from .made import make_files, refuse

LABELS = "blocks"
"""Folder of the cache."""
_STRIP_PIXELS = 1 << 22
_POINTS = 256
"""Along a side of a scene, at which the area of each part is estimated."""
_VERSION = 1
"""Version of the rules; it is part of the names."""

Block = tuple[int, int]
"""Row and column of a block in its scene."""


@dataclass(frozen=True)
class BlockGrid:
    """Blocks of one scene: a grid of nearly square rectangles that cover it.

    Attributes:
        rows_R, cols_C: edges in pixels, first 0, last the scene's height or width.
        buffer: pixels around blocks of later parts that a part gives up.
    """

    rows_R: NDArray[np.int64]
    cols_C: NDArray[np.int64]
    buffer: int

    @classmethod
    def of(cls, size: Size, side: float, buffer: int) -> BlockGrid:
        """Return the grid whose blocks come nearest to a side in pixels."""
        rows, cols = (
            np.linspace(0, length, max(1, round(length / side)) + 1).round().astype(np.int64)
            for length in (size.height, size.width)
        )
        return cls(rows, cols, buffer)

    @property
    def blocks(self) -> list[Block]:
        """Row and column of each block."""
        return [(r, c) for r in range(len(self.rows_R) - 1) for c in range(len(self.cols_C) - 1)]

    def mask(
        self, parts: Mapping[Block, Split], part: Split, rows_H: NDArray[np.int64], cols_W: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return (H, W) True where pixels at these rising rows and columns belong to a part."""
        inside = np.zeros((len(rows_H), len(cols_W)), np.bool_)
        later = SPLITS[SPLITS.index(part) + 1 :]
        for block, own in parts.items():
            if own == part:
                inside[self._slices(block, 0, rows_H, cols_W)] = True
        for block, own in parts.items():
            if own in later:
                inside[self._slices(block, self.buffer, rows_H, cols_W)] = False
        return inside

    def _slices(
        self, block: Block, margin: int, rows_H: NDArray[np.int64], cols_W: NDArray[np.int64]
    ) -> tuple[slice, slice]:
        (r, c), edges = block, []
        for at, positions, i in ((self.rows_R, rows_H, r), (self.cols_C, cols_W, c)):
            edges.append(slice(*np.searchsorted(positions, (at[i] - margin, at[i + 1] + margin)).tolist()))
        return edges[0], edges[1]


def side_of(blocks: BlocksConfig, metres: float | None, where: str) -> float:
    """Return the side of a block in pixels of a scene.

    Args:
        metres: metres a pixel of the scene; None: unknown.
        where: the scene, for messages.

    Raises:
        DatasetError: the side is given in metres, and the scene's scale is unknown.
    """
    if blocks.unit == "pixels":
        return blocks.size
    if metres is None:
        raise DatasetError(
            "dataset.split.blocks",
            expected=f"pixels, since the metres a pixel of {where} are unknown",
            got="metres",
            remedy="set unit: pixels, or say the scale with dataset.metres_per_pixel",
        )
    return blocks.size / metres


def block_parts(grids: Mapping[str, BlockGrid], split: FolderSplit) -> dict[str, dict[Block, Split]]:
    """Return the part of each block of each scene, dealt by a hash of scene, row and column."""
    return _by_scene(grids, parts_of(_texts(grids), split), split.fold)


def _texts(grids: Mapping[str, BlockGrid]) -> list[str]:
    return [f"{name}/{r},{c}" for name, grid in grids.items() for r, c in grid.blocks]


def _by_scene(
    grids: Mapping[str, BlockGrid], parts: Mapping[str, str], fold: int
) -> dict[str, dict[Block, Split]]:
    return {
        name: {(r, c): split_of(parts[f"{name}/{r},{c}"], fold) for r, c in grid.blocks}
        for name, grid in grids.items()
    }


def with_blocks(dataset: Dataset, split: FolderSplit, deals: Deals = ()) -> Dataset:
    """Return the dataset with each scene once in each part, with a label of the part's blocks.

    Labels of an earlier call are reused if images, labels and the split are unchanged.

    Args:
        deals: earlier deals, whose blocks keep their parts.

    Raises:
        MadeFilesError: files cannot be used as labels.
        DatasetError: no labelled pixel is left to train or to validate on; or the scale is unknown.
    """
    assert split.blocks is not None
    from segmenter.tiles.index import cache_folder

    infos = {scene.name: raster_info(scene.image) for scene in dataset.scenes}
    grids = {
        scene.name: BlockGrid.of(
            infos[scene.name].size,
            side_of(
                split.blocks, dataset.scale_of(scene, infos[scene.name].metres_per_pixel), str(scene.image)
            ),
            split.blocks.buffer,
        )
        for scene in dataset.scenes
    }
    whole = parts_of(_texts(grids), split, deals)
    parts = _by_scene(grids, whole, split.fold)
    files = _BlockLabels(cache_folder(dataset) / LABELS, dataset.classes, grids, parts, infos)
    halves = {
        f"{scene.name}_{part}": (scene, replace(scene, name=f"{scene.name}_{part}", split=part, blocks=True))
        for scene in dataset.scenes
        for part in SPLITS
        if part in parts[scene.name].values()
    }
    made = make_files(
        [half for _, half in halves.values()],
        lambda half: files.label(halves[half.name][0], half.split),
        description="labels of blocks",
        unit="label",
    )
    files.tidy()
    refuse(made, len(halves), "label")
    scenes = tuple(
        replace(half, label=label)
        for name, (_, half) in halves.items()
        if isinstance(label := made[name], Path)
    )
    for part in SPLITS[:2]:
        if not any(scene.split == part for scene in scenes):
            raise DatasetError(
                "dataset.split.blocks",
                expected=f"labelled pixels in blocks of each part, {part} has none",
                remedy="lower size or buffer, or try another seed",
            )
    notes = (*dataset.notes, _note(grids, parts, split.blocks))
    return replace(dataset, scenes=scenes, classes=files.classes, notes=notes, deal=Deal(split.rule, whole))


class _BlockLabels(MadeRasters):
    """Makes labels of parts; safe to use from several threads, and by several processes.

    Attributes:
        classes: class map of the labels made.
    """

    def __init__(
        self,
        folder: Path,
        classes: ClassMap,
        grids: Mapping[str, BlockGrid],
        parts: Mapping[str, Mapping[Block, Split]],
        infos: Mapping[str, RasterInfo],
    ) -> None:
        buffers = sorted({grid.buffer for grid in grids.values()})
        super().__init__(folder, digest([_VERSION, classes.to_dict(), classes.nodata, buffers], 64))
        self._theirs, self.classes = classes, rasterised_classes(classes)
        self._grids, self._parts, self._infos = grids, parts, infos

    def label(self, scene: Scene, part: Split) -> Path | None:
        """Return the label of a part, made if necessary; None if it has no labelled pixel."""
        assert scene.label is not None, "the loader pairs them"
        grid, parts = self._grids[scene.name], self._parts[scene.name]
        rule = [grid.rows_R.tolist(), grid.cols_C.tolist(), [parts[block] for block in grid.blocks]]
        name, sources = f"{scene.name}_{part}-{digest([rule], 12)}", [scene.image, scene.label]
        return self.get(name, sources, lambda path: self._make(path, scene, part))

    def _make(self, path: Path, scene: Scene, part: Split) -> bool:
        info, grid, parts = self._infos[scene.name], self._grids[scene.name], self._parts[scene.name]
        assert scene.label is not None, "names() has seen it"
        check_label(scene.label, info)
        stored, labelled = stored_values(self.classes), False
        spec = label_spec(info, self.classes, {"PART": part})

        def strips(label: LabelRaster) -> Iterator[tuple[Window, NDArray[np.generic]]]:
            nonlocal labelled
            cols_W = np.arange(info.size.width)
            for strip in row_strips(info.size, _STRIP_PIXELS):
                ids = label.ids(strip)
                ids[~grid.mask(parts, part, np.arange(strip.row, strip.row_stop), cols_W)] = IGNORE
                labelled |= bool((ids != IGNORE).any())
                yield strip, stored[ids].astype(spec.dtype)

        with LabelRaster(scene.label, self._theirs) as label:
            return write_strips(path, info.size, spec, strips(label), lambda: labelled)


def _note(
    grids: Mapping[str, BlockGrid], parts: Mapping[str, Mapping[Block, Split]], blocks: BlocksConfig
) -> str:
    """Return a line on the blocks of each part, and the area that the buffer takes."""
    areas, area = dict.fromkeys(SPLITS, 0.0), 0.0
    for name, grid in grids.items():
        rows_H, cols_W = (
            np.arange(0, edges[-1], max(1, edges[-1] // _POINTS)) for edges in (grid.rows_R, grid.cols_C)
        )
        pixels = float(grid.rows_R[-1] * grid.cols_C[-1])
        area += pixels
        for part in SPLITS:
            areas[part] += pixels * float(grid.mask(parts[name], part, rows_H, cols_W).mean())
    counts = [part for each in parts.values() for part in each.values()]
    text = ", ".join(f"{counts.count(part)} {part} ({areas[part] / area:.0%} of the area)" for part in SPLITS)
    return (
        f"blocks of {blocks.size:g} {blocks.unit} in {len(grids)} scenes: {text}; "
        f"{1 - sum(areas.values()) / area:.0%} lies within {blocks.buffer} pixels of another part and counts "
        "nowhere"
    )
