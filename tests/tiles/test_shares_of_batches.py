"""Parts of batches: workers that make only their own rows make, together, the batch that one would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.config.reading import recipe_from
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.sampling import plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import build_index
from segmenter.tiles.index_cache import cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.made_statistics import statistics_of

SIDE, BATCH = 32, 6
PLAIN = {"scale": 0.3, "rotation": 30, "brightness": 0.2, "blur": 0.5, "noise": 0.1}
LISTED = {**PLAIN, "transforms": [{"name": "GridDistortion", "p": 0.5}]}
PASTED = {**PLAIN, "mosaic": 0.5}


@pytest.fixture
def dataset(
    tmp_path: Path,
    make_geotiff: Callable[..., Path],
    make_classes: Callable[..., ClassMap],
    rng: np.random.Generator,
) -> Dataset:
    """Scenes read in place: without nodata, with a nodata value, and one that is decoded into a pack."""
    scenes = []
    for number, (height, width) in enumerate([(101, 203), (131, 167), (167, 150)]):
        label = rng.integers(0, 2, (height // 8 + 1, width // 8 + 1)).repeat(8, 0).repeat(8, 1)
        label = np.ascontiguousarray(label[:height, :width].astype(np.uint8))
        row, col = rng.integers(0, height - 8), rng.integers(0, width - 8)
        label[row : row + 6, col : col + 7] = 2
        image = rng.integers(1, 255, (height, width, 3)).astype(np.uint8)
        image[40:60, 50:90] = 0
        tiled = {"tiled": True, "blockxsize": 64, "blockysize": 64} if number < 2 else {}
        nodata = {"nodata": 0} if number else {}
        files = (
            make_geotiff(f"i{number}.tif", image, **tiled, **nodata),
            make_geotiff(f"l{number}.tif", label, tiled=True, blockxsize=64, blockysize=64),
        )
        scenes.append(Scene(f"s{number}", *files, f"s{number}", "train"))
    return Dataset("made", tmp_path, tuple(scenes), make_classes(3))


@pytest.mark.parametrize("augmentation", [PLAIN, LISTED, PASTED], ids=["plain", "listed", "mosaic"])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_shares_of_workers_are_the_whole_batch(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, augmentation: dict[str, Any], workers: int
) -> None:
    recipe = recipe_from(
        {
            "name": "t",
            "seed": 3,
            "dataset": {"kind": "potsdam", "root": "unused"},
            "tiles": {"size": SIDE},
            "augmentation": augmentation,
            "training": {"global_batch": BATCH},
        },
        "test",
    )
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, SIDE, cache_folder(dataset), progress=False)
    rows = plan(index.counts_NK, BATCH, recipe.sampling, recipe.seed, 0)
    form: Any = (recipe, index, store, statistics_of(), (BATCH // workers,) * workers)
    whole, read = BatchLoader(*form), []
    full = SceneStore.read
    monkeypatch.setattr(SceneStore, "read", lambda self, *a: (read.append(a), full(self, *a))[1])
    size = BATCH // workers
    steps = min(6, rows.steps)
    shares = [BatchLoader(*form, slice(w * size, (w + 1) * size)) for w in range(workers)]
    for step in range(steps):
        expected = whole.load(rows, 0, step)
        for worker, loader in enumerate(shares):
            into = tuple(np.empty((size, *a.shape[1:]), a.dtype) for a in expected) if worker else None
            before = len(read)
            found = loader.load(rows, 0, step, into)  # type: ignore[arg-type]
            if augmentation is PLAIN:
                assert len(read) - before == size, "images of others were read"
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b[worker * size : (worker + 1) * size])
    assert shares[0].drawn == whole.drawn
