"""Samples of labels, groups of scenes, and deals of groups to parts."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from datasets.start.groups import groups_of
from datasets.start.samples import Sample, area_of, has_an_up, label_range
from datasets.start.split import Wish, deal
from segmenter.grid.geometry import Size
from segmenter.grid.scenes import Scene
from segmenter.raster import raster_info


def sample(ids: np.ndarray, step: float = 1.0) -> Sample:
    ids = ids.astype(np.uint8)
    return Sample(ids, step, ids)


@pytest.mark.parametrize("side", [4, 9, 20])
def test_labels_of_random_squares_are_alike_over_their_side(side: int) -> None:
    rng = np.random.default_rng(side)
    squares = [np.kron(rng.integers(0, 3, (12, 11)), np.ones((side, side))) for _ in range(12)]
    alike, known = label_range([sample(each) for each in squares])
    assert known
    assert 0.8 * side <= alike <= 1.5 * side
    double, _ = label_range([sample(each, 2.0) for each in squares])
    assert 1.6 * side <= double <= 3 * side


def test_a_scene_of_two_halves_is_too_short_to_tell() -> None:
    halves = np.repeat(np.arange(2), 50)[:, None] * np.ones(100)
    alike, known = label_range([sample(halves)])
    assert (alike, known) == (50.0, False)


def test_sky_above_gives_images_an_up_and_random_fields_do_not() -> None:
    rng = np.random.default_rng(1)
    street = [sample((np.arange(60)[:, None] > 20 + rng.integers(9)) * np.ones(80)) for _ in range(9)]
    fields = [sample(np.kron(rng.integers(0, 3, (6, 8)), np.ones((10, 10)))) for _ in range(9)]
    assert has_an_up(street)[0]
    assert not has_an_up(fields)[0]
    assert not has_an_up(street[:3])[0], "three pictures say little"


def test_the_median_area_of_a_class() -> None:
    ids = np.zeros((30, 40), np.uint8)
    ids[2:5, 2:5], ids[10:14, 10:14], ids[20:29, 20:29] = 1, 1, 1
    ids[7, 30] = 1  # noise
    assert area_of([sample(ids)], 1) == 16
    assert area_of([sample(ids)], 2) is None


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"t{t}/images/p_{i:02}.jpg" for t in range(4) for i in range(1, 10)], 4),
        ([f"{p}_{i}.png" for p in ("ab", "cd", "ef") for i in range(30, 91, 30)], 3),
        ([f"{i}.png" for i in range(20)], 20),
        ([f"{town}{i}.png" for town in ("rural", "urban") for i in range(9)], 18),
        ([f"scene_{i * i}_x.png" for i in range(12)], 12),
        ([f"img/{p}_{i}_RGB.png" for p in ("ab", "cd", "ef") for i in range(7)], 3),
        ([f"{p}_x-{x}_y-{y}_vv.png" for p in ("ab", "cd2", "ef") for x in range(3) for y in range(4)], 3),
        ([f"{p}_r{64 * y}c{64 * x}_10m.jp2" for p in "abc" for x in range(2) for y in range(5)], 3),
        ([f"{p}_{y}_{x}.png" for p in (7, 8, 9) for x in range(3) for y in range(3)], 3),
        ([f"{p}_{p * p + y}_{x}.png" for p in (2, 5, 9) for x in range(3) for y in range(2)], 6),
        ([f"{i * i}_{when}.png" for i in range(9) for when in ("pre", "post")], 9),
        ([f"{i * 37 % 101}.png" for i in range(9, 40)], 31),
    ],
)
def test_series_of_numbered_names_are_groups(tmp_path: Path, names: list[str], groups: int) -> None:
    root = Path("/data")
    scenes = [Scene(name, root / name, None, name, "train") for name in names]
    plain: Any = SimpleNamespace(crs=None, transform=None, size=Size(9, 9))
    found = groups_of(root, scenes, [plain] * len(names), 5.0)
    assert found.count == groups
    assert found.alone == (groups == len(names))


def test_scenes_that_touch_are_one_place_and_a_mosaic_is_cells(
    tmp_path: Path, make_geotiff: Callable[..., Path]
) -> None:
    def places(corners: list[tuple[int, int]], apart: float = 1.0) -> list[int]:
        scenes = []
        for row, col in corners:
            name = f"{row}_{col}.tif"
            place = Affine(0.5, 0, 368_000 + 0.5 * col, 0, -0.5, 5_808_000 - 0.5 * row)
            image = make_geotiff(name, np.zeros((20, 20), np.uint8), transform=place)
            scenes.append(Scene(name, image, None, name, "train"))
        infos = [raster_info(scene.image) for scene in scenes]
        return groups_of(tmp_path, scenes, infos, apart).of_S.tolist()

    alone = [(0, 0), (0, 100), (0, 200), (100, 0), (100, 100)]
    assert places(alone) == [0, 1, 2, 3, 4]
    assert places([*alone, (0, 20), (119, 110)]) == [0, 1, 2, 3, 4, 0, 4]
    mosaic = [(20 * r, 20 * c) for r in range(3) for c in range(4)]
    assert places(mosaic) == list(range(12))
    assert len(set(places(mosaic, apart=40.0))) == 4
    overlapping = [(20 * r, 20 * c - 5 * (c == 1)) for r in range(3) for c in range(4)]
    found = places(overlapping)
    assert all(found[4 * r] == found[4 * r + 1] for r in range(3))


Table = NDArray[np.int64]


@st.composite
def tables(draw: st.DrawFn, least: int = 2, most: int = 40) -> Table:
    """Pixels of classes in groups, many of them 0."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups, classes = draw(st.integers(least, most)), draw(st.integers(1, 9))
    there = rng.random((groups, classes)) < rng.uniform(0.1, 1, classes)
    counts: Table = (there * rng.lognormal(8, 2, (groups, classes))).astype(np.int64) + 1
    counts[~there] = 0
    counts[:, 0] += 1
    return counts


