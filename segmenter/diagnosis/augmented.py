"""Picture of augmented tiles: tiles unchanged and randomly augmented, beside their labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import Recipe
from segmenter.evaluation.drawing import save_figure
from segmenter.evaluation.figures import panels_figure
from segmenter.evaluation.layers import colour_ids, stretch_picture
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.probing import check_augmentation
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore, Tile

_GAP = 4
"""Pixels between two tiles of a column."""
_LEAST = 256
"""Pixels of a tile in the picture, at least: smaller ones are enlarged, each pixel to a square."""
_SIDE = 2400
"""Pixels of the picture's longer side, about."""


def tiles_to_show(index: TileIndex, count: int) -> list[int]:
    """Return the tiles with most pixels of a class, up to a half, for the rarest class first; each once."""
    rarest = [c for c in np.argsort(index.shares(), kind="stable") if index.counts_NK[:, c].any()]
    shown_KN = np.minimum(index.counts_NK.T[rarest], index.labelled_N // 2)
    ranked_KN = np.argsort(-shown_KN, axis=1, kind="stable")
    chosen = dict.fromkeys(int(tile) for place in ranked_KN.T for tile in place)
    return list(chosen)[:count]


def draw_augmented(recipe: Recipe, dataset: Dataset, path: Path, *, tiles: int = 4, draws: int = 3) -> None:
    """Write a PNG with a row for each tile: unchanged and `draws` times augmented, each beside its label.

    Raises:
        DatasetError: there are no training scenes.
    """
    if not dataset.of("train"):
        raise DatasetError(dataset.root, expected="scenes to train on, the split leaves none")
    check_augmentation(recipe.augmentation, dataset, recipe.tiles.size)
    index, statistics = build_index(dataset, "train", recipe.tiles), band_statistics(dataset)
    mean_C = statistics.mean_C.tolist()
    store = SceneStore(dataset, index.scenes, recipe.tiles.size, cache_folder(dataset), mean_C=mean_C)
    loader, classes = BatchLoader(recipe, index, store, statistics), dataset.classes
    rows = [loader.samples(tile, draws) for tile in tiles_to_show(index, tiles)]
    step = max(
        1, -(-(2 * (draws + 1) * index.tile.width) // _SIDE), -(-len(rows) * index.tile.height // _SIDE)
    )
    columns = [_pictures(row, classes, step) for row in rows]
    captions = ["as it lies", "its label"]
    captions += [text for i in range(1, draws + 1) for text in (f"draw {i}", f"label of draw {i}")]
    panels = {caption: _stack_pictures([row[i] for row in columns]) for i, caption in enumerate(captions)}
    hatched = any(not tile[1].all() or (tile[2] == IGNORE).any() for row in rows for tile in row)
    thinned = f", shown 1:{step}" if step > 1 else ""
    title = f"{len(rows)} training tiles of {index.tile} px{thinned}"
    save_figure(panels_figure(panels, classes, hatched, title, _SIDE), path)


def _pictures(row: Sequence[Tile], classes: ClassMap, step: int) -> list[NDArray[np.uint8]]:
    """Return image, label, image, label, …; one contrast stretch for all shows changed brightness."""
    every = slice(None, None, step)
    thin = [(image[every, every], valid[every, every], ids[every, every]) for image, valid, ids in row]
    images = stretch_picture(_join_tiles(thin, 0), _join_tiles(thin, 1))
    width = thin[0][2].shape[1]
    parts = [images[:, i * width : (i + 1) * width] for i in range(len(row))]
    return [
        panel
        for part, tile in zip(parts, thin, strict=True)
        for panel in (part, colour_ids(tile[2], classes))
    ]


def _join_tiles(tiles: Sequence[Sequence[NDArray[Any]]], part: int) -> NDArray[Any]:
    return np.concatenate([tile[part] for tile in tiles], axis=1)


def _stack_pictures(pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return the pictures as one column, separated by white."""
    gap = np.full((_GAP, *pictures[0].shape[1:]), 255, np.uint8)
    column = np.concatenate([part for picture in pictures for part in (picture, gap)][:-1])
    times = max(1, _LEAST // pictures[0].shape[0])
    return column.repeat(times, axis=0).repeat(times, axis=1)
