"""Law 1, coverage: each promised class in every row, every tile used, repeats where forced, else random."""

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import SamplingConfig
from segmenter.sampling import (
    Plan,
    Rules,
    batch_without_repeats,
    held_by_rows,
    order_for_replicas,
    part_table,
    plan,
    planned_rows,
)
from tests.helpers.class_tables import table
from tests.helpers.refusals import refused

RELAXED = SamplingConfig()


def plan_epoch(counts: np.ndarray, batch: int, **rules: Any) -> np.ndarray:
    """The rows of a plan by rules."""
    return planned_rows(counts, batch, Rules(**rules)).rows_SB


def check(result: Plan, counts: np.ndarray, batch: int, most: int | None) -> None:
    """All that a plan promises of itself."""
    held = held_by_rows(result.rows_SB, counts, 32)
    assert held[:, list(result.promised)].all()
    assert set(result.promised) | set(result.best_effort) == set(np.flatnonzero(counts.any(axis=0)))
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=len(counts))
    assert uses.min() >= 1
    assert uses.sum() == len(counts) + result.coverage_repeats + result.fillers
    assert 0 <= result.fillers < batch * result.blocks
    holders = (counts >= 32).sum(axis=0)
    scarcest = min((int(holders[c]) for c in result.promised), default=result.steps)
    rows = result.steps * result.blocks
    bound = max(0, rows - scarcest) if scarcest < len(counts) else 0
    assert bound <= result.repeats_bound <= result.coverage_repeats
    if most is not None:  # a filler may show a tile once more
        assert uses.max() <= 1 + most + -(-result.fillers // len(counts))
        for c in result.best_effort:  # only what would really be shown too often, at the steps it forces
            assert holders[c] * (1 + most) < rows + max(0, rows - holders[c]) // batch + 2


@given(
    st.integers(1, 300),
    st.lists(st.sampled_from([0.01, 0.05, 0.3, 0.9]), min_size=1, max_size=9),
    st.integers(10, 40),
    st.integers(0, 10_000),
    st.sampled_from([None, 0, 1, 4]),
)
def test_coverage(tiles: int, shares: list[float], batch: int, seed: int, most: int | None) -> None:
    counts = table(tiles, shares, seed)
    if most is None:
        rows = plan_epoch(counts, batch, max_repeats=None, seed=seed)
        assert held_by_rows(rows, counts, 32).all()
        assert np.bincount(rows.reshape(-1), minlength=tiles).min() >= 1
        assert (rows.dtype, rows.shape[1]) == (np.int64, batch)
    else:
        config = SamplingConfig(max_repeats_per_tile=most)
        check(plan(counts, batch, config, seed, epoch=seed % 5), counts, batch, most)


def test_presence_is_the_plan_that_it_was_before_quotas() -> None:
    """A run that is resumed after an update goes on with the same tiles."""
    before_quotas = 1148276186  # by the code of 26 November 2026
    result = plan(table(997, [0.9, 0.4, 0.05, 0.004], 7), 16, RELAXED, 3, epoch=2)
    assert zlib.crc32(result.rows_SB.astype("<i8").tobytes()) == before_quotas


@pytest.mark.slow
@given(st.integers(40, 200), st.integers(2, 6), st.integers(2, 7), st.integers(0, 10_000))
def test_coverage_where_places_are_short(tiles: int, classes: int, batch: int, seed: int) -> None:
    """Fewer places than classes: each tile has to bring several, or planning says how many would do."""
    counts = table(tiles, [0.5] * classes, seed)
    try:
        rows = plan_epoch(counts, batch, max_repeats=None, seed=seed)
    except DatasetError as error:
        need = int(str(error).split("at least ")[1].split(",")[0])
        assert need > batch
        rows = plan_epoch(counts, need, max_repeats=None, seed=seed)
        batch = need
    assert held_by_rows(rows, counts, 32).all()
    assert np.bincount(rows.reshape(-1), minlength=tiles).min() >= 1


@pytest.mark.parametrize("seed", range(3))
def test_one_scarce_class_meets_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiles, classes = int(rng.integers(1000, 3000)), int(rng.integers(3, 9))
    batch = int(rng.choice([4, 8, 16, 64]))
    shares = [float(rng.uniform(0.1, 0.8) / batch), *rng.uniform(max(0.15, 2.5 / batch), 0.9, classes - 1)]
    counts = (rng.random((tiles, classes)) < shares) * 100
    result = plan(counts, batch, SamplingConfig(max_repeats_per_tile=10**6), seed, 0)
    assert len(result.promised) == classes
    assert result.coverage_repeats <= 1.02 * result.repeats_bound
    assert result.repeats_bound > 0


def test_a_scarce_class_is_repeated_evenly_and_as_seldom_as_it_must_by_all_tiles_that_serve() -> None:
    counts = np.full((100, 2), 0, np.int64)
    counts[:, 0], counts[:4, 1] = 500, 500
    result = plan(counts, 10, RELAXED, 0, 0)
    assert result.coverage_repeats == result.steps - 4 == result.repeats_bound
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=100)
    assert np.ptp(uses[:4]) <= 1
    assert uses[4:].max() <= 2  # fillers are tiles that are not repeated already

    # The rare class comes in three kinds of tile; each is repeated as often.
    counts = np.zeros((1000, 3), np.int64)
    counts[:, 0], counts[:500, 1] = 99, 99
    counts[480:520, 2] = 99  # 20 with class 1, 20 without
    result = plan(counts, 8, RELAXED, 0, 0)
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=1000)[480:520]
    assert uses.sum() >= result.steps
    assert np.ptp(uses) <= 1


