"""Small tables: steps and repeats equal an exhaustive search that knows nothing of kinds of tile."""

from functools import reduce
from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
import pytest

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import SamplingConfig
from segmenter.sampling import plan

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
