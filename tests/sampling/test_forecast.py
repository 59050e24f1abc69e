"""Forecast, steps and repeats are what counting says: by hand, by every batch there is, by drawing."""

import math
from fractions import Fraction
from functools import reduce
from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import SamplingConfig
from segmenter.sampling import plan
from segmenter.sampling.forecast import class_statistics, forecast, scene_pixels
from tests.helpers.refusals import refused

SHARES = (Fraction(9, 10), Fraction(99, 100), Fraction(999, 1000), Fraction(1, 2))


def one_tile_each(tiles: int, classes: int) -> np.ndarray:
    """Class c is held by one tile, another one for each."""
    table = np.zeros((tiles, classes), bool)
    table[np.arange(classes) * (tiles // classes), np.arange(classes)] = True
    return table


def all_of_them(tiles: int, classes: int, batch: int) -> Fraction:
    """That a random batch has all the tiles of `one_tile_each`."""
    if batch < classes:
        return Fraction(0)
    return Fraction(math.comb(tiles - classes, batch - classes), math.comb(tiles, batch))


def test_a_forecast_that_can_be_counted_by_hand() -> None:
    """One of four tiles holds a, the others b: half of the six pairs have both."""
    there = forecast(np.array([[True, False], [False, True], [False, True], [False, True]]))
    assert (there.method, there.classes) == ("exact", (0, 1))
    found = there.outlook([1, 2, 3, 4, 9])
    assert [one.probability for one in found] == pytest.approx([0, 0.5, 0.75, 1, 1], abs=1e-15)
    assert [one.expected_classes for one in found] == pytest.approx([1, 1.5, 1.75, 2, 2])
    assert [one.batch for one in found] == [1, 2, 3, 4, 9]
    assert {one.error for one in found} == {0}


def test_needed_is_reached_where_the_share_is_met_exactly_in_large_tables_too() -> None:
    """One tile of ten: nine tiles have it with a probability of 9/10, which floats miss by a hair."""
    there = forecast(one_tile_each(10, 1))
    assert [there.batch_for(share) for share in (0.1, 0.3, 0.9, 0.91, 0.999)] == [1, 3, 9, 10, 10]
    assert forecast(one_tile_each(1000, 1)).batch_for(0.999) == 999

    found = forecast(one_tile_each(20_011, 19))
    for share in SHARES[:3]:
        size = found.batch_for(float(share))
        assert all_of_them(20_011, 19, size - 1) < share <= all_of_them(20_011, 19, size)


@given(st.integers(1, 11), st.integers(1, 5), st.floats(0.05, 0.95), st.integers(0, 10_000))
def test_forecast_equals_counting_all_batches(tiles: int, classes: int, rate: float, seed: int) -> None:
    table = np.random.default_rng(seed).random((tiles, classes)) < rate
    held = [frozenset(np.flatnonzero(row).tolist()) for row in table]
    all_held = frozenset().union(*held)
    found, exact = forecast(table), []
    for batch in range(1, tiles + 1):
        unions = [frozenset().union(*some) for some in combinations(held, batch)]
        exact.append(Fraction(sum(union == all_held for union in unions), len(unions)))
        one = found.outlook([batch])[0]
        assert abs(one.probability - exact[-1]) < 1e-12
        assert one.expected_classes == pytest.approx(sum(map(len, unions)) / len(unions), abs=1e-12)
    for share in SHARES:
        assert found.batch_for(float(share)) == next(i for i, p in enumerate(exact, 1) if p >= share)


@pytest.mark.parametrize(("tiles", "classes"), [(1000, 20), (100_000, 17)])
def test_no_accuracy_is_lost_to_the_signs_of_a_million_terms(tiles: int, classes: int) -> None:
    """The terms are as large as 2^20, the sum at most 1; batches beyond 1024 go by logarithms."""
    sizes = [1, 16, 19, 20, 64, 256, 1024, 1025, 4000, 99_000, tiles]
    sizes = [size for size in sizes if size <= tiles]
    found = forecast(one_tile_each(tiles, classes))
    for size, one in zip(sizes, found.outlook(sizes), strict=True):
        tolerance = 1e-9 if size <= 1024 or size > tiles // 2 else 2e-8
        assert abs(one.probability - all_of_them(tiles, classes, size)) < tolerance
        assert one.expected_classes == pytest.approx(classes * size / tiles, rel=1e-9)


@pytest.mark.parametrize("copies", [4, 14])  # 28 classes in one word of bits, 98 in two
def test_many_classes_are_simulated_within_the_error_they_state(copies: int) -> None:
    """Each class several times over: what seven classes have exactly, their copies must have."""
    few = np.random.default_rng(6).random((2003, 7)) < [0.004, 0.1, 0.15, 0.2, 0.4, 0.6, 0.9]
    exact, found = forecast(few), forecast(np.tile(few, copies), seed=3)
    assert (exact.method, found.method) == ("exact", "simulation")
    sizes = [1, 8, 64, 128, 256, 512, 1030, 1500, 2003]
    for one, other in zip(exact.outlook(sizes), found.outlook(sizes), strict=True):
        assert 0 < other.error < 0.01
        assert abs(one.probability - other.probability) < 4 * other.error
        assert other.expected_classes == pytest.approx(copies * one.expected_classes, rel=1e-12)
    for share in (0.9, 0.99):
        reached = exact.outlook([found.batch_for(share)])[0].probability
        assert reached == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 4096))


