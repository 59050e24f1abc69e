"""Law 1 with amounts: each step holds its quota of each class, and tiles are repeated only where forced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import SamplingConfig
from segmenter.sampling import Plan, TileStrata, plan
from segmenter.sampling.methods import rare_class_odds
from tests.helpers.class_tables import table


def rarity(**settings: Any) -> SamplingConfig:
    return SamplingConfig(quota="rarity", **settings)


def rare_class_uses(counts: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """Uses of each tile by the rule: how often rare-class sampling draws it in `lift` passes, once at least."""
    holds = counts >= 32
    odds = rare_class_odds(counts, 32, config.rare_temperature)
    drawn = config.lift * len(counts) * holds @ (odds / np.maximum(1, holds.sum(axis=0)))
    return np.clip(drawn, 1, 1 + config.max_repeats_per_tile)


def check(result: Plan, counts: np.ndarray, config: SamplingConfig) -> None:
    """All that a plan with quotas promises of itself."""
    holds = counts >= 32
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=len(counts))
    assert uses.min() >= 1
    assert uses.max() <= 1 + config.max_repeats_per_tile + -(-result.fillers // len(counts))
    assert uses.sum() == len(counts) + result.coverage_repeats + result.fillers
    assert result.repeats_bound <= result.coverage_repeats
    rows = result.rows_SB.reshape(result.steps * result.blocks, -1)
    shown = holds[rows].sum(axis=1)
    for c, quota in zip(result.promised, result.quotas, strict=False):
        assert 1 <= quota.given <= quota.wished
        assert shown[:, c].min() >= int(quota.given)
        assert np.minimum(shown[:, c], np.ceil(quota.given)).mean() >= quota.given - 1e-9


def forced(counts: np.ndarray, result: Plan, config: SamplingConfig) -> int:
    """The least uses beyond the rule's with which tiles come to the amounts, by a solver of whole numbers."""
    kinds, tiles = np.unique(counts[:, list(result.promised)] >= 32, axis=0, return_counts=True)
    _, kind = np.unique(counts[:, list(result.promised)] >= 32, axis=0, return_inverse=True)
    ruled = np.bincount(kind.reshape(-1), ruled_uses(counts, config))
    amount = np.array([quota.given for quota in result.quotas]) * result.steps * result.blocks
    lacking = np.where(kinds.all(axis=0), 0, np.maximum(0, np.round(amount) - ruled @ kinds))
    found = milp(
        np.ones(len(kinds)),
        constraints=LinearConstraint(kinds.T.astype(float), lacking, np.inf),
        integrality=np.ones(len(kinds)),
        bounds=Bounds(0, tiles * (1 + config.max_repeats_per_tile) - ruled),
    )
    return round(ruled.sum() - len(counts) + found.fun)


