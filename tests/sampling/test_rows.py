"""A plan is random but for what coverage asks; order for replicas shows each as many classes as it can."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.sampling import held_by_rows, order_for_replicas, plan_epoch
from segmenter.sampling.plan import classes_seen

SEEDS = 2000


def plans(counts: np.ndarray, batch: int, seeds: int = SEEDS) -> np.ndarray:
    """(seeds, steps, batch)"""
    return np.stack([plan_epoch(counts, batch, seed=seed) for seed in range(seeds)])


def together(rows: np.ndarray, tiles: list[int]) -> float:
    """How often two of some tiles share a batch: the mean over all their pairs and plans."""
    inside = np.isin(rows, tiles).sum(axis=2)
    return float((inside * (inside - 1)).sum(axis=1).mean() / (len(tiles) * (len(tiles) - 1)))


@pytest.fixture(scope="module")
def mixed() -> tuple[np.ndarray, np.ndarray]:
    """48 tiles in 8 rows of 6: a common class, one in 24 tiles, one in 10; and their plans."""
    counts = np.zeros((48, 3), np.int64)
    counts[:, 0], counts[:24, 1], counts[20:30, 2] = 99, 99, 99
    return counts, plans(counts, 6)


def test_every_tile_is_equally_likely_at_every_step_and_place_whatever_it_holds(
    mixed: tuple[np.ndarray, np.ndarray],
) -> None:
    _, rows = mixed
    seen = np.stack([np.bincount(rows[:, step].reshape(-1), minlength=48) for step in range(8)])
    expected = len(rows) / 8
    chi_squared = ((seen - expected) ** 2 / expected).sum() * 8 / 7
    # 48 × 7 degrees of freedom, less what rows of fixed length take: mean 336, deviation 26.
    assert chi_squared < 336 + 4 * 26

    counts, rows = mixed
    for c in (1, 2):
        per_step = (counts[rows, c] > 0).sum(axis=(0, 2))
        np.testing.assert_allclose(per_step / per_step.mean(), 1, atol=0.02)

    # A replica's block has no more of the rare class than another.
    counts, rows = mixed
    rare = (counts[rows, 2] > 0).sum(axis=(0, 1))
    np.testing.assert_allclose(rare / rare.mean(), 1, atol=0.03)


def test_what_coverage_asks_says_no_more_than_that(mixed: tuple[np.ndarray, np.ndarray]) -> None:
    """Pairs share a batch as often as among shuffles of which those that do not cover are thrown away."""
    counts, rows = mixed
    rng = np.random.default_rng(0)
    kept: list[np.ndarray] = []
    while len(kept) < SEEDS // 4:
        tries = np.stack([rng.permutation(48).reshape(8, 6) for _ in range(2000)])
        holds = np.stack([held_by_rows(one, counts, 32).all() for one in tries])
        kept += list(tries[holds])
    uniform = np.stack(kept)
    for tiles in (list(range(20)), list(range(24)), list(range(20, 30)), list(range(30, 48))):
        assert together(rows, tiles) == pytest.approx(together(uniform, tiles), rel=0.06)


@given(st.integers(0, 10_000), st.sampled_from([(16, 16, 16, 16), (5, 4), (3, 3, 2), (1, 2, 0, 4), (7,)]))
def test_only_the_order_changes(seed: int, shares: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    row = rng.integers(0, 1000, sum(shares))
    holds = rng.random((len(row), 5)) < rng.uniform(0.05, 0.6, 5)
    ordered = order_for_replicas(row, shares, holds)
    assert sorted(ordered) == sorted(row)
    np.testing.assert_array_equal(order_for_replicas(row, shares, holds), ordered)


def test_replicas_see_more_classes_than_in_blocks_as_they_come() -> None:
    rng = np.random.default_rng(1)
    shares = (16,) * 4
    before = after = most = 0
    for _ in range(50):
        holds = rng.random((64, 8)) < [0.03, 0.06, 0.08, 0.1, 0.2, 0.3, 0.5, 0.8]
        before += classes_seen(shares, holds)
        after += classes_seen(shares, holds[order_for_replicas(np.arange(64), shares, holds)])
        most += int(np.minimum(holds.sum(axis=0), 4).sum())
    assert before < after == most  # a class in n tiles is in at most n replicas

    with pytest.raises(ValueError, match="4 tiles"):
        order_for_replicas(np.arange(4), (2, 1), np.ones((4, 2), bool))
