"""Law 1 with amounts and by scale: each step holds its quota of a class, and each class in each stratum."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import SamplingConfig
from segmenter.sampling import Part, Plan, TileStrata, plan
from segmenter.sampling.methods import rare_class_odds
from segmenter.sampling.quotas import part_table
from tests.helpers.class_tables import table
from tests.helpers.refusals import refused


def rarity(**settings: Any) -> SamplingConfig:
    return SamplingConfig(quota="rarity", **settings)


def rare_class_uses(counts: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """Uses of each tile by the rule: as `lift` passes of rare-class sampling draw it, once at least."""
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
    total = tiles + np.floor(tiles * np.rint((each - 1) * 1024) / 1024 + 0.5)
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


@given(st.integers(1, 3000), st.integers(0, 99), st.sampled_from([1, 1.5, 4]), st.sampled_from([0, 4]))
def test_uses_are_drawn_for_classes_as_often_as_rare_class_sampling_draws_them(
    tiles: int, seed: int, lift: float, most: int
) -> None:
    """For classes that the tile holds; each tile as often as the rule says, but for chance."""
    counts = table(tiles, [0.9, 0.4, 0.15, 0.05], seed)
    config = rarity(lift=lift, max_repeats_per_tile=most)
    result = plan(counts, 16, config, seed, 0)
    holds, wanted = counts >= 32, result.wanted_SB
    assert wanted.shape == result.rows_SB.shape
    assert holds[result.rows_SB, wanted][wanted >= 0].all()
    assert np.isin(wanted, [-1, *result.promised]).all()
    held = holds & np.isin(np.arange(holds.shape[1]), result.promised)
    odds = rare_class_odds(counts, 32, config.rare_temperature) * held.any(axis=0)
    each = lift * tiles * held * (odds / odds.sum() / np.maximum(1, held.sum(axis=0)))
    share = (each / np.maximum(1, each.sum(axis=1, keepdims=True)))[result.rows_SB]
    drawn = np.bincount(wanted[wanted >= 0], minlength=counts.shape[1])
    deviation = np.sqrt((share * (1 - share)).sum(axis=(0, 1)))
    assert (np.abs(drawn - share.sum(axis=(0, 1))) <= 5 * deviation + 1).all()


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
    result = plan(
        part_table(counts, names=names), 16, SamplingConfig(quotas={"car": 3}, max_repeats_per_tile=9), 0, 0
    )
    car = dict(zip(result.promised, result.quotas, strict=True))[2]
    assert (car.wished, car.given) == (3, 3)
    assert ((counts >= 32)[result.rows_SB].sum(axis=1)[:, 2] >= 3).all()
    few = plan(
        part_table(counts, names=names), 16, SamplingConfig(quotas={"car": 3}, max_repeats_per_tile=1), 0, 0
    )
    check(few, counts, SamplingConfig(quotas={"car": 3}, max_repeats_per_tile=1))
    car = dict(zip(few.promised, few.quotas, strict=True))[2]
    assert 1 < car.given < car.wished == 3
    with pytest.raises(DatasetError, match=r"boat"):
        plan(part_table(counts, names=names), 16, SamplingConfig(quotas={"boat": 3}), 0, 0)


def test_by_hand_a_class_is_used_for_its_amount_alone() -> None:
    """In place of its odds: so that it can have fewer tiles than these would give it."""
    counts, names = table(600, [0.9, 0.4, 0.05], 4), ["land", "road", "car"]
    by_odds, few = (
        plan(part_table(counts, names=names), 16, rarity(quotas=quotas), 0, 0) for quotas in ({}, {"car": 1})
    )
    held = (counts >= 32)[:, 2]
    assert held[by_odds.rows_SB].sum() > 4 * held.sum()
    assert few.least_tiles[2] == 1
    assert held[few.rows_SB].sum() <= max(held.sum(), few.steps) + few.fillers
    assert not (few.wanted_SB == 2).any()


def test_a_quota_holds_whatever_else_there_is() -> None:
    """A class that all tiles hold has one, too; classes in no tile, and those too rare, take no place."""
    config = SamplingConfig(quotas={"c1": 5})
    names = [f"c{i}" for i in range(8)]
    counts = np.full((40, 2), 4000)
    result = plan(part_table(counts, names=names[:2]), 8, config, 0, 0)
    assert (result.quotas[1], result.least_tiles) == ((5, 5), {0: 1, 1: 5})
    counts = np.zeros((100, 8), int)
    counts[:, 0], counts[:50, 1], counts[99, 2] = 4000, 200, 50  # c2 in one tile, c3 to c7 in none
    result = plan(part_table(counts, names=names), 8, SamplingConfig(quotas={"c1": 4}), 0, 0)
    assert (result.promised, result.best_effort) == ((0, 1), (2,))
    assert result.quotas[1] == (4, 4)
    check(result, counts, config)
    alone, beside = (plan(some, 8, rarity(), 0, 0) for some in (counts[:, :2], counts))
    assert alone.quotas == beside.quotas


def test_amounts_that_do_not_fit_into_a_step_shrink_and_are_named() -> None:
    counts = table(300, [0.9, 0.6, 0.5], 7)
    quotas = {"a": 8, "b": 8}
    result = plan(part_table(counts, names=list("abc")), 16, SamplingConfig(quotas=quotas), 0, 0)
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
    result = plan(part_table(counts, strata, ["land", "car"]), 16, config, 0, 0)
    of_car = [quota for part, quota in zip(result.parts, result.quotas, strict=True) if part.class_id == 1]
    assert [quota.wished for quota in of_car] == [4]  # at 1–4 m there are three tiles, too few to be promised


def test_a_tile_stands_once_in_a_row_where_that_can_be_and_else_counts_once() -> None:
    counts = table(112, [0.9, 0.1], 3)
    result = plan(counts, 35, rarity(max_repeats_per_tile=10), 0, 0)
    for row in result.rows_SB:
        assert len(np.unique(row[counts[row, 1] >= 32])) >= int(result.quotas[1].given)

    # As many uses as rare-class sampling would make are more than there are rows.
    counts = table(100, [0.9, 0.3, 0.06], 2)
    result = plan(counts, 32, rarity(max_repeats_per_tile=20), 0, 0)
    assert np.bincount(result.rows_SB.ravel()).max() <= result.steps
    rows = np.sort(result.rows_SB, axis=1)
    assert (rows[:, 1:] == rows[:, :-1]).sum() == 0

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
    result = plan(part_table(counts, strata, ["land", "road", "car"]), 32, config, 0, 0)
    assert len(result.quotas) == len(result.parts) == 6
    for part, quota in zip(result.parts, result.quotas, strict=True):
        there = (counts[:, part.class_id] >= 32) & (strata.number_N == part.stratum)
        shown = there[result.rows_SB].sum(axis=1)
        assert shown.min() >= int(quota.given)
        assert np.minimum(shown, np.ceil(quota.given)).mean() >= quota.given - 1e-9
    assert max(quota.given for quota in result.quotas) > 1


CONFIG = SamplingConfig(scale_strata=(0.3, 1.0))
TITLES = ("0.05–0.3 m", "0.3–1 m", "1–4 m")
NAMES = ("water", "road", "tree")


def strata_table(tiles: int, strata: int, classes: int, seed: int) -> tuple[np.ndarray, TileStrata]:
    rng = np.random.default_rng(seed)
    counts = np.where(rng.random((tiles, classes)) < 0.5, rng.integers(32, 900, (tiles, classes)), 0)
    return counts, TileStrata(rng.integers(0, strata, tiles).astype(np.int32), TITLES[:strata])


def rows_hold(rows_SB: np.ndarray, counts: np.ndarray, strata: TileStrata, part: Part) -> np.ndarray:
    """(steps,) whether a row has a tile of the stratum that holds the class; by plain loops."""
    return np.array(
        [
            any(counts[i, part.class_id] >= 32 and part.stratum in (None, strata.number_N[i]) for i in row)
            for row in rows_SB
        ]
    )


@given(st.integers(20, 150), st.integers(2, 3), st.integers(1, 4), st.integers(0, 999))
def test_every_row_holds_every_class_at_every_scale(tiles: int, strata: int, classes: int, seed: int) -> None:
    counts, by_scale = strata_table(tiles, strata, classes, seed)
    result = plan(part_table(counts, by_scale), 16, CONFIG, seed, 1)
    for part in result.promises:
        assert rows_hold(result.rows_SB, counts, by_scale, part).all()
    for c in range(classes):
        there = {int(t) for t in by_scale.number_N[counts[:, c] > 0]}
        said = {p.stratum for p in (*result.parts, *result.rare_parts) if p.class_id == c}
        if len(there) > 1:
            assert said - {None} == there  # none is left out in silence
        held = rows_hold(result.rows_SB, counts, by_scale, Part(c)).all()
        assert held == (c in result.promised) or c in result.best_effort
    assert np.bincount(result.rows_SB.reshape(-1), minlength=tiles).min() >= 1


def test_no_row_has_fewer_tiles_of_a_class_than_its_plan_tells() -> None:
    """Few tiles, where a class may be promised at one scale and as a whole, which one tile fulfils."""
    rng = np.random.default_rng(5)
    both = 0
    for _ in range(250):
        tiles, classes, batch = int(rng.integers(4, 40)), int(rng.integers(1, 7)), int(rng.choice([4, 6, 8]))
        held = rng.random((tiles, classes)) < rng.random(classes) * rng.choice([0.1, 0.5, 1])
        counts = held * rng.integers(1, 200, (tiles, classes))
        by_scale = TileStrata(rng.integers(0, 2, tiles).astype(np.int32), TITLES[:2])
        try:
            result = plan(part_table(counts, by_scale), batch, CONFIG, 0, 0)
        except DatasetError:  # no batch of so many tiles holds all
            continue
        whole = {part.class_id for part in result.promises if part.stratum is None}
        both += any(part.class_id in whole for part in result.promises if part.stratum is not None)
        for c, least in result.least_tiles.items():
            assert ((counts[:, c] >= 32)[result.rows_SB].sum(axis=1) >= least).all()
    assert both > 0


def test_the_classes_alone_would_not_hold_them_at_every_scale() -> None:
    counts, by_scale = strata_table(150, 3, 3, 0)
    plain, split = (plan(part_table(counts, s), 16, CONFIG, 0, 0) for s in (None, by_scale))
    parts = split.parts
    assert len(parts) == 9
    assert all(rows_hold(split.rows_SB, counts, by_scale, part).all() for part in parts)
    assert not all(rows_hold(plain.rows_SB, counts, by_scale, part).all() for part in parts)


def test_a_class_too_rare_at_each_scale_is_still_promised_as_a_whole() -> None:
    """Three tiles with water at each of three scales: those of one scale serve 15 of some 31 steps."""
    counts = np.zeros((480, 2), np.int64)
    counts[:, 1] = 500
    counts[:9, 0] = 100
    by_scale = TileStrata(np.arange(480, dtype=np.int32) % 3, TITLES)
    result = plan(part_table(counts, by_scale), 16, CONFIG, 0, 0)
    assert result.steps >= 30
    assert result.promised == (0, 1)
    assert result.best_effort == ()
    assert Part(0) in result.parts
    assert result.rare_parts == (Part(0, 0), Part(0, 1), Part(0, 2))
    assert rows_hold(result.rows_SB, counts, by_scale, Part(0)).all()


def test_one_stratum_is_the_plan_of_the_classes() -> None:
    counts, _ = strata_table(90, 1, 4, 3)
    alone = TileStrata(np.zeros(90, np.int32), ("0.5 m",))
    split, plain = plan(part_table(counts, alone), 8, CONFIG, 2, 5), plan(counts, 8, CONFIG, 2, 5)
    assert split.fingerprint == plain.fingerprint
    assert (split.promised, split.best_effort) == (plain.promised, plain.best_effort)


def test_what_cannot_be_planned_names_the_class_at_its_scale() -> None:
    counts = np.kron(np.eye(6, dtype=np.int64), np.full((20, 1), 100)).reshape(120, 6)[:, :3]
    counts[60:] = counts[:60]
    by_scale = TileStrata((np.arange(120) // 60).astype(np.int32), TITLES[:2])
    expected = r"of 4 tiles cannot hold all 6 classes \(water at 0.05–0.3 m, water at 0.3–1 m, road at"
    with pytest.raises(DatasetError, match=expected):
        plan(part_table(counts, by_scale, NAMES), 4, CONFIG, 0, 0)

    counts = np.full((64, 2), 100, np.int64)
    by_scale = TileStrata(np.r_[0, np.ones(63)].astype(np.int32), TITLES[:2])
    strict = CONFIG.model_copy(update={"coverage": "strict"})
    with refused(DatasetError, fault="water at 0.05–0.3 m"):
        plan(part_table(counts, by_scale, NAMES[:2]), 8, strict, 0, 0)

    counts, by_scale = np.full((90, 16), 100, np.int64), TileStrata(np.arange(90, dtype=np.int32) % 3, TITLES)
    with refused(DatasetError, where="scale_strata", got="16 and 48"):
        plan(part_table(counts, by_scale), 64, CONFIG, 0, 0)


def test_each_replica_gets_every_class_at_every_scale_where_that_is_asked_for() -> None:
    counts, by_scale = strata_table(300, 2, 3, 4)
    guarantee = CONFIG.model_copy(update={"per_replica": "guarantee"})
    result = plan(part_table(counts, by_scale), 32, guarantee, 0, 0, replicas=4)
    assert (result.blocks, len(result.parts)) == (4, 6)
    for block in np.split(result.rows_SB, 4, axis=1):
        assert all(rows_hold(block, counts, by_scale, part).all() for part in result.parts)


def test_a_part_has_the_pixels_of_its_stratum_alone() -> None:
    counts = np.array([[1, 7], [2, 0], [3, 9]])
    table = part_table(counts, TileStrata(np.array([0, 1, 1], np.int32), TITLES[:2]), NAMES[:2])
    assert [(part.class_id, part.stratum) for part in table.parts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert table.counts_NP.tolist() == [[1, 0, 7, 0], [0, 2, 0, 0], [0, 3, 0, 9]]


@pytest.mark.parametrize("quotas", [{"c2": 2, "c3": 2}, {"c0": 2, "c2": 2}, {"c3": 3}, {"c1": 4}])
def test_by_hand_a_class_that_every_tile_holds_needs_no_place(quotas: dict[str, int]) -> None:
    counts, names = np.zeros((48, 4), np.int64), [f"c{i}" for i in range(4)]
    counts[:, :2], counts[:24, 2], counts[12:, 3] = 100, 100, 100
    result = plan(part_table(counts, names=names), 4, SamplingConfig(quotas=quotas), 0, 0)
    held_SK = (counts[result.rows_SB] >= 32).sum(axis=1)
    assert {
        name: min(held_SK[:, names.index(name)]) >= tiles for name, tiles in quotas.items()
    } == dict.fromkeys(quotas, True)
    assert all(quota.given == quota.wished for quota in result.quotas)