def ruled_uses(counts: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """Uses of each tile, so that those of its kind come to the rule's, rounded."""
    _, kind, tiles = np.unique(counts >= 32, axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    each = np.bincount(kind, rare_class_uses(counts, config)) / tiles
    total = tiles + np.floor(tiles * np.floor((each - 1) * 1024 + 1e-6) / 1024 + 0.5)
    return (total / tiles)[kind]


@given(
    st.integers(1, 400),
    st.lists(st.sampled_from([0.01, 0.05, 0.3, 0.9, 1.0]), min_size=1, max_size=8),
    st.integers(1, 64),
    st.integers(0, 10_000),
    st.sampled_from([1, 1.5, 3, 7]),
    st.sampled_from([0, 1, 4]),
)
def test_each_step_holds_its_quota(
    tiles: int, shares: list[float], batch: int, seed: int, lift: float, most: int
) -> None:
    counts = table(tiles, shares, seed)
    config = rarity(lift=lift, max_repeats_per_tile=most)
    try:
        bare = plan(counts, batch, SamplingConfig(max_repeats_per_tile=most), seed, 1)
    except DatasetError:  # too few places for one of each, as without quotas
        return
    result = plan(counts, batch, config, seed, 1)
    check(result, counts, config)
    assert result.promised == bare.promised  # no class loses its place in every step to another's amount
    assert result.steps >= bare.steps or result.quotas == ()
    again = [plan(counts, batch, config, seed, epoch) for epoch in (0, 1)]
    assert again[0].steps == result.steps
    assert again[1].fingerprint == result.fingerprint


@pytest.mark.parametrize("seed", range(12))
def test_tiles_are_used_as_rare_class_sampling_draws_them_and_no_more_than_amounts_force(seed: int) -> None:
    """Against a solver: where the plan says that it is proven, and nearly everywhere else."""
    rng = np.random.default_rng(seed)
    counts = table(int(rng.integers(200, 2000)), rng.choice([0.02, 0.05, 0.1, 0.4, 0.8], 5).tolist(), seed)
    config = rarity(lift=int(rng.choice([1, 2, 4])), max_repeats_per_tile=20)
    result = plan(counts, 16, config, seed, 0)
    least = forced(counts, result, config)
    assert least <= result.coverage_repeats <= 1.01 * least
    assert result.coverage_repeats == least or not result.proven
    room = result.steps * 16 - len(counts) - result.coverage_repeats
    assert 0 <= room < 16
    uses = np.bincount(result.rows_SB.reshape(-1))
    beyond = result.fillers + result.coverage_repeats + len(counts) - ruled_uses(counts, config).sum()
    assert np.maximum(0, np.floor(ruled_uses(counts, config) + 1e-9) - uses).sum() == 0
    assert np.maximum(0, uses - np.ceil(ruled_uses(counts, config) - 1e-9)).sum() <= beyond + 1e-6
    odds = rare_class_odds(counts, 32, config.rare_temperature)
    lost = 1 - config.lift * len(counts) / (result.steps * 16)  # to tiles without rare classes
    for c, quota in zip(result.promised, result.quotas, strict=True):
        most = (1 + config.max_repeats_per_tile) * (counts[:, c] >= 32).sum() / result.steps
        assert quota.given >= min(16 * odds[c] * (1 - lost), most, quota.wished) * 0.98 - 1 / result.steps


def test_a_lift_nears_the_plan_to_rare_class_sampling() -> None:
    """Tiles of each class in a step, as many as rare-class sampling shows on average."""
    counts, free = table(3000, [0.9, 0.4, 0.15, 0.05], 1), 10**6
    holds, odds = counts >= 32, rare_class_odds(counts, 32, 0.1)
    drawn = 16 * holds.T @ holds @ (odds / holds.sum(axis=0))
    far = []
    for lift in (1, 3, 30):
        rows = plan(counts, 16, rarity(lift=lift, max_repeats_per_tile=free), 0, 0).rows_SB
        far.append(np.abs(holds[rows].sum(axis=1).mean(axis=0) - drawn).max())
    assert far[0] > far[1] > far[2]
    assert far[2] < 0.02 * drawn.max()


def fewest_steps(counts: np.ndarray, wish: np.ndarray, config: SamplingConfig) -> int:
    """By trying: the first number of steps that has room for all uses and what one tile a row repeats."""
    kinds, kind, tiles = np.unique(counts >= 32, axis=0, return_inverse=True, return_counts=True)
    ruled = np.bincount(kind.reshape(-1), ruled_uses(counts, config))
    held = ruled @ kinds
    for steps in range(-(-round(ruled.sum()) // 16), 10**6):
        lacking = np.maximum(0, np.maximum(steps, np.minimum(np.floor(wish * steps), np.round(held))) - held)
        constraint = LinearConstraint(kinds.T.astype(float), lacking, np.inf)
        bounds = Bounds(0, tiles * (1 + config.max_repeats_per_tile) - ruled)
        one = np.ones(len(kinds))
        repeats = milp(one, constraints=constraint, integrality=one, bounds=bounds)
        if repeats.success and ruled.sum() + round(repeats.fun) <= steps * 16:
            return steps
    raise AssertionError


@pytest.mark.parametrize("seed", range(6))
def test_steps_are_no_more_than_needed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = table(int(rng.integers(100, 300)), [0.1, 0.2, 0.5], seed)
    result = plan(counts, 16, rarity(), seed, 0)
    wish = np.array([quota.wished for quota in result.quotas])
    assert result.steps == fewest_steps(counts, wish, rarity()) or not result.proven


def test_what_is_asked_by_hand_is_given_where_the_tiles_allow_it() -> None:
    counts = table(900, [0.9, 0.3, 0.05], 4)
    names = ["land", "road", "car"]
    result = plan(counts, 16, SamplingConfig(quotas={"car": 3}, max_repeats_per_tile=9), 0, 0, names=names)
    car = dict(zip(result.promised, result.quotas, strict=True))[2]
    assert (car.wished, car.given) == (3, 3)
    assert ((counts >= 32)[result.rows_SB].sum(axis=1)[:, 2] >= 3).all()
    few = plan(counts, 16, SamplingConfig(quotas={"car": 3}, max_repeats_per_tile=1), 0, 0, names=names)
    check(few, counts, SamplingConfig(quotas={"car": 3}, max_repeats_per_tile=1))
    car = dict(zip(few.promised, few.quotas, strict=True))[2]
    assert 1 < car.given < car.wished == 3
    with pytest.raises(DatasetError, match=r"boat"):
        plan(counts, 16, SamplingConfig(quotas={"boat": 3}), 0, 0, names=names)


def test_a_quota_holds_whatever_else_there_is() -> None:
    """A class that all tiles hold has one, too; classes in no tile, and those too rare, take no place."""
    config = SamplingConfig(quotas={"c1": 5})
    names = [f"c{i}" for i in range(8)]
    counts = np.full((40, 2), 4000)
    result = plan(counts, 8, config, 0, 0, names=names[:2])
    assert (result.quotas[1], result.least_tiles) == ((5, 5), {0: 1, 1: 5})
    counts = np.zeros((100, 8), int)
    counts[:, 0], counts[:50, 1], counts[99, 2] = 4000, 200, 50  # c2 in one tile, c3 to c7 in none
    result = plan(counts, 8, SamplingConfig(quotas={"c1": 4}), 0, 0, names=names)
    assert (result.promised, result.best_effort) == ((0, 1), (2,))
    assert result.quotas[1] == (4, 4)
    check(result, counts, config)
    alone, beside = (plan(some, 8, rarity(), 0, 0) for some in (counts[:, :2], counts))
    assert alone.quotas == beside.quotas


def test_amounts_that_do_not_fit_into_a_step_shrink_and_are_named() -> None:
    counts = table(300, [0.9, 0.6, 0.5], 7)
    quotas = {"a": 8, "b": 8}
    result = plan(counts, 16, SamplingConfig(quotas=quotas), 0, 0, names=list("abc"))
    assert [quota.wished for quota in result.quotas] == [8, 8, 1]
    assert sum(quota.given for quota in result.quotas) <= 16
    assert min(quota.given for quota in result.quotas[:2]) > 7
    check(result, counts, SamplingConfig(quotas=quotas))


def test_a_class_shares_its_tiles_among_the_scales_that_are_promised_it() -> None:
    counts = np.full((600, 2), 4000)
    counts[:, 1] = 0
    counts[:97, 1] = counts[597:, 1] = 50
    strata = TileStrata((np.arange(600) >= 590).astype(np.int32), ("0.3–1 m", "1–4 m"))
    config = SamplingConfig(quotas={"car": 4}, scale_strata=(0.3, 1.0))
    result = plan(counts, 16, config, 0, 0, names=["land", "car"], strata=strata)
    of_car = [quota for part, quota in zip(result.parts, result.quotas, strict=True) if part.class_id == 1]
    assert [quota.wished for quota in of_car] == [4]  # at 1–4 m there are three tiles, too few to be promised


def test_a_tile_stands_once_in_a_row_where_that_can_be_and_else_counts_once() -> None:
    counts = table(112, [0.9, 0.1], 3)
    result = plan(counts, 35, rarity(max_repeats_per_tile=10), 0, 0)
    for row in result.rows_SB:
        assert len(np.unique(row[counts[row, 1] >= 32])) >= int(result.quotas[1].given)

    # Some kinds here have one tile, which is used five times.
    for seed in range(8):
        counts = table(200, [0.03, 0.1, 0.5, 0.05], seed)
        rows = np.sort(plan(counts, 16, rarity(), seed, 0).rows_SB, axis=1)
        assert (rows[:, 1:] == rows[:, :-1]).sum() == 0


@pytest.mark.parametrize("replicas", [2, 4])
def test_each_part_of_a_replica_holds_its_quota(replicas: int) -> None:
    counts = table(700, [0.9, 0.3, 0.05], 5)
    config = rarity(per_replica="guarantee")
    result = plan(counts, 32, config, 0, 0, replicas=replicas)
    assert result.blocks == replicas
    assert max(quota.given for quota in result.quotas) > 1
    check(result, counts, config)


def test_each_class_has_a_quota_at_each_scale() -> None:
    counts, rng = table(600, [0.9, 0.4, 0.1], 6), np.random.default_rng(6)
    strata = TileStrata(rng.integers(0, 2, 600).astype(np.int32), ("0.3–1 m", "1–4 m"))
    config = SamplingConfig(quota="rarity", scale_strata=(0.3, 1.0))
    result = plan(counts, 32, config, 0, 0, names=["land", "road", "car"], strata=strata)
    assert len(result.quotas) == len(result.parts) == 6
    for part, quota in zip(result.parts, result.quotas, strict=True):
        there = (counts[:, part.class_id] >= 32) & (strata.number_N == part.stratum)
        shown = there[result.rows_SB].sum(axis=1)
        assert shown.min() >= int(quota.given)
        assert np.minimum(shown, np.ceil(quota.given)).mean() >= quota.given - 1e-9
    assert max(quota.given for quota in result.quotas) > 1
