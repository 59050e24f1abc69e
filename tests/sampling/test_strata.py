"""Law 1 by scale: each class in each stratum of the scenes' scale in every row, if there are enough."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import SamplingConfig
from segmenter.sampling import Part, TileStrata, plan
from segmenter.sampling.quotas import part_table
from tests.helpers.refusals import refused

CONFIG = SamplingConfig(scale_strata=(0.3, 1.0))
TITLES = ("0.05–0.3 m", "0.3–1 m", "1–4 m")
NAMES = ("water", "road", "tree")


def table(tiles: int, strata: int, classes: int, seed: int) -> tuple[np.ndarray, TileStrata]:
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
    counts, by_scale = table(tiles, strata, classes, seed)
    result = plan(counts, 16, CONFIG, seed, 1, strata=by_scale)
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


def test_the_classes_alone_would_not_hold_them_at_every_scale() -> None:
    counts, by_scale = table(150, 3, 3, 0)
    plain, split = (plan(counts, 16, CONFIG, 0, 0, strata=s) for s in (None, by_scale))
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
    result = plan(counts, 16, CONFIG, 0, 0, strata=by_scale)
    assert result.steps >= 30
    assert result.promised == (0, 1)
    assert result.best_effort == ()
    assert Part(0) in result.parts
    assert result.rare_parts == (Part(0, 0), Part(0, 1), Part(0, 2))
    assert rows_hold(result.rows_SB, counts, by_scale, Part(0)).all()


def test_one_stratum_is_the_plan_of_the_classes() -> None:
    counts, _ = table(90, 1, 4, 3)
    alone = TileStrata(np.zeros(90, np.int32), ("0.5 m",))
    split, plain = plan(counts, 8, CONFIG, 2, 5, strata=alone), plan(counts, 8, CONFIG, 2, 5)
    assert split.fingerprint == plain.fingerprint
    assert (split.promised, split.best_effort) == (plain.promised, plain.best_effort)


def test_what_cannot_be_planned_names_the_class_at_its_scale() -> None:
    counts = np.kron(np.eye(6, dtype=np.int64), np.full((20, 1), 100)).reshape(120, 6)[:, :3]
    counts[60:] = counts[:60]
    by_scale = TileStrata((np.arange(120) // 60).astype(np.int32), TITLES[:2])
    expected = r"of 4 tiles cannot hold all 6 classes \(water at 0.05–0.3 m, water at 0.3–1 m, road at"
    with pytest.raises(DatasetError, match=expected):
        plan(counts, 4, CONFIG, 0, 0, names=NAMES, strata=by_scale)

    counts = np.full((64, 2), 100, np.int64)
    by_scale = TileStrata(np.r_[0, np.ones(63)].astype(np.int32), TITLES[:2])
    strict = CONFIG.model_copy(update={"coverage": "strict"})
    with refused(DatasetError, fault="water at 0.05–0.3 m"):
        plan(counts, 8, strict, 0, 0, names=NAMES[:2], strata=by_scale)

    counts, by_scale = np.full((90, 16), 100, np.int64), TileStrata(np.arange(90, dtype=np.int32) % 3, TITLES)
    with refused(DatasetError, where="scale_strata", got="16 and 48"):
        plan(counts, 64, CONFIG, 0, 0, strata=by_scale)


def test_each_replica_gets_every_class_at_every_scale_where_that_is_asked_for() -> None:
    counts, by_scale = table(300, 2, 3, 4)
    guarantee = CONFIG.model_copy(update={"per_replica": "guarantee"})
    result = plan(counts, 32, guarantee, 0, 0, replicas=4, strata=by_scale)
    assert (result.blocks, len(result.parts)) == (4, 6)
    for block in np.split(result.rows_SB, 4, axis=1):
        assert all(rows_hold(block, counts, by_scale, part).all() for part in result.parts)


def test_a_part_has_the_pixels_of_its_stratum_alone() -> None:
    counts = np.array([[1, 7], [2, 0], [3, 9]])
    table = part_table(counts, TileStrata(np.array([0, 1, 1], np.int32), TITLES[:2]), NAMES[:2])
    assert [(part.class_id, part.stratum) for part in table.parts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert table.counts_NP.tolist() == [[1, 0, 7, 0], [0, 2, 0, 0], [0, 3, 0, 9]]
