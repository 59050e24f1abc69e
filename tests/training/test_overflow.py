"""Training in 16 bits: a step that overflows on any replica is skipped by all, and leaves no trace.

Keras' loss scale looks at replica 0 alone, and its optimiser sums afterwards.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from datasets.commands.gpu.laboratory import BATCH, CLASSES
from segmenter.config.recipe import LossConfig, UNetConfig
from segmenter.grid.labels import IGNORE
from tests.helpers.small_training import (
    AVERAGE,
    NO_NORM,
    NORM,
    PER_PIXEL,
    SGD,
    Training,
    batches,
    central_of,
)

REPLICAS, LOCAL, STEPS = 2, BATCH // 2, 3
MIXED = SGD.model_copy(update={"precision": "mixed_float16"})
SCALE = 2.0**15  # where Keras starts
TOO_LARGE = 2.0**126
"""A loss scale with which gradients of 16 bits overflow, and zeros do not."""


def made(model: UNetConfig, **options: Any) -> Training:
    return Training(model, PER_PIXEL, REPLICAS, "mixed_float16", AVERAGE, MIXED, **options)


@pytest.fixture(
    scope="module", params=["whole", "micro-batches", pytest.param("host", marks=pytest.mark.slow)]
)
def training(request: pytest.FixtureRequest, tensorflow: ModuleType) -> Training:
    """Without BatchNorm, by whose sums an overflow on one replica would be one on all.

    Whole, in two micro-batches, and with these and all variables on the host.
    """
    strategy = central_of(REPLICAS) if request.param == "host" else None
    return made(NO_NORM, strategy=strategy, accumulate=1 if request.param == "whole" else 2)


@pytest.fixture(scope="module")
def normed(tensorflow: ModuleType) -> Training:
    return made(NORM)


def stack_of(*labelled: Sequence[int]) -> tuple[NDArray[Any], ...]:
    """Stacked batches; in the first ones only the first image of some replicas has labels."""
    image, valid, label = batches(STEPS)
    rng = np.random.default_rng(8)
    for step, replicas in enumerate(labelled):
        label[step] = IGNORE
        for replica in replicas:
            label[step, LOCAL * replica] = rng.integers(0, CLASSES, label.shape[2:])
    return image, valid, label


def copies(training: Training, variables: Any) -> list[list[NDArray[Any]]]:
    """Return each replica's copy of each variable."""
    local = training.devices.strategy.experimental_local_results
    return [[np.asarray(part) for part in local(v.value)] for v in variables]


def state(training: Training) -> list[list[NDArray[Any]]]:
    """Return the copies of weights and averages."""
    return copies(training, (*training.model.variables, *training.averaged.model.variables))


def in_step(training: Training) -> bool:
    """Return True if all replicas hold the same, to the bit."""
    held = [*state(training), *copies(training, training.optimiser.variables)]
    return all(np.array_equal(copy, each[0]) for each in held for copy in each)


def scales(training: Training) -> list[float]:
    (found,) = copies(training, [training.optimiser.dynamic_scale])
    return [float(copy) for copy in found]


def same(a: list[list[NDArray[Any]]], b: list[list[NDArray[Any]]]) -> bool:
    pairs = [pair for one, other in zip(a, b, strict=True) for pair in zip(one, other, strict=True)]
    return all(np.array_equal(x, y) for x, y in pairs)


def counts(training: Training) -> tuple[int, int]:
    """Return the numbers of updates, of the weights and of their averages."""
    return int(training.optimiser.iterations.numpy()), int(training.averaged.arrays()["ema_updates"])


@pytest.mark.parametrize("bad", range(REPLICAS))
def test_an_overflow_on_one_replica_is_skipped_by_all_who_then_go_on(training: Training, bad: int) -> None:
    """The loss is finite either way."""
    before, (updates, averagings), stack = state(training), counts(training), stack_of((bad,))
    averages = training.weights(averaged=True)
    training.optimiser.dynamic_scale.assign(TOO_LARGE)
    found = training.at_once(stack, 1)
    assert np.isfinite(found.loss.numpy()).all()
    assert (found.applied.numpy().tolist(), found.scale.numpy().tolist()) == ([False], [TOO_LARGE / 2])
    assert set(scales(training)) == {TOO_LARGE / 2}
    assert same(state(training), before)
    assert counts(training) == (updates, averagings)

    training.optimiser.dynamic_scale.assign(SCALE)
    assert training.at_once(stack, 1).applied.numpy().tolist() == [True]  # nothing of it is left in the sums
    assert counts(training) == (updates + 1, averagings + 1)  # once, not once a replica
    assert not same(state(training), before)
    assert all(np.isfinite(weight).all() for weight in training.weights())
    assert in_step(training)
    decay = min(AVERAGE, (2 + averagings) / (11 + averagings))  # of updates, not of steps
    for old, new, weight in zip(averages, training.weights(True), training.weights(), strict=True):
        np.testing.assert_allclose(new, decay * old + (1 - decay) * weight, rtol=1e-5, atol=1e-7)


