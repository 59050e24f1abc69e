"""A step that the loss scale skips though its loss is finite: said, and no part of the averaged weights."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import TrainingConfig
from tests.helpers.small_training import AVERAGE, BATCH, NO_NORM, PER_PIXEL, Training, batches

pytestmark = pytest.mark.timeout(600)

MIXED = TrainingConfig(
    global_batch=BATCH,
    optimizer="sgd",
    learning_rate=0.05,
    schedule="constant",
    warmup=0,
    precision="mixed_float16",
)
TOO_LARGE, FITTING = 2.0**126, 2.0**10


@pytest.fixture(scope="module", params=[pytest.param((1, 1), marks=pytest.mark.slow), (2, 2)], ids=str)
def trainings(request: pytest.FixtureRequest, tensorflow: ModuleType) -> Callable[[], Training]:
    replicas, parts = request.param

    def make() -> Training:
        return Training(NO_NORM, PER_PIXEL, replicas, "mixed_float16", AVERAGE, MIXED, accumulate=parts)

    return make


def updates(training: Training) -> int:
    assert training.averaged is not None
    return int(training.averaged.arrays()["ema_updates"])


def test_a_skipped_step_is_said_and_not_averaged_nor_counted(trainings: Callable[[], Training]) -> None:
    training, stack = trainings(), batches(3)
    training.optimiser.dynamic_scale.assign(FITTING)
    assert applied(training, stack, 0) == (True, FITTING)
    weights, averages = training.weights(), training.weights(averaged=True)
    training.optimiser.dynamic_scale.assign(TOO_LARGE)
    assert applied(training, stack, 1) == (False, TOO_LARGE / 2)
    assert updates(training) == 1
    assert all(np.array_equal(a, b) for a, b in zip(training.weights(), weights, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(training.weights(averaged=True), averages, strict=True))
    training.optimiser.dynamic_scale.assign(FITTING)
    assert applied(training, stack, 2) == (True, FITTING)
    assert updates(training) == 2
    decay = min(AVERAGE, 3 / 12)  # of the second update, not of the third
    for before, after, weight in zip(averages, training.weights(True), training.weights(), strict=True):
        np.testing.assert_allclose(after, decay * before + (1 - decay) * weight, rtol=1e-5, atol=1e-7)
    copies = [training.devices.strategy.experimental_local_results(v.value) for v in averaged(training)]
    assert all(np.array_equal(copy.numpy(), found[0].numpy()) for found in copies for copy in found)


def applied(training: Training, stack: Any, i: int) -> tuple[bool, float]:
    """Of a step: whether it was applied, and the scale after it; the loss is finite either way."""
    result = training.step(training.devices.distributed(tuple(part[i] for part in stack)))
    assert np.isfinite(float(result.loss))
    return bool(result.applied), float(result.scale)


def averaged(training: Training) -> Any:
    assert training.averaged is not None
    return training.averaged.model.variables


def test_steps_of_one_call_skip_as_steps_one_by_one_do(trainings: Callable[[], Training]) -> None:
    one, many, stack = trainings(), trainings(), batches(3)
    for training in (one, many):
        training.optimiser.dynamic_scale.assign(TOO_LARGE)
    expected = [applied(one, stack, i) for i in range(3)]
    assert expected == [(False, TOO_LARGE / 2**done) for done in (1, 2, 3)]
    found = many.at_once(stack, 3)
    assert list(zip(found.applied.numpy().tolist(), found.scale.numpy().tolist(), strict=True)) == expected
    assert updates(one) == updates(many) == 0
