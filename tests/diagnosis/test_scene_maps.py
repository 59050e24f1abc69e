"""Maps of a diagnosis: each class where it lies, coarse, without holes, and none left out in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio

from segmenter.config.recipe import TilesConfig
from segmenter.diagnosis import diagnose
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.tiles.index import TileIndex, build_index
from tests.helpers.made_tables import classes, diagnosed, made, rare, recipe

Make = Callable[..., Path]


@pytest.fixture
def image(make_png: Make) -> Path:
    """An image without georeference, for tables whose scenes do not matter."""
    return make_png("image.png", np.ones((32, 32, 3), np.uint8))


def test_a_map_shows_where_a_class_lies(tmp_path: Path, make_geotiff: Make) -> None:
    """Class a in the west, b in the east, nothing labelled in the north-east corner."""
    label = np.full((160, 320), 1, np.uint8)
    label[:, 160:], label[:64, 256:] = 2, 9
    map_of = ClassMap(classes("ab").classes, "codes", (9,))
    image, truth = make_geotiff("i.tif", np.ones((160, 320, 3), np.uint8)), make_geotiff("l.tif", label)
    dataset = Dataset("made", tmp_path, (Scene("west_east", image, truth, "g", "train"),), map_of)
    index = build_index(dataset, "train", TilesConfig(size=32), progress=False)
    (one,) = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()["maps"]
    assert (one["name"], one["rows"], one["cols"], one["georeferenced"]) == ("west_east", 5, 10, True)
    assert one["bounds"] == [368000, 5808000 - 80, 368000 + 160, 5808000]
    a, b = one["share"]
    assert a[0] == [1.0] * 5 + [0.0] * 3 + [None] * 2
    assert b[4] == [0.0] * 5 + [1.0] * 5


@pytest.mark.parametrize("shape", [(1301, 2633), (33, 70), (20, 31)])
def test_maps_are_coarse_and_without_holes(
    tmp_path: Path, make_geotiff: Make, shape: tuple[int, int]
) -> None:
    """Odd sizes, tiles that overlap or reach beyond the scene: each cell has tiles."""
    ids = np.random.default_rng(0).integers(1, 3, shape).astype(np.uint8)
    image, truth = make_geotiff("i.tif", np.ones((*shape, 1), np.uint8)), make_geotiff("l.tif", ids)
    dataset = Dataset("made", tmp_path, (Scene("s", image, truth, "s", "train"),), classes("ab"))
    for overlap in (0, 28):
        config = TilesConfig(size=32, overlap=overlap)
        index = build_index(dataset, "train", config, progress=False)
        (one,) = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()["maps"]
        assert one["rows"] == max(1, min(40, shape[0] // 32))
        assert one["cols"] == max(1, min(40, shape[1] // 32))
        total = np.array(one["share"], np.float64).sum(axis=0)
        assert total == pytest.approx(np.ones((one["rows"], one["cols"])), abs=1e-4)


def test_many_adjoining_scenes_share_a_map(tmp_path: Path, make_geotiff: Make) -> None:
    """A row of 27 scenes, one 20 km away, and one in another zone: three planes."""
    scenes, ids = [], np.full((32, 64), 1, np.uint8)
    for i in range(29):
        east = 368000 + 32 * i if i < 27 else 388000
        place = {"transform": rasterio.Affine(0.5, 0, east, 0, -0.5, 5808000)}
        place |= {"crs": "EPSG:25832" if i == 28 else "EPSG:25833"}
        image = make_geotiff(f"i{i}.tif", np.ones((32, 64, 3), np.uint8), **place)
        label = make_geotiff(f"l{i}.tif", ids + (i == 13), **place)
        scenes.append(Scene(f"s{i}", image, label, f"s{i}", "train"))
    dataset = Dataset("made", tmp_path, tuple(scenes), classes("ab"))
    index = build_index(dataset, "train", TilesConfig(size=32), progress=False)
    found = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()
    assert [(m["scenes"], m["crs"][-2:]) for m in found["maps"]] == [(27, "33"), (1, "33"), (1, "32")]
    row = found["maps"][0]
    assert (row["rows"], row["cols"], row["name"]) == (1, 40, "s0 and 26 adjoining")
    assert row["bounds"] == [368000, 5807984, 368000 + 27 * 32, 5808000]
    shares = row["share"][1][0]
    assert max(shares[19:21]) > 0
    assert not any(shares[:19] + shares[22:])


def test_scenes_without_a_place_lie_side_by_side_by_group(image: Path) -> None:
    """Five scenes of 2×3 tiles: blocks of a near-square, the last of its places empty."""
    counts = np.zeros((30, 2), np.int64)
    counts[:, 0] = 900
    counts[6 * 3 + 5] = [0, 900]  # the fourth scene's last tile
    dataset, index = made(counts, image, per_scene=6, across=3)
    scenes = tuple(Scene(s.name, s.image, s.label, "all", s.split) for s in dataset.scenes)
    index = TileIndex(**{**vars(index), "scenes": scenes})
    (one,) = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()["maps"]
    assert (one["name"], one["scenes"], one["georeferenced"], one["bounds"]) == ("all", 5, False, None)
    assert (one["rows"], one["cols"]) == (4, 9)  # two by three blocks
    b = one["share"][1]
    assert b[3] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, None, None, None]
    assert sum(value or 0 for row in b for value in row) == 1


def test_what_is_not_drawn_is_counted(image: Path) -> None:
    large = diagnosed(rare(30 * 9, 5), image, per_scene=9, across=3)
    assert (len(large["maps"]), large["maps_left_out"]) == (24, 6)
    small = diagnosed(rare(2000, 5), image)
    assert [m["name"] for m in small["maps"]] == ["2000 small scenes in their order"]
    assert (small["maps"][0]["rows"], small["maps"][0]["cols"], small["maps_left_out"]) == (40, 40, 0)
    assert small["maps"][0]["share"][1][0][:5] == [0.1] * 4 + [0.0]