def test_a_simulation_goes_on_to_the_last_tile_and_follows_from_its_seed() -> None:
    found = forecast(one_tile_each(3003, 21), seed=1)
    for size, one in zip((500, 2500, 2900), found.outlook([500, 2500, 2900]), strict=True):
        assert abs(one.probability - all_of_them(3003, 21, size)) < 4 * one.error
    assert found.batch_for(1) <= 3003
    assert found.batch_for(0.9) == pytest.approx(3003 * 0.9 ** (1 / 21), rel=0.003)

    table = np.random.default_rng(0).random((401, 23)) < 0.1
    first, again, other = (forecast(table, seed=seed).outlook([32])[0] for seed in (1, 1, 2))
    assert first == again != other


def test_classes_that_no_tile_holds_are_not_expected_and_no_tiles_are_refused() -> None:
    table = np.zeros((7, 4), bool)
    table[:, 2] = True
    found = forecast(table)
    assert (found.classes, found.batch_for(0.999)) == ((2,), 1)
    assert found.outlook([1])[0].probability == 1
    nothing = forecast(np.zeros((5, 3), bool))
    assert (nothing.classes, nothing.batch_for(0.9)) == ((), 1)
    assert nothing.outlook([3])[0].expected_classes == 0

    with refused(DatasetError, expected="least"):
        forecast(np.zeros((0, 3), bool))


def test_statistics_are_those_of_a_plain_count(rng: np.random.Generator) -> None:
    counts = np.where(rng.random((131, 5)) < 0.4, rng.integers(0, 90, (131, 5)), 0)
    counts[:, 3] = 0
    scene = np.sort(rng.integers(0, 17, 131)).astype(np.int32)
    found = class_statistics(counts, scene, 32)
    held = [{c for c in range(5) if row[c] >= 32} for row in counts]
    assert found.tiles_K.tolist() == [sum(c in tile for tile in held) for c in range(5)]
    assert found.pixels_K.tolist() == counts.sum(axis=0).tolist()
    assert found.scenes_K.tolist() == [len({int(s) for s in scene[counts[:, c] > 0]}) for c in range(5)]
    assert found.tiles_by_classes.tolist() == [sum(len(tile) == n for tile in held) for n in range(6)]
    together = [[sum({a, b} <= tile for tile in held) for b in range(5)] for a in range(5)]
    assert found.together_KK.tolist() == together
    assert scene_pixels(counts, scene, 18)[17].tolist() == [0] * 5


NO_LIMIT = SamplingConfig(max_repeats_per_tile=10**6)


