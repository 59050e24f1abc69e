"""Small tables: steps and repeats equal an exhaustive search that knows nothing of kinds of tile."""

from __future__ import annotations

from functools import reduce
from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
import pytest

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import SamplingConfig
from segmenter.sampling import exact, plan
from segmenter.sampling.kinds import Kinds, cover_sizes
from segmenter.sampling.search import _fewest_steps

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
    ("classes", "largest"), [(1, 6), (2, 5), (3, 4), pytest.param(3, 5, marks=pytest.mark.slow)]
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


@pytest.mark.parametrize("seed", range(2))
def test_the_fewest_tiles_for_each_set_of_classes(seed: int) -> None:
    """Against all sets of kinds; one kind holds a class that no other has."""
    rng = np.random.default_rng(seed)
    classes = 4
    codes = sorted({8, *rng.integers(1, 8, 5).tolist()} | {1, 2, 4})
    kinds = Kinds(np.array(codes), np.ones(len(codes), np.int64), classes)
    found = cover_sizes(kinds)
    every = [chosen for n in range(len(codes) + 1) for chosen in combinations(codes, n)]
    fewest = [min(len(c) for c in every if union(list(c)) & wanted == wanted) for wanted in range(2**classes)]
    assert found.tolist() == fewest


def test_sets_of_kinds_are_found_without_detours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four kinds of a class each: one set, grown class by class, so that five looks are enough."""
    monkeypatch.setattr(exact, "_TRIED", 6)
    kinds = Kinds(np.array([1, 2, 4, 8]), np.ones(4, np.int64), 4)
    assert exact._minimal_sets(kinds, 4) == [(0, 1, 2, 3)]


@pytest.mark.parametrize(("spare", "searched"), [(0, True), (-1, False)])
def test_a_table_is_searched_up_to_the_last_cell(
    spare: int, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds with three tiles each, four rows at most: 4 × 4 places for each of the numbers 0 to 4."""
    kinds = Kinds(np.array([1, 2]), np.full(2, 3, np.int64), 2)
    monkeypatch.setattr(exact, "_CELLS", 16 * 5 + spare)
    found = exact.exact_rows(kinds, 2, None, 1, 1, 4, np.random.default_rng(0))
    assert (found is not None) is searched


def test_the_least_steps_have_room_for_the_repeats_of_the_scarcest_class() -> None:
    """100 tiles by twos, of which one holds the class: each row has it, and one of the 99 others."""
    kinds = Kinds(np.array([0, 1]), np.array([99, 1]), 1)
    assert _fewest_steps(kinds, 2, 1) == 99
    assert _fewest_steps(kinds, 2, 4) == 100