@given(st.integers(40, 300), st.integers(2, 20), st.integers(0, 10_000))
def test_a_tile_stands_in_a_row_once(tiles: int, batch: int, seed: int) -> None:
    """… and a filler is a tile that is in no other place twice."""
    counts = table(tiles, [0.05, 0.5][: seed % 3], seed)
    batch = max(batch, seed % 3 + 1)  # a tile for each class beside one that holds none
    result = plan(counts, batch, SamplingConfig(max_repeats_per_tile=100), seed, 0)
    assert all(len(set(row)) == batch for row in result.rows_SB.tolist())
    uses = np.bincount(result.rows_SB.reshape(-1), minlength=tiles)
    if not result.coverage_repeats:
        assert uses.max() <= 2


@pytest.mark.parametrize("batch", [7, 64, 20_000])
def test_fewer_tiles_than_places(batch: int) -> None:
    counts = np.full((5, 2), 99)
    rows = plan_epoch(counts, batch)
    assert rows.shape == (1, batch)
    assert np.ptp(np.bincount(rows.reshape(-1))) <= 1


def test_too_rare_is_best_effort_and_refuses_nothing() -> None:
    counts = np.zeros((1000, 3), np.int64)
    counts[:, 0], counts[0, 1], counts[5, 2] = 500, 500, 31  # class 2: in no tile that holds it
    result = plan(counts, 10, RELAXED, 0, 0)
    assert (result.promised, result.best_effort) == ((0,), (1, 2))

    counts = np.zeros((1000, 3), np.int64)
    counts[:500, 0], counts[500:, 1] = 99, 99
    counts[0, 2] = 99  # with it promised, a row of any other tile would need three places
    result = plan(counts, 2, RELAXED, 0, 0)
    assert (result.promised, result.best_effort) == ((0, 1), (2,))


def test_strict_refuses_and_says_what_would_do_or_that_nothing_would() -> None:
    counts = np.zeros((100, 2), np.int64)
    counts[:, 0], counts[:4, 1] = 500, 500
    strict = SamplingConfig(coverage="strict")
    said = r"car is held by 4 tiles, an epoch has 11 steps.*of 25 would do"
    with pytest.raises(DatasetError, match=said):
        plan(part_table(counts, names=("road", "car")), 10, strict, 0, 0)
    assert plan(counts, 25, strict, 0, 0).coverage_repeats == 0

    counts = np.full((100, 2), 99)
    counts[:, 1] = 0
    counts[3, 1] = 20
    with refused(DatasetError, fault="holds 32 pixels"):
        plan(part_table(counts, names=("road", "car")), 10, SamplingConfig(coverage="strict"), 0, 0)


