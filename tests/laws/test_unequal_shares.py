"""Law 2, equivalence, over unequal shares: replicas with unlike parts compute what one device does.

BatchNorm, dropout, Dice, losses per pixel, clipping by the norm of the sum, a moving average; in float64, on
batches whose ignored pixels lie on the first images.
"""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from tests.helpers.laboratory import BATCH, LIMIT
from tests.helpers.naive import SEEN
from tests.helpers.small_training import (
    AVERAGE,
    NO_NORM,
    PER_PIXEL,
    SGD,
    Training,
    batches,
    central_of,
    difference,
)

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


@pytest.fixture(scope="module")
def one(tensorflow: ModuleType) -> Training:
    return trained(1)


@pytest.mark.slow
def test_unequal_shares_compute_what_one_device_does(one: Training) -> None:
    many = trained(2, (5, 3))
    check(many, one)
    start = kinds(Training(MODEL, LOSS, training=CLIPPED))
    assert difference(kinds(many)["weights"], start["weights"]) > SEEN  # it trained
    assert {"weights", "statistics", "averages", "momentum", "velocity"} == set(kinds(many))


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(3, 2, 1, 2), (5, 0, 1, 2), (0, 1, 7, 0)])
def test_shares_of_four_devices_some_without_tiles(one: Training, shares: tuple[int, ...]) -> None:
    check(trained(4, shares), one)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(3, 5), (5, 0, 3)])
def test_variables_on_the_host_compute_the_same(one: Training, shares: tuple[int, ...]) -> None:
    """Also where a device has no tiles."""
    check(trained(len(shares), shares, strategy=central_of(len(shares))), one)


@pytest.mark.slow
@pytest.mark.parametrize("central", [False, True])
def test_micro_batches_of_unequal_shares_are_the_step(tensorflow: ModuleType, central: bool) -> None:
    """One device has none; what the loss divides by is the weight of all pixels of the step."""
    same: dict[str, Any] = {"model": NO_NORM, "loss": PER_PIXEL, "training": SGD, "average": 0.0}
    strategy = central_of(3) if central else None
    check(trained(3, (6, 2, 0), accumulate=2, strategy=strategy, **same), trained(1, **same))
