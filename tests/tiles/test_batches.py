"""Batches, a pure function of seed, epoch and step: image, label and validity stay together, also pasted.

Tiles by ground size lie at the asked scale, averaged where shrunk, in their scene, with every class in view.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.recipe import Recipe
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.sampling import Plan, part_table, plan
from segmenter.tiles.batches import Batch, BatchLoader, _Draw, _Key
from segmenter.tiles.gsd import GroundGsd, resample_tile, with_gsds
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.pasting import Paster, donors, mosaic, paste, regions_of
from segmenter.tiles.probing import check_augmentation
from segmenter.tiles.store import SceneStore, Tile
from tests.helpers.made_rasters import PLACE, written
from tests.helpers.made_runs import recipe_of
from tests.helpers.made_statistics import statistics_of
from tests.helpers.refusals import refused
from tests.helpers.scaled_scenes import scaled_dataset, scaled_recipe

SIDE, RARE = 32, 2
BATCH = 6


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, make_classes: Callable[..., ClassMap]) -> Dataset:
    """Scenes of odd sizes: striped, tiled with a hole, smaller than a tile, square.

    Their bands say each pixel's label + 1 and scene; the rare class covers 42 pixels of each, scarcely more
    than a tile must show.
    """
    folder, rng, scenes = tmp_path_factory.mktemp("rare"), np.random.default_rng(20201107), []
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
        image_file = written(folder / f"i{number}.tif", image.astype(np.uint8), **PLACE, **options)
        label_file = written(folder / f"l{number}.png", label, "PNG")
        scenes.append(Scene(f"s{number}", image_file, label_file, f"s{number}", "train"))
    return Dataset("made", folder, tuple(scenes), make_classes(4))


def recipe(augmentation: dict[str, Any], **sections: Any) -> Recipe:
    """A recipe of `BATCH` tiles of `SIDE` pixels; brightness and contrast stay if they are not named."""
    data = {
        "seed": 3,
        "tiles": {"size": SIDE},
        "augmentation": {"brightness": 0, "contrast": 0, **augmentation},
        "training": {"global_batch": BATCH},
    }
    return recipe_of(**{**data, **sections})


def loader_of(dataset: Dataset, settings: Recipe, *parts: Any) -> tuple[BatchLoader, TileIndex]:
    """A loader of all of a batch or of parts of it, as `BatchLoader` takes them."""
    index = build_index(dataset, "train", settings.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, settings.tiles.size, cache_folder(dataset), progress=False)
    return BatchLoader(settings, index, store, statistics_of(), *parts), index


def plan_of(index: TileIndex, settings: Recipe, epoch: int = 0) -> Plan:
    return plan(index.counts_NK, BATCH, settings.sampling, settings.seed, epoch)


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
    settings = recipe({**pasted, "scale": 0.2, "rotation": 20})
    batches, loader = epoch_of(dataset, settings, epochs=2)
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
    loader, index = loader_of(dataset, settings, (3, 3))
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
    settings, size, read = recipe(augmentation), BATCH // workers, []
    whole, index = loader_of(dataset, settings, (size,) * workers)
    own = [slice(w * size, (w + 1) * size) for w in range(workers)]
    shares = [loader_of(dataset, settings, (size,) * workers, each)[0] for each in own]
    rows, full = plan_of(index, settings), SceneStore.read
    monkeypatch.setattr(SceneStore, "read", lambda self, *a: (read.append(a), full(self, *a))[1])
    for step in range(min(6, rows.steps)):
        expected = whole.load(rows, 0, step)
        for worker, loader in enumerate(shares):
            into = tuple(np.empty((size, *a.shape[1:]), a.dtype) for a in expected) if worker else None
            before = len(read)
            found = loader.load(rows, 0, step, into)  # type: ignore[arg-type]
            if augmentation is PLAIN:
                assert len(read) - before == size, "images of others were read"
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b[own[worker]])
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
    for epoch in range(2):
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


METRES = (0.1, 0.25, 0.6, 2.0, 0.1)
PUT_TOGETHER = {"mosaic": 0.5, "copy_paste": {"p": 0.7, "classes": "rare"}}
Parts = tuple[SceneStore, TileIndex]


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory, make_classes: Callable[..., ClassMap]) -> Dataset:
    folder = tmp_path_factory.mktemp("scaled")

    def write(name: str, array: np.ndarray, **options: Any) -> Path:
        return written(folder / name, array, **options)

    return scaled_dataset(folder, write, make_classes(3), METRES)


def parts(scaled: Dataset, recipe: Recipe) -> Parts:
    index = build_index(scaled, "train", recipe.tiles, progress=False)
    store = SceneStore(scaled, index.scenes, SIDE, cache_folder(scaled), progress=False)
    return store, with_gsds(index, scaled, recipe, progress=False)


def overlaps(old: int, new: int) -> np.ndarray:
    """(new, old) share of each new pixel's side that each old one takes, by intervals."""
    edges, wide = np.arange(old + 1.0), old / new
    low, high = np.arange(new)[:, None] * wide, np.arange(1, new + 1)[:, None] * wide
    return np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None) / wide