def test_the_batch_that_would_do_does_also_where_classes_exclude_each_other() -> None:
    counts = np.zeros((60, 3), np.int64)
    counts[:50, 0], counts[50:55, 1], counts[55:, 2] = 99, 99, 99
    batch = batch_without_repeats(counts, 32)
    assert plan(counts, batch, SamplingConfig(coverage="strict"), 0, 0).coverage_repeats == 0
    assert plan(counts, batch - 1, RELAXED, 0, 0).coverage_repeats > 0


def test_a_pixel_may_be_enough() -> None:
    counts = np.array([[1, 0], [0, 1], [9, 0], [0, 9]])
    found = plan(counts, 2, SamplingConfig(min_pixels=1), 0, 0)
    assert found.promised == (0, 1)
    assert held_by_rows(found.rows_SB, counts, 1).all()
    rows = plan_epoch(counts, 2, min_pixels=1, max_repeats=None, seed=0)
    assert held_by_rows(rows, counts, 1).all()
    with refused(DatasetError, got="0, None, 0, 0"):
        plan_epoch(counts, 2, min_pixels=0, max_repeats=None, seed=0)


def test_fewer_places_than_classes_need_is_refused_with_the_smallest_batch_that_can_do() -> None:
    counts = np.eye(5, dtype=np.int64).repeat(4, axis=0) * 100
    with refused(DatasetError, fault="least 5"):
        plan(counts, 4, RELAXED, 0, 0)
    plan(counts, 5, RELAXED, 0, 0)
    # A tile without any class needs a place beside the five.
    with_empty = np.concatenate([counts, np.zeros((1, 5), np.int64)])
    with pytest.raises(DatasetError, match="at least 6"):
        plan_epoch(with_empty, 5)
    assert held_by_rows(plan_epoch(with_empty, 6), with_empty, 32).all()

    everywhere = np.ones((50, 21), np.int64) * 99
    assert plan_epoch(everywhere, 1).shape == (50, 1)  # a class that all tiles hold asks nothing of a row
    with pytest.raises(DatasetError, match="at least 22"):
        plan_epoch(everywhere * (np.arange(21) != np.arange(50)[:, None]), 4)