def union(codes: list[int]) -> int:
    return reduce(lambda a, b: a | b, codes, 0)


def optimum(codes: list[int], batch: int) -> tuple[int, int] | None:
    """(fewest steps, then fewest repeats), by dynamic programming over the set of tiles used so far.

    A row takes a set of tiles that holds all classes and of which none can be left out; a tile of it that
    was used before is a repeat. None: some tile cannot stand in any row that holds all classes.
    """
    tiles, need = len(codes), union(codes)
    sets = [
        chosen
        for size in range(min(batch, tiles) + 1)
        for chosen in combinations(range(tiles), size)
        if union([codes[i] for i in chosen]) == need
        and all(union([codes[i] for i in chosen if i != out]) != need for out in chosen)
    ]
    masks = [sum(1 << i for i in chosen) for chosen in sets]
    for i in range(tiles):
        if not any(mask >> i & 1 or mask.bit_count() < batch for mask in masks):
            return None
    used = np.arange(1 << tiles)
    repeats = np.zeros(1 << tiles, np.int64)
    steps = 0
    while True:
        steps += 1
        options = [np.bitwise_count(used & mask) + repeats[used | mask] for mask in masks]
        repeats = np.min(options, axis=0)
        if tiles + repeats[0] <= steps * batch:
            return steps, int(repeats[0])


def agrees(codes: list[int], classes: int, batch: int) -> bool:
    counts = ((np.array(codes)[:, None] >> np.arange(classes)) & 1) * 100
    best = optimum(codes, batch)
    try:
        found = plan(counts, batch, NO_LIMIT, len(codes), batch)
    except DatasetError:
        return best is None
    return best == (found.steps, found.coverage_repeats) and found.proven and found.fillers < batch


@pytest.mark.parametrize(
    ("classes", "largest"), [(1, 6), (2, 5), (3, 3), pytest.param(3, 5, marks=pytest.mark.slow)]
)
def test_all_tables_of_few_tiles(classes: int, largest: int) -> None:
    for tiles in range(1, largest + 1):
        for codes in combinations_with_replacement(range(1 << classes), tiles):
            for batch in (2, 3, 4):
                assert agrees(list(codes), classes, batch), (codes, batch)


@pytest.mark.slow
def test_all_tables_of_up_to_six_tiles_and_four_classes() -> None:
    """Up to the order of the classes, which changes nothing."""
    turned = [
        [sum((code >> a & 1) << b for a, b in enumerate(order)) for code in range(16)]
        for order in permutations(range(4))
    ]
    for tiles in range(1, 7):
        for codes in combinations_with_replacement(range(16), tiles):
            if all(codes <= tuple(sorted(turn[code] for code in codes)) for turn in turned):
                for batch in (2, 3, 4):
                    assert agrees(list(codes), 4, batch), (codes, batch)


@pytest.mark.slow
@pytest.mark.parametrize("tables", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_tables_of_up_to_twelve_tiles(tables: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(tables):
        share_K = rng.choice([0.15, 0.3, 0.5, 0.7], 4)
        codes = [int((rng.random(4) < share_K) @ [1, 2, 4, 8]) for _ in range(rng.integers(5, 13))]
        batch = int(rng.integers(2, 5))
        assert agrees(codes, 4, batch), (number, codes, batch)


def test_the_limit_of_repeats_holds_in_the_exact_search() -> None:
    """One tile with both rare classes would do alone; within the limit it may stand in three rows only."""
    codes = [1] * 9 + [6, 2, 4]
    counts = ((np.array(codes)[:, None] >> np.arange(3)) & 1) * 100
    free = plan(counts, 3, NO_LIMIT, 0, 0)
    tight = plan(counts, 3, SamplingConfig(max_repeats_per_tile=2), 0, 0)
    assert free.proven
    assert tight.promised == (0, 1, 2)
    assert np.bincount(tight.rows_SB.reshape(-1)).max() <= 4  # one more as a filler
    assert tight.coverage_repeats >= free.coverage_repeats