def parts_of(counts: Table, parts: Table, number: int) -> Table:
    return np.stack([counts[parts == p].sum(axis=0) for p in range(number)])


@given(tables(most=8), st.sampled_from((0.0, 0.2)))
def test_of_few_groups_no_deal_has_more_classes_in_its_parts(counts: Table, test: float) -> None:
    wish = Wish.of(0.2, test if len(counts) > 2 else 0.0)
    found = deal(counts, wish)
    assert set(found.tolist()) == set(range(wish.parts))
    groups = (counts > 0).sum(axis=0)
    every = np.array(list(itertools.product(range(wish.parts), repeat=len(counts))))
    tables = np.array([parts_of(counts, parts, wish.parts) for parts in every], float)
    own = wish.cost(parts_of(counts, found, wish.parts)[None].astype(float), groups)[0]
    assert own == pytest.approx(wish.cost(tables, groups).min())


@given(tables(least=10), st.sampled_from((0.0, 0.1)), st.integers(0, 3))
def test_classes_with_many_groups_are_in_each_part(counts: Table, test: float, seed: int) -> None:
    wish = Wish.of(0.2, test)
    found = deal(counts, wish, seed)
    assert (found == deal(counts, wish, seed)).all()
    assert set(found.tolist()) == set(range(wish.parts))
    many = (counts > 0).sum(axis=0) >= 2 * counts.shape[1] + wish.parts
    assert (parts_of(counts, found, wish.parts)[:, many] > 0).all()


@given(st.integers(30, 120), st.integers(0, 99))
def test_shares_are_near_to_those_wished(groups: int, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(500, 1500, (groups, 4))
    parts = parts_of(counts, deal(counts, Wish.of(0.2, 0.1)), 3)
    share = parts.sum(axis=1) / parts.sum()
    assert np.abs(share - (0.7, 0.2, 0.1)).max() < 0.02
    assert np.abs(parts / parts.sum(axis=0) - np.array([[0.7], [0.2], [0.1]])).max() < 0.05


def test_a_rare_class_of_two_groups_trains_and_validates() -> None:
    counts = np.full((60, 3), 1000)
    counts[:, 2] = 0
    counts[[7, 41], 2] = 5
    found = deal(counts, Wish.of(0.2, 0.1))
    assert set(found[[7, 41]].tolist()) == {0, 1}
