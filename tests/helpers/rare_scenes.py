"""Scenes with a class that a tile scarcely shows, and the loader of their batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.config.recipe import Recipe
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.sampling import Plan, plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.made_runs import recipe_of
from tests.helpers.made_statistics import statistics_of

SIDE, RARE = 32, 2
BATCH = 6
Make = Callable[..., Path]


def rare_scenes(make_geotiff: Make, make_png: Make, classes: ClassMap, rng: np.random.Generator) -> Dataset:
    """Scenes of odd sizes: striped, tiled with a hole, smaller than a tile, square.

    Their bands say each pixel's label + 1 and scene; the rare class covers 42 pixels of each, scarcely more
    than a tile must show.
    """
    scenes = []
    for number, (height, width) in enumerate([(101, 203), (131, 67), (23, 150), (96, 96)]):
        label = rng.integers(0, 2, (height // 8 + 1, width // 8 + 1)).repeat(8, 0).repeat(8, 1)
        label = label[:height, :width].astype(np.uint8)
        row, col = rng.integers(0, height - 8), rng.integers(0, width - 8)
        label[row : row + 6, col : col + 7] = RARE
        image = np.stack([label + 1, np.full_like(label, 40 + number), rng.integers(1, 255, label.shape)], -1)
        options: dict[str, Any] = {}
        if number == 1:
            image[40:60, 30:60] = 0
            options = {"tiled": True, "blockxsize": 64, "blockysize": 64, "nodata": 0}
        image_file = make_geotiff(f"i{number}.tif", image.astype(np.uint8), **options)
        label_file = make_png(f"l{number}.png", label)
        scenes.append(Scene(f"s{number}", image_file, label_file, f"s{number}", "train"))
    return Dataset("made", scenes[0].image.parent, tuple(scenes), classes)


def recipe(augmentation: dict[str, Any], **sections: Any) -> Recipe:
    """A recipe of `BATCH` tiles of `SIDE` pixels; brightness and contrast stay if they are not named."""
    data = {
        "seed": 3,
        "tiles": {"size": SIDE},
        "augmentation": {"brightness": 0, "contrast": 0, **augmentation},
        "training": {"global_batch": BATCH},
    }
    return recipe_of(**{**data, **sections})


def loader_of(dataset: Dataset, settings: Recipe) -> tuple[BatchLoader, TileIndex]:
    index = build_index(dataset, "train", settings.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, settings.tiles.size, cache_folder(dataset), progress=False)
    return BatchLoader(settings, index, store, statistics_of()), index


def plan_of(index: TileIndex, settings: Recipe, epoch: int = 0) -> Plan:
    return plan(index.counts_NK, BATCH, settings.sampling, settings.seed, epoch)
