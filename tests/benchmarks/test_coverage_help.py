"""What the benchmark of coverage rests on: the variance of gradients, the choice of tiles, the comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.coverage_table import (
    MODES,
    STAGES,
    differences,
    gradient_noise,
    noise_lines,
    relative_noise,
    result_table,
)
from benchmarks.planning import class_table
from benchmarks.rare_tiles import thinned


def test_noise_by_hand() -> None:
    gradients = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]], np.float32)
    # Mean (2, 1); squared distances from it 2, 2 and 4, over M − 1 = 2.
    noise = gradient_noise(gradients)
    assert noise["trace"] == pytest.approx(4)
    assert noise["mean_squared"] == pytest.approx(5 - 4 / 3)


def test_noise_is_that_of_the_distribution_however_few_batches() -> None:
    rng = np.random.default_rng(0)
    deviation_P, mean_P = np.array([0.5, 1.0, 3.0]), np.array([1.0, -2.0, 0.5])
    found = [gradient_noise(mean_P + deviation_P * rng.normal(size=(4, 3))) for _ in range(20_000)]
    assert np.mean([n["trace"] for n in found]) == pytest.approx(np.square(deviation_P).sum(), rel=0.02)
    assert np.mean([n["mean_squared"] for n in found]) == pytest.approx(np.square(mean_P).sum(), rel=0.02)


def test_relative_noise_is_a_median_in_which_a_lost_mean_is_the_worst() -> None:
    known = [{"trace": 2.0, "mean_squared": 1.0}, {"trace": 3.0, "mean_squared": 1.0}]
    assert relative_noise([*known, {"trace": 1.0, "mean_squared": -0.1}]) == 3
    assert relative_noise([*known, {"trace": 900.0, "mean_squared": 1.0}]) == 3
    assert relative_noise([{"trace": 1.0, "mean_squared": -0.1}]) == np.inf


def test_thinning_keeps_one_in_so_many_tiles_with_the_rare_class() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 100, (997, 3)) * (rng.random((997, 3)) < [0.9, 0.3, 0.05])
    kept = thinned(counts, 1, 2, 6)
    without_other = counts[:, 2] == 0
    assert not (kept & ~without_other).any()
    assert kept[without_other & (counts[:, 1] == 0)].all()
    assert (kept & (counts[:, 1] > 0)).sum() == round((without_other & (counts[:, 1] > 0)).sum() / 6)
    np.testing.assert_array_equal(thinned(counts, 1, 2, 1), without_other)
    np.testing.assert_array_equal(thinned(counts, 1, 2, 6), kept)


def _result(batch: int, mode: str, seed: int, rare: float) -> dict[str, Any]:
    noise = {"off": 8.0, "relaxed": 2.0}
    gradients = {
        f"{stage}/{sampling}": {
            "all": {"trace": noise[sampling] * batch, "mean_squared": float(batch)},
            "rare": {"trace": 1.0, "mean_squared": -1.0},
        }
        for stage in STAGES
        for sampling in MODES
    }
    shares = {"complete_steps": 0.25, "steps_with_rare": 0.275, "tiles_with_rare": 0.021}
    scores = {"rare_IoU": rare, "mIoU": rare / 2}
    return {"batch": batch, "mode": mode, "seed": seed, **scores, **shares, "gradients": gradients}


def test_comparison_pairs_the_seeds() -> None:
    rare = {("off", 0): 0.1, ("relaxed", 1): 0.5, ("off", 1): 0.3, ("relaxed", 0): 0.2}
    results = [_result(16, mode, seed, value) for (mode, seed), value in rare.items()]
    gain, error = differences([*results, _result(64, "off", 0, 0.9)], 16, "rare_IoU")
    assert gain == pytest.approx(0.15)
    assert error == pytest.approx(0.05)  # differences 0.1 and 0.2: deviation 0.0707, over √2
    assert np.isnan(differences(results[:1] + results[3:], 16, "mIoU")[1])


def test_lines_and_table_say_what_was_found() -> None:
    results = [_result(batch, mode, 0, 0.5) for batch in (16, 64) for mode in MODES]
    lines = noise_lines(results)
    assert [(line["batch"], line["weights_after"]) for line in lines] == [
        (16, "third"),
        (16, "end"),
        (64, "third"),
        (64, "end"),
    ]
    assert (lines[0]["all_off"], lines[0]["all_relaxed"], lines[0]["rare_off"]) == (8, 2, None)
    table = result_table(results, "water")
    assert "nan" not in table
    assert table.count("+0.000") == 4
    assert "27.5%" in table


def test_class_table_has_one_rare_class_and_no_count_that_is_nearly_none() -> None:
    counts = class_table(70_001, 5)
    shares = (counts > 0).mean(axis=0)
    np.testing.assert_allclose(shares, [0.9, 0.65, 0.4, 0.15, 0.02], atol=0.01)
    assert counts[counts > 0].min() >= 32
