"""Batches, a pure function of seed, epoch and step: image, label and validity stay together, also pasted."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import Recipe
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.sampling import Plan, plan
from segmenter.tiles.batches import Batch, BatchLoader
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.pasting import donors, mosaic, paste, regions_of
from segmenter.tiles.probing import check_augmentation
from segmenter.tiles.store import SceneStore, Tile
from tests.helpers.made_runs import recipe_of
from tests.helpers.made_statistics import statistics_of
from tests.helpers.refusals import refused

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


@pytest.fixture
def dataset(make_geotiff: Any, make_png: Any, make_classes: Any, rng: Any) -> Dataset:
    return rare_scenes(make_geotiff, make_png, make_classes(4), rng)


def epoch_of(dataset: Dataset, settings: Recipe, epochs: int = 1) -> tuple[list[Batch], BatchLoader]:
    loader, index = loader_of(dataset, settings)
    batches = []
    for epoch in range(epochs):
        rows = plan_of(index, settings, epoch)
        assert rows.promised == (0, 1, RARE)
        batches += [loader.load(rows, epoch, step) for step in range(rows.steps)]
    return batches, loader


def made(seed: int, classes: int = 3, side: int = 33) -> Tile:
    """A tile in blocks whose first band is its label + 1, the second its seed."""
    rng = np.random.default_rng(seed)
    label = np.kron(rng.integers(0, classes, (9, 9)), np.ones((4, 4)))[:side, :side].astype(np.uint8)
    valid = rng.random(label.shape) > 0.1
    image = np.stack([label + 1, np.full_like(label, seed)], axis=-1)
    image[~valid], label[~valid] = 0, IGNORE
    label[rng.random(label.shape) < 0.05] = IGNORE  # labelled as nothing, though there is data
    return image, valid, label


COVERING = {"p": 1.0, "classes": ["a", "b"]}
"""Common classes, which cover the rare one."""


LISTED = {
    "transforms": [
        {"name": "RandomResizedCrop", "size": [SIDE, SIDE], "scale": [0.2, 0.6], "p": 0.8},
        {"name": "CoarseDropout", "hole_height_range": [0.3, 0.5], "hole_width_range": [0.3, 0.5], "p": 0.5},
        {"name": "ElasticTransform", "alpha": 40},
    ]
}


@pytest.mark.parametrize(
    "pasted",
    [
        {"scale": 0.3},
        {"mosaic": 1.0},
        {"copy_paste": COVERING},
        {"mosaic": 0.5, "copy_paste": COVERING},
        LISTED,
    ],
    ids=["moved", "mosaic", "copy-paste", "both", "listed transforms"],
)
def test_promised_classes_stay_in_every_batch(dataset: Dataset, pasted: dict[str, Any]) -> None:
    """Law 1 on the labels as they come out, with turns and zoom on top."""
    settings = recipe(
        {"scale": 0.3, "rotation": 30} if not pasted else {**pasted, "scale": 0.2, "rotation": 20}
    )
    batches, loader = epoch_of(dataset, settings, epochs=3)
    for image, valid, label, _ in batches:
        pixels = np.stack([[np.count_nonzero(one == c) for c in range(3)] for one in label])
        assert (pixels.max(axis=0) >= settings.sampling.min_pixels).all()
        assert (label[~valid] == IGNORE).all()
        assert image.shape == (6, SIDE, SIDE, 3)
    assert loader.drawn.redrawn > 0
    assert loader.drawn.replaced < loader.drawn.tiles * 0.08, loader.drawn


def test_tiles_that_are_left_alone_are_those_of_a_recipe_without(dataset: Dataset) -> None:
    """What pasting draws is drawn apart: position, flips and turns are as they were."""
    without, _ = epoch_of(dataset, recipe({}))
    seldom, _ = epoch_of(dataset, recipe({"copy_paste": {"p": 0.2}}))
    same = [
        np.array_equal(a, b)
        for x, y in zip(without, seldom, strict=True)
        for a, b in zip(x[0], y[0], strict=True)
    ]
    assert 0.6 < np.mean(same) < 1


def test_a_mosaic_is_four_tiles_each_at_its_place() -> None:
    tiles = [made(seed) for seed in (1, 2, 3, 4)]
    for seed in range(20):
        image, valid, label = mosaic(tiles[0], tiles[1:], np.random.default_rng(seed))
        whose = np.zeros(label.shape, int)
        for number, (one, there, ids) in enumerate(tiles, start=1):
            here = (
                (image == one).all(axis=2)
                & (valid == there)
                & (label == ids)
                & ((image[..., 1] == number) | ~there)
            )
            whose[here & (whose == 0)] = number
        assert (whose > 0).all()
        assert set(np.unique(image[..., 1][valid])) == {1, 2, 3, 4}
        np.testing.assert_array_equal(
            image[..., 0][valid & (label != IGNORE)], label[valid & (label != IGNORE)] + 1
        )


def test_only_regions_of_the_class_are_pasted() -> None:
    below, above = made(1), made(2)
    changed = 0
    for seed in range(20):
        image, valid, label = paste(below, above, 1, np.random.default_rng(seed))
        new = valid & (image[..., 1] == 2)
        assert (label[new] == 1).all()
        assert new.mean() <= 0.5
        for after, before in zip((image, valid, label), below, strict=True):
            np.testing.assert_array_equal(after[~new], before[~new])
        _, sizes = regions_of(new)
        assert all(size >= 4 for size in sizes[1:])
        changed += bool(new.any())
    assert changed == 20


@pytest.mark.parametrize("side", [1, 3])
def test_objects_of_few_pixels_are_pasted(side: int) -> None:
    below, above = made(1), made(2)
    above[1][:], above[2][:] = True, 0
    for row, col in product(range(side), repeat=2):
        above[2][2 + row :: 6, 2 + col :: 6] = 1
    for seed in range(20):
        _, _, label = paste(below, above, 1, np.random.default_rng(seed))
        assert ((label == 1) & (below[2] != 1)).any()


def test_a_region_that_would_cover_the_tile_is_not_pasted() -> None:
    below, above = made(1), made(2)
    above[2][:], above[1][:] = 1, True
    for after, before in zip(paste(below, above, 1, np.random.default_rng(0)), below, strict=True):
        np.testing.assert_array_equal(after, before)


def test_classes_that_cannot_be_pasted_are_refused(dataset: Dataset) -> None:
    for names, said in ((["a", "carr"], r"got carr"), (["d"], r"with 32 pixels .*, got d; leave")):
        with pytest.raises(ConfigError, match=said):
            loader_of(dataset, recipe({"copy_paste": {"classes": names}}))
    with pytest.raises(ConfigError, match="got bb"):  # before anything is read
        check_augmentation(recipe({"copy_paste": {"classes": ["bb"]}}).augmentation, dataset, SIDE)


def test_the_rare_classes_are_those_of_few_pixels_and_none_is_refused(dataset: Dataset) -> None:
    index = build_index(dataset, "train", recipe({}).tiles, progress=False)
    common = TileIndex(**{**vars(index), "counts_NK": np.full((len(index), 4), 200)})
    rare = recipe({"copy_paste": {}}).augmentation.copy_paste
    assert rare is not None
    with refused(ConfigError, fault="less than 12.5%"):
        donors(rare, common, list("abcd"), 32)
    assert set(donors(rare, index, list("abcd"), 32)) == {RARE}


def test_a_batch_written_into_given_arrays_is_the_same_batch(dataset: Dataset) -> None:
    settings = recipe({"scale": 0.5, "rotation": 45}, sampling={"per_replica": "best_effort"})
    _, index = loader_of(dataset, settings)
    store = SceneStore(dataset, index.scenes, SIDE, cache_folder(dataset), progress=False)
    loader = BatchLoader(settings, index, store, statistics_of(), (3, 3))
    rows = plan(index.counts_NK, 6, settings.sampling, 3, 0, replicas=2)
    arrays = tuple(np.full_like(array, 1) for array in loader.load(rows, 0, 0))
    for step in range(rows.steps):
        given = loader.load(rows, 0, step, into=arrays)  # type: ignore[arg-type]
        for array, own, fresh in zip(given, arrays, loader.load(rows, 0, step), strict=True):
            assert array is own
            np.testing.assert_array_equal(own, fresh)
    assert loader.drawn.redrawn > 0


PLAIN = {"scale": 0.3, "rotation": 30, "brightness": 0.2, "blur": 0.5, "noise": 0.1}
DISTORTED = {**PLAIN, "transforms": [{"name": "GridDistortion", "p": 0.5}]}
PASTED = {**PLAIN, "mosaic": 0.5}


@pytest.mark.parametrize(
    ("augmentation", "workers"), [(PLAIN, 2), (DISTORTED, 3), (PASTED, 2)], ids=["plain", "listed", "mosaic"]
)
def test_the_shares_of_workers_are_the_whole_batch(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, augmentation: dict[str, Any], workers: int
) -> None:
    settings = recipe(augmentation)
    _, index = loader_of(dataset, settings)
    store = SceneStore(dataset, index.scenes, SIDE, cache_folder(dataset), progress=False)
    rows = plan_of(index, settings)
    form: Any = (settings, index, store, statistics_of(), (BATCH // workers,) * workers)
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


MOVED = {"scale": 0.3, "rotation": 30}
LOSING = {"scale": 0.85, "rotation": 180}


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


@pytest.mark.parametrize(
    ("sampling", "jitter"),
    [({"method": "rare_class"}, True), ({"method": "foreground"}, False), ({"quota": "rarity"}, True)],
)
def test_a_tile_drawn_for_a_class_shows_it(dataset: Dataset, sampling: dict[str, Any], jitter: bool) -> None:
    """In its own slot, after position and augmentation; without the wish, many would have lost it."""
    sampling = {**sampling, "per_replica": "off"}
    settings = recipe(LOSING, tiles={"size": SIDE, "jitter": jitter}, sampling=sampling)
    loader, index = loader_of(dataset, settings)
    lost = 0
    for epoch in range(4):
        rows = plan_of(index, settings, epoch)
        free = replace(rows, wanted_SB=None, promised=(), quotas=())
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
