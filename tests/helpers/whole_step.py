"""Steps with all that knows of replicas at once, and how far two trainings are apart, kind by kind.

BatchNorm, dropout, Dice, losses per pixel, clipping by the norm of the sum, a moving average; in float64, on
batches whose ignored pixels lie on the first images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datasets.commands.gpu.matrix import BATCH, LIMIT
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from tests.helpers.small_training import AVERAGE, Training, batches, difference

STEPS = 3
MODEL = UNetConfig(depth=1, width=3, dropout=0.3)
CLIPPED = TrainingConfig(global_batch=BATCH, learning_rate=0.01, warmup=0, clip_norm=0.05)
LOSS = LossConfig(dice=0.5, class_weights=(1.0, 3.0, 0.5, 2.0), normalisation="per_pixel")


def trained(replicas: int, shares: tuple[int, ...] = (), **options: Any) -> Training:
    """After some steps in one call."""
    made = {"model": MODEL, "loss": LOSS, "average": AVERAGE, "training": CLIPPED} | options
    training = Training(**made, replicas=replicas, shares=shares)
    training.result = training.at_once(batches(STEPS), STEPS)  # type: ignore[attr-defined]
    return training


def kinds(training: Any) -> dict[str, list[Any]]:
    """Weights, BatchNorm's statistics, averages and moments, each to be compared among themselves."""
    found = {"weights": [v.numpy() for v in training.model.trainable_variables]}
    found["statistics"] = [v.numpy() for v in training.model.variables if "moving" in v.path]
    if training.averaged is not None:
        found["averages"] = [v.numpy() for v in training.averaged.model.trainable_variables]
    for name, value in training.optimiser.arrays().items():
        found.setdefault(name.rpartition("/")[2], []).append(value)
    return {kind: values for kind, values in found.items() if values and values[0].dtype == np.float64}


def check(many: Any, one: Any) -> None:
    theirs = kinds(one)
    found = {kind: difference(values, theirs[kind]) for kind, values in kinds(many).items()}
    assert {kind: d for kind, d in found.items() if not d <= LIMIT} == {}
    np.testing.assert_allclose(many.result.loss, one.result.loss, rtol=1e-6)
    assert np.array_equal(np.asarray(many.result.held)[:, 0], np.asarray(one.result.held)[:, 0])
