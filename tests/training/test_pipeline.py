"""Batches: a pure function of seed, epoch and step, that hold what the plan promised."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from segmenter.grid.scenes import Dataset
from segmenter.tiles.batches import Batch
from tests.helpers.rare_scenes import SIDE, loader_of, plan_of, rare_scenes, recipe

MOVED = {"scale": 0.3, "rotation": 30}
LOSING = {"scale": 0.85, "rotation": 180}


@pytest.fixture
def dataset(make_geotiff: Any, make_png: Any, make_classes: Any, rng: Any) -> Dataset:
    return rare_scenes(make_geotiff, make_png, make_classes(4), rng)


def same(a: Batch, b: Batch) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_what_no_draw_shows_is_taken_as_it_lies(dataset: Dataset) -> None:
    """Tiles that may not move, and changes that nearly always lose the small patch at their border."""
    settings = recipe(LOSING, tiles={"size": SIDE, "jitter": False})
    loader, index = loader_of(dataset, settings)
    for epoch in range(4):
        rows = plan_of(index, settings, epoch)
        for step in range(rows.steps):
            _, _, label, _ = loader.load(rows, epoch, step)
            held = np.stack([[np.count_nonzero(one == c) >= 32 for c in range(3)] for one in label])
            assert held.any(axis=0).all()
    assert loader.drawn.replaced > 0


@pytest.mark.parametrize(("method", "jitter"), [("rare_class", True), ("foreground", False)])
def test_a_tile_drawn_for_a_class_shows_it(dataset: Dataset, method: str, jitter: bool) -> None:
    """In its own slot, after position and augmentation; without the wish, many would have lost it."""
    sampling = {"method": method, "per_replica": "off"}
    settings = recipe(LOSING, tiles={"size": SIDE, "jitter": jitter}, sampling=sampling)
    loader, index = loader_of(dataset, settings)
    lost = 0
    for epoch in range(4):
        rows = plan_of(index, settings, epoch)
        free = replace(rows, wanted_SB=None)
        for step in range(rows.steps):
            labels = loader.load(rows, epoch, step)[2], loader.load(free, epoch, step)[2]
            for slot in np.flatnonzero(rows.wanted_SB[step] >= 0):
                shown, unasked = (np.count_nonzero(x[slot] == rows.wanted_SB[step, slot]) for x in labels)
                assert shown >= settings.sampling.min_pixels
                lost += unasked < settings.sampling.min_pixels
    assert lost > 5
    assert loader.drawn.redrawn > 0


def test_a_batch_follows_from_seed_epoch_and_step(dataset: Dataset) -> None:
    settings = recipe(MOVED)
    loader, index = loader_of(dataset, settings)
    again, _ = loader_of(dataset, settings)
    rows = plan_of(index, settings)
    serial = [loader.load(rows, 0, step) for step in range(rows.steps)]
    with ThreadPoolExecutor(4) as pool:  # any order, any thread
        backwards = list(pool.map(lambda s: again.load(rows, 0, s), reversed(range(rows.steps))))
    assert all(same(a, b) for a, b in zip(serial, reversed(backwards), strict=True))
    assert not same(serial[0], loader.load(rows, 1, 0))
    other, _ = loader_of(dataset, recipe(MOVED, seed=4))
    assert not same(serial[0], other.load(rows, 0, 0))


def test_tiles_are_the_pixels_of_their_files(dataset: Dataset) -> None:
    """The image's first band holds the label + 1: whatever way a scene is read, they stay together."""
    settings = recipe({})
    loader, index = loader_of(dataset, settings)
    rows = plan_of(index, settings)
    for step in range(rows.steps):
        image, valid, label, _ = loader.load(rows, 0, step)
        np.testing.assert_array_equal(image[..., 0][valid], label[valid] + 1)
        assert (image[~valid] == 0).all()