@pytest.mark.parametrize(
    ("old", "dtype", "whole"),
    [(33, "uint8", True), (64, "uint16", False), (101, "float32", True), (255, "int32", False)],
)
def test_shrinking_averages_areas_and_keeps_the_largest_class(
    old: int, dtype: str, whole: bool, rng: np.random.Generator
) -> None:
    image = (rng.integers(0, 250, (old, old, 5)) * (1 if dtype == "uint8" else 100)).astype(dtype)
    valid = (rng.random((old, old)) > 0.4) | whole
    label = rng.integers(0, 3, (old, old)).astype(np.uint8)
    label[~valid] = IGNORE
    label[: old // 3] = IGNORE  # unlabelled where there is data
    image[~valid] = 0
    got_image, got_valid, got_label = resample_tile((image, valid, label), 32)
    A = overlaps(old, 32)
    share = A @ valid @ A.T
    sure = np.abs(share - 0.5) > 1e-4
    np.testing.assert_array_equal(got_valid[sure], (share >= 0.5)[sure])
    total = np.einsum("ih,hwc,jw->ijc", A, image * valid[..., None].astype(float), A, optimize=True)
    mean = total / np.maximum(share, 1e-9)[..., None]
    step = 0.51 if dtype != "float32" else 0.02  # of values to 25,000
    assert np.abs(got_image[got_valid] - mean[got_valid]).max() <= step
    assert (got_image[~got_valid] == 0).all()
    assert got_image.dtype == dtype
    areas = np.stack([A @ (label == c) @ A.T for c in range(3)])
    ranked = np.sort(areas, axis=0)
    labelled = areas.sum(axis=0)
    clear = got_valid & (np.abs(labelled - 0.5) > 1e-4) & (ranked[2] - ranked[1] > 1e-4)
    wanted = np.where(labelled >= 0.5, areas.argmax(axis=0), IGNORE)
    np.testing.assert_array_equal(got_label[clear], wanted[clear])
    assert (got_label[~got_valid] == IGNORE).all()


def test_enlarging_keeps_labels_whole_and_does_not_bleed_what_has_no_data() -> None:
    label = np.repeat(np.arange(8, dtype=np.uint8), 2)[:, None].repeat(16, 1)
    valid = np.ones((16, 16), bool)
    valid[:, 8:] = False
    image = np.where(valid, 200, 0).astype(np.uint8)[..., None]
    got_image, got_valid, got_label = resample_tile((image, valid, label), 32)
    assert (got_image[got_valid] == 200).all()
    np.testing.assert_array_equal(got_label[:, :16], np.arange(8).repeat(4)[:, None].repeat(16, 1))
    assert (got_label[:, 16:] == IGNORE).all()


def test_windows_have_the_drawn_ground_size_and_stay_in_their_scene(scaled: Dataset) -> None:
    recipe = scaled_recipe()
    store, index = parts(scaled, recipe)
    ground = GroundGsd(recipe, index, store)
    shown: dict[int, list[float]] = {}
    for tile in range(len(index)):
        scene = int(index.scene_N[tile])
        for attempt in range(12):
            window = ground.window(tile, (0, 1, tile, attempt % 4))
            assert Window.of(store.size(scene)).contains(window)
            shown.setdefault(scene, []).append(window.height / SIDE * METRES[scene])
    for scene, metres in enumerate(METRES):
        gsd, size = np.array(shown[scene]), store.size(scene)
        half = metres / SIDE / 2 + 1e-9  # half a pixel in the window's side
        low = min(max(0.2, metres / 4), metres * 8)
        high = max(low, min(1.0, metres * min(8, min(size.height, size.width) / SIDE)))
        assert low - half <= gsd.min() <= low * 1.2 + half
        assert high * 0.85 - half <= gsd.max() <= high + half
    logs = np.log([g for scene in (1, 2) for g in shown[scene]])  # reach all of it: as many below as above
    assert 0.35 < (logs < np.log(0.2 * 1.0) / 2).mean() < 0.65


@pytest.mark.parametrize("quota", ["presence", "rarity"])
@pytest.mark.parametrize(
    "changed", [{"scale_to": [0.2, 1.0], "rotation": 20}, PUT_TOGETHER], ids=["scaled", "put together"]
)
def test_the_promise_at_each_scale_is_kept_in_the_labels_that_come_out(
    scaled: Dataset, changed: dict[str, object], quota: str
) -> None:
    """The order of one replica is that of the slots, so that the scene of each tile is known."""
    recipe = scaled_recipe(
        augmentation={**changed, "brightness": 0, "contrast": 0},
        sampling={"scale_strata": [0.15, 0.5], "max_repeats_per_tile": 40, "quota": quota},
    )
    store, index = parts(scaled, recipe)
    loader = BatchLoader(recipe, index, store, statistics_of())
    rows = plan(part_table(index.counts_NK, index.strata), 12, recipe.sampling, 3, 0)
    given_P = np.array([quota.given for quota in rows.quotas] or [1] * len(rows.parts))
    shown_SP = np.zeros((rows.steps, len(rows.parts)), int)
    for step in range(rows.steps):
        _, _, label, _ = loader.load(rows, 0, step)
        stratum_B = index.strata.number_N[rows.rows_SB[step]]
        for p, part in enumerate(rows.parts):
            tiles = [one for one, t in zip(label, stratum_B, strict=True) if part.stratum in (None, t)]
            shown_SP[step, p] = sum(np.count_nonzero(one == part.class_id) >= 32 for one in tiles)
    assert (shown_SP >= np.floor(given_P)).all()
    assert (np.minimum(shown_SP, np.ceil(given_P)).mean(axis=0) >= given_P - 1e-9).all()
    assert (given_P.max() > 1) == (quota == "rarity")
    assert loader.drawn.redrawn > 0
    assert loader.drawn.replaced < loader.drawn.tiles / 2


def test_by_scale_tiles_are_put_together_within_a_stratum(scaled: Dataset) -> None:
    """A class of another scale would keep no promise, and not look like one of this."""
    for strata in ([0.15, 0.5], []):
        recipe = scaled_recipe(augmentation=PUT_TOGETHER, sampling={"scale_strata": strata})
        store, index = parts(scaled, recipe)
        read: list[int] = []

        def reader(number: int, *_: object, store: SceneStore = store, index: TileIndex = index) -> Tile:
            read.append(number)  # noqa: B023 - called in this turn of the loop alone
            return store.read(int(index.scene_N[number]), index.window(number))

        paster = Paster(recipe.augmentation, index, reader, scaled.classes.names, 32)
        stratum_S = np.digitize(METRES, [0.15, 0.5])
        pairs = []
        for number in range(0, len(index), 2):
            del read[:]
            paster(reader(number), number, (3, 0, 0, number, 0))
            pairs += [(stratum_S[index.scene_N[number]], stratum_S[index.scene_N[one]]) for one in read[1:]]
        assert len(pairs) > 50
        assert {a == b for a, b in pairs} == ({True} if strata else {True, False})


def test_all_parts_of_a_tile_have_its_ground_size(scaled: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = scaled_recipe(augmentation={"scale_to": [0.2, 2.0], "mosaic": 0.6, "copy_paste": {"p": 0.6}})
    store, index = parts(scaled, recipe)
    loader = BatchLoader(recipe, index, store, statistics_of())
    shown: list[tuple[int, Window]] = []
    read = store.read
    monkeypatch.setattr(store, "read", lambda *place: shown.append(place) or read(*place))
    metres_S = index.metres_S
    rows = plan(index.counts_NK, 12, recipe.sampling, 3, 0)
    scales, scenes = [], []
    for slot, tile in enumerate(rows.rows_SB[:10].reshape(-1).tolist()):
        del shown[:]
        loader._content(_Draw(tile, _Key(0, 0, slot, 0)))
        scales.append([(w.height * metres_S[scene], metres_S[scene] / 2) for scene, w in shown])
        scenes.append({scene for scene, _ in shown})
    for metres, half in (np.array(each).T for each in scales):
        np.testing.assert_array_less(abs(metres - metres[0]), half * 1.001)  # as far as whole pixels allow
    assert sum(len(each) > 1 for each in scenes) > 20
    assert sum(len(each) > 3 for each in scales) > 20


def test_which_tiles_are_mosaics_does_not_follow_from_their_scale(scaled: Dataset) -> None:
    """Each is drawn from numbers of its own: else mosaics would be all there is of the finest scales."""
    recipe = scaled_recipe(augmentation={"scale_to": [0.2, 1.0], "mosaic": 0.5})
    store, index = parts(scaled, recipe)
    ground = GroundGsd(recipe, index, store)
    read: list[int] = []

    def reader(number: int, *_: object) -> Tile:
        read.append(number)
        return store.read(int(index.scene_N[number]), index.window(number))

    paster = Paster(recipe.augmentation, index, reader, scaled.classes.names, 32)
    sides: dict[bool, list[int]] = {True: [], False: []}
    tile = reader(0)
    for slot in range(60):
        del read[:]
        paster(tile, 0, (recipe.seed, 0, 0, slot, 0))
        sides[bool(read)].append(ground.window(0, (0, 0, slot, 0)).height)
    assert min(len(some) for some in sides.values()) > 15
    assert max(sides[True]) > np.median(sides[False])
    assert min(sides[True]) < np.median(sides[False])


def test_a_scene_of_unknown_scale_is_refused_where_it_is_needed(
    tmp_path: Path, make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap]
) -> None:
    made = scaled_dataset(tmp_path, make_geotiff, make_classes(3), METRES[:2])
    image = make_geotiff("plain.tif", np.zeros((131, 187, 3), np.uint8), crs=None)
    unknown = replace(made.scenes[1], image=image)
    dataset = replace(made, scenes=(made.scenes[0], unknown))
    recipe = scaled_recipe()
    index = build_index(made, "train", recipe.tiles, progress=False)
    index = replace(index, scenes=dataset.scenes)
    strata = scaled_recipe(augmentation={}, sampling={"scale_strata": [1]})
    for asking, setting in ((recipe, "augmentation.scale_to"), (strata, "sampling.scale_strata")):
        with refused(DatasetError, where=setting):
            with_gsds(index, dataset, asking, progress=False)
    said = replace(dataset, usual_metres=0.3)
    assert with_gsds(index, said, recipe, progress=False).metres_S == pytest.approx([0.1, 0.3], rel=0.01)


def test_the_middle_and_the_ends_are_those_of_what_is_shown(scaled: Dataset) -> None:
    recipe = scaled_recipe(augmentation={"scale_to": [0.2, 4.0]})
    store, index = parts(scaled, recipe)
    ground = GroundGsd(recipe, index, store)
    shown = []
    for tile in np.unique(index.scene_N, return_index=True)[1]:  # one of each scene
        metres = float(index.metres_S[index.scene_N[tile]])
        sides = [ground.window(int(tile), (0, step, 0, 0)).height for step in range(600)]
        shown.append([side * metres / SIDE for side in sides])
    tiles_S = np.bincount(index.scene_N)
    low, high = ground.ends()
    assert low == pytest.approx(np.min(shown), rel=0.1)
    assert high == pytest.approx(np.max(shown), rel=0.1)
    assert ground.middle() == pytest.approx(
        np.exp(np.log(shown).mean(axis=1) @ tiles_S / tiles_S.sum()), rel=0.02
    )
    assert ground.middle() < 0.95 * (0.2 * 4.0) ** 0.5  # the scenes are too small for the coarse ones
