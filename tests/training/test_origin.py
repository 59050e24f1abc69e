"""Record of what a run is made from: the pixels, the scale and the place of its training scenes."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from affine import Affine

from datasets import load_dataset
from segmenter.config.reading import load_recipe
from segmenter.raster import raster_info
from segmenter.raster.ground import lon_lat_corners
from segmenter.runs.records import MOST_OUTLINES, load_origin
from segmenter.tiles.index import TileIndex, build_index
from segmenter.training.beginning.origin import origin_of, place_of, record_origin
from tests.helpers.made_training import made

MADE_ON = {"devices": "RTX 2080 Ti", "libraries": "cuDNN 9.24, NCCL 2.30"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, TileIndex]:
    recipe = load_recipe(made(tmp_path_factory.mktemp("origin") / "data"))
    dataset = load_dataset(recipe)
    return recipe, dataset, build_index(dataset, "train", recipe.tiles, progress=False)


def test_it_holds_the_pixels_of_the_training_tiles_and_the_place(data: tuple[Any, Any, TileIndex]) -> None:
    recipe, dataset, index = data
    found = origin_of(recipe.sampling, dataset, index, None, None)
    assert found.scenes == {"train": 4, "validation": 1, "test": 0}
    assert sum(found.pixels.values()) == index.counts_NK.sum()
    assert found.pixels["scarce"] == 4 * 100
    assert found.tiles_with["left"] == (index.counts_NK[:, 0] >= recipe.sampling.min_pixels).sum()
    assert (found.tiles, found.tile_px, found.metres_per_pixel) == (len(index), 32, (1.0, 1.0))
    assert (found.place.scenes, found.place.exact, len(found.place.rings)) == (4, True, 4)
    # UTM 33N, 0 … 83 m east and 0 … 97 m north: near 10.5° E, on the equator.
    lon, lat = np.array(found.place.rings[0]).T
    assert lon.min() == pytest.approx(10.5114, abs=1e-3)
    assert (lat.min(), lat.max()) == pytest.approx((0, 97 / 110_574), abs=1e-5)


def test_it_is_written_once(data: tuple[Any, Any, TileIndex], tmp_path: Path) -> None:
    recipe, dataset, index = data
    run: Any = SimpleNamespace(path=tmp_path, recipe=recipe)
    source: Any = SimpleNamespace(run=SimpleNamespace(recipe=SimpleNamespace(name="other")))
    record_origin(run, dataset, index, source, MADE_ON, resumed=False)
    first = load_origin(tmp_path)
    assert first.begun is not None
    assert first.started_from == "other"
    assert first.computed_on == MADE_ON
    record_origin(run, dataset, index, None, {}, resumed=True)
    assert load_origin(tmp_path) == first
    record_origin(run, dataset, index, None, {}, resumed=False)
    again = load_origin(tmp_path)
    assert again.started_from == ""


def test_of_a_run_that_began_without_it_the_start_is_not_known(
    data: tuple[Any, Any, TileIndex], tmp_path: Path
) -> None:
    run: Any = SimpleNamespace(path=tmp_path, recipe=data[0])
    record_origin(run, *data[1:], None, {}, resumed=True)
    found = load_origin(tmp_path)
    assert (found.begun, found.started_from) == (None, None)
    assert found.pixels["scarce"] == 400


def test_scenes_without_a_place_are_not_outlined(
    make_png: Callable[..., Path], data: tuple[Any, Any, TileIndex]
) -> None:
    recipe, dataset, index = data
    lost = replace(index.scenes[0], image=make_png("a.png", np.zeros((9, 8), np.uint8)))
    gone = replace(index.scenes[1], image=lost.image.with_name("none.png"))
    found = origin_of(
        recipe.sampling, dataset, replace(index, scenes=(lost, gone, *index.scenes[2:])), None, None
    )
    assert found.place.scenes == 2
    assert place_of([]) is None


def test_many_scenes_have_one_outline_around_them(rng: np.random.Generator) -> None:
    corners = np.array([(0, 0), (0, 0.1), (0.1, 0.1), (0.1, 0)])
    scenes = [corners + rng.uniform(-20, 20, 2) for _ in range(MOST_OUTLINES + 1)]
    each, around = place_of(scenes[:-1]), place_of(scenes)
    assert (len(each.rings), each.exact) == (MOST_OUTLINES, True)
    assert (len(around.rings), around.exact, around.scenes) == (1, False, MOST_OUTLINES + 1)
    ring = np.array(around.rings[0])
    for a, b in pairwise(ring):  # counter-clockwise: every corner lies to the left
        points = np.concatenate(scenes) - a
        assert ((b - a)[0] * points[:, 1] - (b - a)[1] * points[:, 0] > -1e-4).all()
    line = place_of([np.array([(i / 2, 5.0)] * 4) for i in range(MOST_OUTLINES + 1)])
    assert np.ptp(np.array(line.rings[0]), axis=0).tolist() == [MOST_OUTLINES / 2, 0]


def test_rings_are_counter_clockwise_and_closed() -> None:
    corners = np.array([(1.0, 2.0), (3.0, 2.0), (3.0, 1.0), (1.0, 1.0)])
    for given in (corners, corners[::-1]):
        place = place_of([given])
        ring = np.array(place.rings[0])
        assert (ring[0] == ring[-1]).all()
        x, y = (ring[:-1] - ring[0]).T
        assert (x * np.roll(y, -1) - np.roll(x, -1) * y).sum() == 4


def test_corners_in_degrees(make_geotiff: Callable[..., Path]) -> None:
    image = np.zeros((20, 30, 1), np.uint8)
    info = raster_info(
        make_geotiff("a.tif", image, crs="EPSG:4326", transform=Affine(0.1, 0, 7, 0, -0.2, 50))
    )
    found = lon_lat_corners(info)
    assert found.tolist() == pytest.approx(np.array([(7, 50), (10, 50), (10, 46), (7, 46)]))
    nowhere: tuple[tuple[str | None, Affine | None], ...] = (
        (None, None),
        ("EPSG:4326", Affine(1, 0, 0, 0, -1, 400)),  # beyond the pole
        ("EPSG:32660", Affine(20_000, 0, 500_000, 0, -20_000, 5_000_000)),  # across the 180th meridian
    )
    for number, (crs, transform) in enumerate(nowhere):
        where = {} if transform is None else {"transform": transform}
        assert lon_lat_corners(raster_info(make_geotiff(f"{number}.tif", image, crs=crs, **where))) is None
