"""Learning rates against values worked out by hand, and against Keras' own schedules."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import TrainingConfig
from tests.helpers.refusals import refused


def rates(steps: Any, total: int = 1000, **settings: Any) -> list[float]:
    from segmenter.training.optimiser import Schedule

    schedule = Schedule(TrainingConfig(**settings), total)
    return [float(schedule(step)) for step in steps]


# ------------------------------------------------------------------------------- scaling


@pytest.mark.parametrize(
    ("scaling", "batch", "reference", "peak"),
    [
        ("none", 64, None, 0.001),
        ("linear", 64, 16, 0.004),
        ("sqrt", 64, 16, 0.002),
        ("sqrt", 8, 16, 0.001 / math.sqrt(2)),
    ],
)
def test_the_peak_follows_the_rule(
    tensorflow: ModuleType, scaling: str, batch: int, reference: int | None, peak: float
) -> None:
    from segmenter.training.optimiser import peak_of

    config = TrainingConfig(global_batch=batch, scaling=scaling, reference_batch=reference)
    assert peak_of(config) == pytest.approx(peak, rel=1e-15)
    common = {"global_batch": batch, "scaling": scaling, "reference_batch": reference, "warmup": 10}
    # Scaled alike: the warm-up, the peak, and what follows.
    for schedule, share in (("constant", 1.0), ("poly", 0.5**0.9)):
        assert rates([4, 505], 1000, schedule=schedule, **common) == pytest.approx(
            [0.5 * peak, share * peak], rel=1e-6
        )


def test_the_resolved_peak_is_said(tensorflow: ModuleType) -> None:
    from segmenter.training.optimiser import describe_schedule

    scaled = TrainingConfig(scaling="linear", reference_batch=16, warmup=0, schedule="cosine")
    assert "peak 0.004 = 0.001 × 64/16 (linear), cosine" in describe_schedule(scaled, 2000)
    assert "190 steps of warm-up" in describe_schedule(TrainingConfig(warmup=500), 1900)  # a tenth at most
    late = TrainingConfig(schedule="piecewise", boundaries=[1000, 2000], values=[1, 0.1, 0.01])
    assert "ends before boundary 2000" in describe_schedule(late, 2000)


# ------------------------------------------------------------------------------- shapes


def test_schedules_by_hand(tensorflow: ModuleType) -> None:
    common = {"learning_rate": 2.0, "warmup": 10}
    assert rates([0, 4, 9], 110, **common) == pytest.approx([0.2, 1.0, 2.0], rel=1e-6)
    assert rates([10, 60, 110, 500], 110, **common) == pytest.approx([2, 2 * 0.5**0.9, 0, 0], rel=1e-6)
    cosine = rates([10, 35, 60, 110], 110, schedule="cosine", **common)
    assert cosine == pytest.approx([2, 1 + math.sqrt(0.5), 1, 0], rel=1e-6, abs=1e-6)
    assert rates([10, 10_000], 110, schedule="constant", **common) == [2, 2]
    decaying = {**common, "schedule": "exponential", "decay_rate": 0.25, "decay_steps": 20}
    assert rates([9, 10, 20, 30, 50], 110, **decaying) == pytest.approx([2, 2, 1, 0.5, 0.125], rel=1e-6)
    stairs = rates([9, 10, 29, 30, 49, 50], 110, staircase=True, **decaying)
    assert stairs == pytest.approx([2, 2, 2, 0.5, 0.5, 0.125], rel=1e-6)
    pieces = {**common, "schedule": "piecewise", "boundaries": [20, 40], "values": [1, 0.5, 0.25]}
    assert rates([0, 9, 20, 21, 40, 41, 999], 110, **pieces) == pytest.approx([0.2, 2, 2, 1, 1, 0.5, 0.5])


def test_a_staircase_falls_on_the_step_for_long_trainings_too(tensorflow: ModuleType) -> None:
    settings = {"schedule": "exponential", "decay_rate": 0.999, "decay_steps": 7919, "staircase": True}
    edges = 7919 * np.arange(1, 200, 7)
    before = rates(edges - 1, 10**7, warmup=0, **settings)
    after = rates(edges, 10**7, warmup=0, **settings)
    np.testing.assert_allclose(after, 1e-3 * 0.999 ** (edges // 7919), rtol=1e-5)
    np.testing.assert_allclose(np.divide(after, before), 0.999, rtol=1e-5)


# ------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"scaling": "linear"}, {"where": "training.reference_batch", "got": "none"}),
        ({"reference_batch": 16}, {"where": "training.reference_batch", "got": "none"}),
        ({"schedule": "exponential"}, {"where": "training.decay_steps", "got": "none"}),
        ({"staircase": True}, {"where": "training.staircase", "got": "poly"}),
        ({"schedule": "piecewise"}, {"where": "training.boundaries", "got": "none"}),
        ({"boundaries": [5], "values": [1, 2]}, {"where": "training.boundaries", "got": "poly"}),
        (
            {"schedule": "piecewise", "boundaries": [9, 9], "values": [1, 1, 1]},
            {"where": "training.boundaries", "got": "[9, 9]"},
        ),
        (
            {"schedule": "piecewise", "boundaries": [9, 12], "values": [1, 0.1]},
            {"where": "training.values", "got": 2},
        ),
        ({"schedule": "steps"}, {"where": "training.schedule", "got": "'steps'"}),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], fields: dict[str, object]) -> None:
    with refused(ConfigError, **fields):
        recipe_from(
            {"name": "x", "dataset": {"kind": "potsdam", "root": "r"}, "training": settings}, "r.yaml"
        )
