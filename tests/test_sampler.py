"""Law 1, coverage: each promised class in every row, every tile used, repeats only where forced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.errors import DatasetError
from segmenter.sampler import Plan, held_by_rows, plan
from segmenter.schema import SamplingConfig

RELAXED = SamplingConfig()


def table(tiles: int, shares: list[float], seed: int) -> np.ndarray:
    """(tiles, classes) pixel counts; a class is in a share of the tiles, somewhere at least."""
    rng = np.random.default_rng(seed)
    counts = np.where(
        rng.random((tiles, len(shares))) < shares, rng.integers(32, 5000, (tiles, len(shares))), 0
    )
    for c in range(len(shares)):
        counts[rng.integers(tiles), c] = 40
    return counts.astype(np.int64)


@given(
    st.integers(1, 300),
    st.lists(st.sampled_from([0.01, 0.05, 0.3, 0.9]), min_size=1, max_size=8),
    st.integers(8, 40),
    st.integers(0, 10_000),
)
def test_coverage(tiles: int, shares: list[float], batch: int, seed: int) -> None:
    counts = table(tiles, shares, seed)
    result = plan(counts, batch, RELAXED, seed, epoch=seed % 5)
    held = held_by_rows(result.rows_SB, counts, RELAXED.min_pixels)
    assert held[:, list(result.promised)].all()
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=tiles)
    assert uses.min() >= 1
    assert uses.sum() == tiles + result.coverage_repeats + result.fillers
    assert set(result.promised) | set(result.best_effort) == set(range(len(shares)))
    limit = 1 + RELAXED.max_repeats_per_tile
    for c in result.best_effort:  # only what would really be shown too often
        assert (counts[:, c] >= 32).sum() * limit < result.rows_SB.shape[0] + 1


def test_no_repeats_where_the_counts_force_none() -> None:
    counts = table(640, [0.9, 0.5, 0.2], 3)
    result = plan(counts, 64, RELAXED, 0, 0)
    assert (result.steps, result.coverage_repeats, result.fillers) == (10, 0, 0)
    assert np.bincount(result.rows_SB.reshape(-1)).tolist() == [1] * 640


def test_a_scarce_class_is_repeated_evenly_and_as_seldom_as_it_must() -> None:
    counts = np.full((100, 2), 0, np.int64)
    counts[:, 0], counts[:4, 1] = 500, 500
    result = plan(counts, 10, RELAXED, 0, 0)
    need = result.steps - 4
    assert result.coverage_repeats == need
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=100)[:4]
    assert uses.max() - uses.min() <= 2  # fillers may hit one of them once more


def test_too_rare_is_best_effort_and_said() -> None:
    counts = np.zeros((1000, 2), np.int64)
    counts[:, 0], counts[0, 1] = 500, 500
    result = plan(counts, 10, RELAXED, 0, 0)
    assert (result.promised, result.best_effort) == ((0,), (1,))


def test_repeats_keep_their_limit_where_they_add_steps() -> None:
    """Four classes that exclude each other in rows of four: each row is all repeats but one."""
    counts = np.zeros((1180, 4), np.int64)
    counts[:1000, 0], counts[1000:1060, 1], counts[1060:1120, 2], counts[1120:, 3] = 99, 99, 99, 99
    result = plan(counts, 4, RELAXED, 0, 0)
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=1180)
    assert uses.min() >= 1
    assert uses.max() <= 1 + RELAXED.max_repeats_per_tile + 1  # a filler may hit a repeated tile
    assert result.best_effort


def test_strict_refuses_naming_class_tiles_steps_and_the_batch_that_would_do() -> None:
    counts = np.zeros((100, 2), np.int64)
    counts[:, 0], counts[:4, 1] = 500, 500
    with pytest.raises(
        DatasetError, match=r"class 1 is held by 4 tiles, an epoch has 10 steps.*of 25 would do"
    ):
        plan(counts, 10, SamplingConfig(coverage="strict"), 0, 0)
    plan(counts, 25, SamplingConfig(coverage="strict"), 0, 0)


def test_more_classes_than_places_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"expected training\.global_batch of at least 5"):
        plan(np.full((20, 5), 100, np.int64), 4, RELAXED, 0, 0)


def test_no_tiles_is_refused() -> None:
    with pytest.raises(DatasetError, match="no tiles to train on"):
        plan(np.zeros((0, 3), np.int64), 4, RELAXED, 0, 0)


def test_a_plan_follows_from_seed_and_epoch() -> None:
    counts = table(200, [0.5, 0.1], 1)

    def rows(seed: int, epoch: int) -> list[list[int]]:
        return plan(counts, 16, RELAXED, seed, epoch).rows_SB.tolist()

    assert rows(1, 2) == rows(1, 2)
    assert rows(1, 2) != rows(1, 3)
    assert rows(1, 2) != rows(2, 2)


def test_off_is_a_plain_shuffle() -> None:
    result: Plan = plan(table(70, [0.5], 0), 16, SamplingConfig(coverage="off"), 0, 0)
    assert (result.steps, result.fillers, result.promised) == (5, 10, ())
    assert np.bincount(result.rows_SB.reshape(-1), minlength=70).min() == 1
