"""Tiles by ground size: at the asked scale, averaged where shrunk, in their scene, every class in view."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasterio.crs import CRS

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import Recipe
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset
from segmenter.raster import RasterSpec, write_raster
from segmenter.sampling import plan
from segmenter.tiles.batches import BatchLoader, _Draw, _Key
from segmenter.tiles.gsd import GroundGsd, resampled, with_gsds
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.pasting import Paster
from segmenter.tiles.store import SceneStore, Tile
from tests.helpers.made_statistics import statistics_of
from tests.helpers.refusals import refused
from tests.helpers.scaled_scenes import SIDE, scaled_dataset, scaled_recipe

METRES = (0.1, 0.25, 0.6, 2.0, 0.1)
PASTED = {"mosaic": 0.5, "copy_paste": {"p": 0.7, "classes": "rare"}}
Parts = tuple[SceneStore, TileIndex]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, make_classes: Callable[..., ClassMap]) -> Dataset:
    folder = tmp_path_factory.mktemp("scaled")

    def write(name: str, array: np.ndarray, crs: str, transform: Any, **_: Any) -> Path:
        write_raster(folder / name, array, RasterSpec(crs=CRS.from_string(crs), transform=transform))
        return folder / name

    return scaled_dataset(folder, write, make_classes(3), METRES)


def parts(dataset: Dataset, recipe: Recipe) -> Parts:
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, SIDE, cache_folder(dataset), progress=False)
    return store, with_gsds(index, dataset, recipe, progress=False)


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
    got_image, got_valid, got_label = resampled((image, valid, label), 32)
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
    got_image, got_valid, got_label = resampled((image, valid, label), 32)
    assert (got_image[got_valid] == 200).all()
    np.testing.assert_array_equal(got_label[:, :16], np.arange(8).repeat(4)[:, None].repeat(16, 1))
    assert (got_label[:, 16:] == IGNORE).all()


def test_windows_have_the_drawn_ground_size_and_stay_in_their_scene(dataset: Dataset) -> None:
    recipe = scaled_recipe()
    store, index = parts(dataset, recipe)
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


@pytest.mark.parametrize(
    "changed", [{"scale_to": [0.2, 1.0], "rotation": 20}, PASTED], ids=["scaled", "put together"]
)
def test_the_promise_at_each_scale_is_kept_in_the_labels_that_come_out(
    dataset: Dataset, changed: dict[str, object]
) -> None:
    """The order of one replica is that of the slots, so that the scene of each tile is known."""
    recipe = scaled_recipe(
        augmentation={**changed, "brightness": 0, "contrast": 0},
        sampling={"scale_strata": [0.15, 0.5], "max_repeats_per_tile": 40},
    )
    store, index = parts(dataset, recipe)
    loader = BatchLoader(recipe, index, store, statistics_of())
    rows = plan(index.counts_NK, 12, recipe.sampling, 3, 0, strata=index.strata)
    for step in range(rows.steps):
        _, _, label, _ = loader.load(rows, 0, step)
        stratum_B = index.strata.number_N[rows.rows_SB[step]]
        for part in rows.parts:
            tiles = [one for one, t in zip(label, stratum_B, strict=True) if part.stratum in (None, t)]
            assert max(np.count_nonzero(one == part.class_id) for one in tiles) >= 32
    assert loader.drawn.redrawn > 0
    assert loader.drawn.replaced < loader.drawn.tiles / 2


def test_by_scale_tiles_are_put_together_within_a_stratum(dataset: Dataset) -> None:
    """A class of another scale would keep no promise, and not look like one of this."""
    for strata in ([0.15, 0.5], []):
        recipe = scaled_recipe(augmentation=PASTED, sampling={"scale_strata": strata})
        store, index = parts(dataset, recipe)
        read: list[int] = []

        def reader(number: int, *_: object, store: SceneStore = store, index: TileIndex = index) -> Tile:
            read.append(number)  # noqa: B023 - called in this turn of the loop alone
            return store.read(int(index.scene_N[number]), index.window(number))

        paster = Paster(recipe.augmentation, index, reader, dataset.classes.names, 32)
        stratum_S = np.digitize(METRES, [0.15, 0.5])
        pairs = []
        for number in range(0, len(index), 2):
            del read[:]
            paster(reader(number), number, (3, 0, 0, number, 0))
            pairs += [(stratum_S[index.scene_N[number]], stratum_S[index.scene_N[one]]) for one in read[1:]]
        assert len(pairs) > 50
        assert {a == b for a, b in pairs} == ({True} if strata else {True, False})


def test_all_parts_of_a_tile_have_its_ground_size(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = scaled_recipe(augmentation={"scale_to": [0.2, 2.0], "mosaic": 0.6, "copy_paste": {"p": 0.6}})
    store, index = parts(dataset, recipe)
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


def test_which_tiles_are_mosaics_does_not_follow_from_their_scale(dataset: Dataset) -> None:
    """Each is drawn from numbers of its own: else mosaics would be all there is of the finest scales."""
    recipe = scaled_recipe(augmentation={"scale_to": [0.2, 1.0], "mosaic": 0.5})
    store, index = parts(dataset, recipe)
    ground = GroundGsd(recipe, index, store)
    read: list[int] = []

    def reader(number: int, *_: object) -> Tile:
        read.append(number)
        return store.read(int(index.scene_N[number]), index.window(number))

    paster = Paster(recipe.augmentation, index, reader, dataset.classes.names, 32)
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


def test_the_middle_and_the_ends_are_those_of_what_is_shown(dataset: Dataset) -> None:
    recipe = scaled_recipe(augmentation={"scale_to": [0.2, 4.0]})
    store, index = parts(dataset, recipe)
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
