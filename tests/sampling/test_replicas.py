"""Order for replicas: permutes a row, and shows the replicas as many classes as the batch allows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.sampling import order_for_replicas
from segmenter.sampling.replicas import classes_seen


@given(st.integers(0, 10_000), st.sampled_from([(16, 16, 16, 16), (5, 4), (3, 3, 2), (1, 2, 0, 4), (7,)]))
def test_only_the_order_changes(seed: int, shares: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    row = rng.integers(0, 1000, sum(shares))
    holds = rng.random((len(row), 5)) < rng.uniform(0.05, 0.6, 5)
    ordered = order_for_replicas(row, shares, holds)
    assert sorted(ordered) == sorted(row)
    np.testing.assert_array_equal(order_for_replicas(row, shares, holds), ordered)


def best(holds: np.ndarray, share: int) -> int:
    """The most that two replicas can see, over all ways to split a row."""
    tiles = range(len(holds))
    return max(
        classes_seen((share, len(holds) - share), holds[[*first, *(i for i in tiles if i not in first)]])
        for first in combinations(tiles, share)
    )


def test_as_many_classes_as_the_batch_allows() -> None:
    """Against all ways to split eight tiles over two replicas."""
    rng = np.random.default_rng(3)
    reached = []
    for _ in range(200):
        holds = rng.random((8, 6)) < rng.uniform(0.1, 0.5, 6)
        order = order_for_replicas(np.arange(8), (4, 4), holds)
        reached.append(classes_seen((4, 4), holds[order]) == best(holds, 4))
    assert np.mean(reached) > 0.98  # swaps of two tiles do not always find the last one


def test_better_than_blocks_as_they_come() -> None:
    rng = np.random.default_rng(1)
    shares = (16,) * 4
    before = after = most = 0
    for _ in range(50):
        holds = rng.random((64, 8)) < [0.03, 0.06, 0.08, 0.1, 0.2, 0.3, 0.5, 0.8]
        before += classes_seen(shares, holds)
        after += classes_seen(shares, holds[order_for_replicas(np.arange(64), shares, holds)])
        most += int(np.minimum(holds.sum(axis=0), 4).sum())
    assert before < after == most  # a class in n tiles is in at most n replicas


def test_shares_have_to_fit() -> None:
    with pytest.raises(ValueError, match="shares of 4 tiles"):
        order_for_replicas(np.arange(4), (2, 1), np.ones((4, 2), bool))