def test_each_step_of_a_call_skips_for_itself(training: Training) -> None:
    training.optimiser.dynamic_scale.assign(TOO_LARGE)
    before = counts(training)
    found = training.at_once(stack_of(), STEPS)
    assert found.applied.numpy().tolist() == [False] * STEPS
    assert found.scale.numpy().tolist() == [TOO_LARGE / 2**done for done in (1, 2, 3)]
    assert counts(training) == before


def test_the_loss_scale_grows_on_all_replicas_in_the_same_step(training: Training) -> None:
    """After so many steps without an overflow, counted once a step; an overflow starts the count anew."""
    loss_scale, stack = training.optimiser.loss_scale, stack_of((1,))
    training.optimiser.dynamic_scale.assign(SCALE)
    loss_scale.steps.assign(loss_scale.growth_steps - 2)
    found = []
    for _ in range(3):
        training.at_once(stack, 1)
        found.append(set(scales(training)))
    assert found == [{SCALE}, {2 * SCALE}, {2 * SCALE}]
    loss_scale.steps.assign(loss_scale.growth_steps - 1)
    training.optimiser.dynamic_scale.assign(TOO_LARGE)
    training.at_once(stack, 1)
    assert set(scales(training)) == {TOO_LARGE / 2}
    assert {int(copy) for copy in copies(training, [loss_scale.steps])[0]} == {0}


def test_all_replicas_hold_the_same_after_some_steps(normed: Training) -> None:
    image, valid, label = stack_of((0, 1), (1,), (0,))
    normed.at_once((image.astype(np.float32), valid, label), STEPS)
    moving = [v for v in normed.model.variables if "moving" in v.path]
    assert len(moving) == 2 * 6
    assert all(np.abs(each[0]).max() > 0 for each in copies(normed, moving))
    assert in_step(normed)


def test_an_overflow_on_the_way_forward_leaves_no_trace(normed: Training) -> None:
    """With BatchNorm every replica sees it, in the statistics; these must be finite again at once."""
    image, valid, label = stack_of()
    plain = image.astype(np.float32), np.ones_like(valid), label
    bright = plain[0].copy()
    bright[0, LOCAL, 3, 3, 0] = 1e7  # after normalisation above the largest float16, 65504

    def step(pixels: NDArray[np.float32]) -> float:
        return float(normed.at_once((pixels, *plain[1:]), 1).loss.numpy()[0])

    def trained() -> list[list[NDArray[Any]]]:
        return copies(normed, normed.model.trainable_variables)

    assert np.isfinite(step(plain[0]))
    before, (scale, *_) = trained(), scales(normed)
    assert not np.isfinite(step(bright))
    assert scales(normed)[0] == scale / 2
    assert same(trained(), before)
    assert all(np.isfinite(copy).all() for each in state(normed) for copy in each)
    assert np.isfinite(step(plain[0]))
    assert all(np.isfinite(copy).all() for each in state(normed) for copy in each)
    assert not same(trained(), before)


def test_sums_of_16_bits_do_not_reach_the_loss(tensorflow: ModuleType) -> None:
    """A sum over 256 × 256 ones is infinite in float16."""
    from segmenter.model.building import build_model
    from segmenter.training.losses import segmentation_loss

    tf = tensorflow
    assert not np.isfinite(float(tf.reduce_sum(tf.ones((256, 256), tf.float16))))
    model = build_model(UNetConfig(depth=1, width=1), 3, CLASSES, dtype="mixed_float16")
    logits = model(tf.zeros((1, 256, 256, 3)), training=False)
    terms = LossConfig(focal=1, dice=1, jaccard=1, tversky=1)
    share = segmentation_loss(terms, None, None)(tf.zeros((1, 256, 256), tf.uint8), logits)
    assert logits.dtype == share.dtype == tf.float32
    assert np.isfinite(float(share))
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
