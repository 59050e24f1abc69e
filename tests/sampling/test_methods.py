"""Epochs that promise no class: shares of the classes as their papers have them, keyed by seed and epoch."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.base.errors import DatasetError
from segmenter.config.sampling import SamplingConfig
from segmenter.sampling import Plan, plan
from segmenter.sampling.methods import rare_class_odds, repeat_factors
from tests.helpers.refusals import refused

METHODS = ("shuffle", "repeat_factor", "rare_class", "foreground")


def table(tiles: int = 403, seed: int = 0) -> np.ndarray:
    """(tiles, 4) counts: class 0 everywhere, 1 in half, 2 in a twentieth, 3 nowhere with 32 pixels."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(32, 900, (tiles, 4)) * (rng.random((tiles, 4)) < (1, 0.5, 0.05, 0))
    counts[0, 2], counts[:3, 3] = 700, 31
    return counts.astype(np.int64)


def rows(counts: np.ndarray, method: str, epoch: int = 0, batch: int = 16, **settings: Any) -> Plan:
    return plan(counts, batch, SamplingConfig(method=method, **settings), 5, epoch)


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_follows_from_seed_and_epoch(method: str) -> None:
    counts = table()
    first, again, later = rows(counts, method), rows(counts, method), rows(counts, method, 1)
    np.testing.assert_array_equal(first.rows_SB, again.rows_SB)
    assert first.fingerprint == again.fingerprint != later.fingerprint
    assert (first.promised, first.best_effort) == ((), ())
    assert first.steps == later.steps >= -(-len(counts) // 16)

    off = plan(table(), 16, SamplingConfig(coverage="off"), 5, 0)
    assert rows(table(), "shuffle").fingerprint == off.fingerprint


def test_a_fingerprint_tells_the_classes_that_tiles_are_drawn_for() -> None:
    epoch = rows(table(), "rare_class")
    other = Plan(epoch.rows_SB, 0, 0, True, 0, (), (), wanted_SB=epoch.wanted_SB[::-1])
    assert epoch.fingerprint != other.fingerprint


@given(st.integers(1, 200), st.integers(1, 33), st.integers(0, 99), st.floats(0.01, 1))
def test_repeats_are_the_factor_on_average_and_steps_the_same(
    tiles: int, batch: int, epoch: int, threshold: float
) -> None:
    counts = table(tiles, seed=epoch)
    factor_N = repeat_factors(counts, 32, threshold)
    share_K = (counts >= 32).mean(axis=0)
    for i in range(0, tiles, 17):  # the paper's formula, tile by tile
        held = [max(1.0, np.sqrt(threshold / share_K[c])) for c in range(4) if counts[i, c] >= 32]
        assert factor_N[i] == pytest.approx(max(held, default=1.0))
    result = rows(counts, "repeat_factor", epoch, batch, repeat_threshold=threshold)
    assert result.steps == -(-int(np.ceil(factor_N.sum() - 1e-6)) // batch)
    uses_N = np.bincount(result.rows_SB.reshape(-1), minlength=tiles)
    assert (uses_N >= np.floor(factor_N - 1e-6)).all()
    over = (uses_N - np.ceil(factor_N - 1e-6)).clip(0).sum()  # only fillers come on top
    assert over <= result.fillers <= batch


def test_over_many_epochs_a_tile_is_repeated_by_its_factor() -> None:
    counts = table(101)
    factor_N = repeat_factors(counts, 32, 0.9)
    epochs = [rows(counts, "repeat_factor", epoch, 1, repeat_threshold=0.9) for epoch in range(400)]
    uses = [np.bincount(epoch.rows_SB[:, 0]) for epoch in epochs]
    assert factor_N.max() > 3
    np.testing.assert_allclose(np.mean(uses, axis=0), factor_N, atol=0.11)  # 0.025 of deviation, and fillers


def test_rare_classes_are_drawn_by_their_softmax_near_nought_the_rarest_alone() -> None:
    counts = table()
    share_K = counts.sum(axis=0) / counts.sum()
    odds_K = rare_class_odds(counts, 32, 0.1)
    expected = np.exp((1 - share_K) / 0.1) * (1, 1, 1, 0)
    np.testing.assert_allclose(odds_K, expected / expected.sum(), rtol=1e-12)
    epochs = [rows(counts, "rare_class", epoch) for epoch in range(40)]
    wanted = np.stack([one.wanted_SB for one in epochs])
    drawn_K = np.bincount(wanted.reshape(-1), minlength=4) / wanted.size
    np.testing.assert_allclose(drawn_K, odds_K, atol=0.02)
    tiles = np.stack([one.rows_SB for one in epochs])
    assert (counts[tiles, wanted] >= 32).all()

    assert rare_class_odds(table(), 32, 1e-4).tolist() == [0, 0, 1, 0]


def test_a_rare_class_takes_its_tiles_in_turn() -> None:
    """No tile a second time for a class before all others of it have come."""
    counts = table()
    epoch = rows(counts, "rare_class")
    for c in range(3):
        holders = np.flatnonzero(counts[:, c] >= 32)
        uses = np.bincount(epoch.rows_SB[epoch.wanted_SB == c], minlength=len(counts))[holders]
        assert uses.max() - uses.min() <= 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-5, 1e-320])