@pytest.mark.parametrize(
    ("counts", "batch", "fields"),
    [
        (np.zeros((0, 3), np.int64), 4, {"where": "tiles"}),
        (np.ones((3, 63), np.int64) * 99, 4, {"got": 63}),
        (np.ones((3, 2)), 4, {"got": "float64 (3, 2)"}),
        (np.ones((3, 2), np.int64), 0, {"where": "training.global_batch", "got": 0}),
    ],
)
def test_what_cannot_be_planned_is_refused(counts: np.ndarray, batch: int, fields: dict[str, object]) -> None:
    with refused(DatasetError, **fields):
        plan_epoch(counts, batch)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("batch", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_many_rare_classes_that_come_together(batch: int) -> None:
    """As in NAIC2020's second round: hundreds of kinds of tile, several classes too rare for each step."""
    rng = np.random.default_rng(0)
    shares = [0.3, 0.4, 0.5, 0.01, 0.008, 0.02, 0.1, 0.04, 0.5, 0.05, 0.3, 0.06, 0.4, 0.2, 0.0005]
    site = rng.random((5000, 1)) * 2  # towns have more classes than fields
    counts = (rng.random((5000, 15)) < np.array(shares) * site) * 100
    check(plan(counts, batch, RELAXED, 0, 0), counts, batch, RELAXED.max_repeats_per_tile)


@pytest.mark.parametrize("setting", [{"seed": -1}, {"epoch": -1}, {"min_pixels": 0}, {"max_repeats": -1}])
def test_settings_out_of_range_are_refused(setting: dict[str, int]) -> None:
    with refused(DatasetError, got=", "):
        plan_epoch(np.full((9, 2), 99), 4, **setting)


def test_the_planner_s_defaults_are_those_of_recipes() -> None:
    fields = SamplingConfig.model_fields
    own = {"min_pixels": "min_pixels", "max_repeats": "max_repeats_per_tile"}
    assert all(getattr(Rules(), name) == fields[own[name]].default for name in own)


def test_many_classes() -> None:
    """62 classes: sets of classes in 64 bits; and a shuffle takes any number."""
    counts = table(800, [0.3] * 62, 0)
    assert held_by_rows(plan_epoch(counts, 64), counts, 32).all()
    wide = np.ones((9, 200), np.int64) * 99
    assert plan(wide, 4, SamplingConfig(coverage="off"), 0, 0).steps == 3


def test_a_plan_follows_from_seed_and_epoch() -> None:
    counts = table(200, [0.5, 0.1], 1)

    def rows(seed: int, epoch: int) -> list[list[int]]:
        return plan(counts, 16, RELAXED, seed, epoch).rows_SB.tolist()

    assert rows(1, 2) == rows(1, 2)
    assert rows(1, 2) != rows(1, 3)
    assert rows(1, 2) != rows(2, 2)


def test_steps_and_promise_follow_from_the_seed_alone() -> None:
    """The schedule counts on it. Of this table the search finds the best plan in some epochs alone."""
    rng = np.random.default_rng(6)
    classes, batch, tiles = (int(rng.integers(*ends)) for ends in ((6, 10), (4, 8), (60, 120)))
    counts = ((rng.random((tiles, classes)) < rng.choice([0.05, 0.1, 0.15, 0.2], classes)) * 100).astype(int)
    unlimited = SamplingConfig(max_repeats_per_tile=1000)
    epochs = [plan(counts, batch, unlimited, 0, epoch) for epoch in range(3)]
    for each in epochs:
        check(each, counts, batch, None)
    assert not any(each.proven for each in epochs)
    assert len({(each.steps, each.promised, each.best_effort) for each in epochs}) == 1
    assert len({each.fingerprint for each in epochs}) == len(epochs)


def test_off_is_a_plain_shuffle() -> None:
    result: Plan = plan(table(70, [0.5], 0), 16, SamplingConfig(coverage="off"), 0, 0)
    assert (result.steps, result.fillers, result.promised) == (5, 10, ())
    assert np.bincount(result.rows_SB.reshape(-1), minlength=70).min() == 1


def test_guarantee_gives_each_replica_every_class() -> None:
    counts = table(500, [0.04, 0.3, 0.5, 0.9], 2)
    config = SamplingConfig(per_replica="guarantee")
    result = plan(counts, 32, config, 0, 0, replicas=4)
    assert result.blocks == 4
    blocks = result.rows_SB.reshape(-1, 8)
    assert held_by_rows(blocks, counts, 32).all()
    check(result, counts, 8, None)
    with pytest.raises(ValidationError, match=r"sampling\.per_replica"):
        SamplingConfig(coverage="off", per_replica="guarantee")
    with refused(DatasetError, where="sampling.per_replica: guarantee", got=30):
        plan(counts, 30, config, 0, 0, replicas=4)
    with refused(DatasetError, fault="replica's part"):
        plan(np.eye(4, dtype=np.int64).repeat(9, axis=0) * 99, 8, config, 0, 0, replicas=4)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def classes_seen(shares: tuple[int, ...], holds: np.ndarray) -> int:
    """Return the number of (replica, class) pairs with the class in the replica's block of a row (B, K)."""
    blocks = np.split(holds, np.cumsum(shares)[:-1])
    return sum(int(block.any(axis=0).sum()) for block in blocks)


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