def test_a_class_that_no_tile_holds_overflows_nowhere(temperature: float) -> None:
    """It is rarer than every class that is held: its own exponential would be infinite."""
    assert rare_class_odds(np.array([[900, 3], [900, 3]]), 32, temperature).tolist() == [1, 0]
    assert rare_class_odds(np.array([[9000, 300, 3]]), 32, temperature).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("batch", "share", "forced"), [(16, 0.33, 5), (2, 0.33, 1), (7, 1.0, 7), (64, 0.33, 21)]
)
def test_foreground_is_a_share_of_each_batch(batch: int, share: float, forced: int) -> None:
    """As in nnU-Net, B − round(B · (1 − share)): 1 of a batch of 2."""
    counts = table()
    epoch = rows(counts, "foreground", 0, batch, foreground_share=share)
    chosen = epoch.wanted_SB >= 0
    assert (chosen.sum(axis=1) == forced).all()
    assert (counts[epoch.rows_SB[chosen], epoch.wanted_SB[chosen]] >= 32).all()
    assert set(epoch.wanted_SB[chosen]) == {0, 1, 2}


def test_foreground_draws_each_class_alike_and_its_tiles_by_pixels() -> None:
    counts = table(60)
    epochs = [rows(counts, "foreground", epoch, 10) for epoch in range(400)]
    wanted = np.stack([epoch.wanted_SB for epoch in epochs]).reshape(-1)
    tiles = np.stack([epoch.rows_SB for epoch in epochs]).reshape(-1)
    drawn_K = np.bincount(wanted[wanted >= 0], minlength=4)
    np.testing.assert_allclose(drawn_K[:3] / drawn_K.sum(), 1 / 3, atol=0.02)
    pixels_N = np.where(counts[:, 2] >= 32, counts[:, 2], 0)
    of_class = np.bincount(tiles[wanted == 2], minlength=60)
    np.testing.assert_allclose(of_class / of_class.sum(), pixels_N / pixels_N.sum(), atol=0.05)


def test_the_rest_of_foreground_shows_all_tiles_before_any_again() -> None:
    """Over the ends of epochs, too: what an epoch has not shown the next one shows."""
    counts = table(101)
    epochs = [rows(counts, "foreground", epoch) for epoch in range(30)]
    uses = np.zeros(101, np.int64)
    for one in epochs:
        assert one.wanted_SB is not None
        uses += np.bincount(one.rows_SB[one.wanted_SB < 0], minlength=101)
        assert uses.max() - uses.min() <= 1
    assert uses.min() >= 20


def test_what_cannot_be_drawn_is_said() -> None:
    nothing = np.full((9, 3), 31)
    for method in ("rare_class", "foreground"):
        with refused(DatasetError, where=f"method: {method}"):
            rows(nothing, method)
    assert rows(nothing, "repeat_factor", batch=4).rows_SB.shape == (3, 4)
    with pytest.raises(DatasetError, match="foreground_share"):
        rows(table(), "foreground", batch=1)
