"""Silent faults of Keras 3 and tf.distribute, each with the program's own way beside it.

One test for each trap that no other file holds the program against. Elsewhere: clipping before the sum, means
of means, local BatchNorm, replicas without an image (test_equivalence.py); masks, counts
and E[x²] − E[x]² in BatchNorm (test_batchnorm.py); an operation that loses a summand (test_strategy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest

from datasets.commands.gpu.replicas import strategy_of
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from tests.helpers.mixed_training import CLASSES, REPLICAS, Training
from tests.helpers.naive import KerasUpdate

SCALE = 2.0**15  # where Keras starts
TOO_LARGE = 2.0**126
"""A loss scale with which gradients of 16 bits overflow, and zeros do not."""


@pytest.fixture(scope="module")
def plain(tensorflow: ModuleType) -> Training:
    """Without BatchNorm, by whose sums an overflow on one replica would be one on all."""
    return Training("none")


@pytest.fixture(scope="module")
def in_micro_batches(tensorflow: ModuleType) -> Training:
    """The same in two micro-batches, whose gradients are added up: labels, and overflow, are in the first."""
    return Training("none", accumulate=2)


@pytest.mark.parametrize("bad", range(REPLICAS))
def test_an_overflow_on_one_replica_is_skipped_by_all(plain: Training, bad: int) -> None:
    skipped_by_all(plain, bad)


@pytest.mark.parametrize("bad", [0, 2])
def test_an_overflow_in_one_micro_batch_is_skipped_by_all(in_micro_batches: Training, bad: int) -> None:
    skipped_by_all(in_micro_batches, bad)
    before = in_micro_batches.weights()
    in_micro_batches.optimiser.dynamic_scale.assign(SCALE)
    in_micro_batches.run((bad,))  # nothing of it is left in the sums
    assert all(np.isfinite(weight).all() for weight in in_micro_batches.weights())
    assert any(not np.array_equal(a, b) for a, b in zip(before, in_micro_batches.weights(), strict=True))


def skipped_by_all(training: Training, bad: int) -> None:
    training.restart(TOO_LARGE)
    before = training.weights()
    assert math.isfinite(training.run((bad,)))
    assert all(np.array_equal(a, b) for a, b in zip(before, training.weights(), strict=True))
    assert int(training.optimiser.iterations.numpy()) == 0
    assert scales(training) == [TOO_LARGE / 2] * REPLICAS


def scales(training: Training) -> list[float]:
    """The loss scale of each replica."""
    (copies,) = training.copies([training.optimiser.dynamic_scale])
    return [float(copy) for copy in copies]


def test_the_loss_scale_grows_on_all_replicas_in_the_same_step(plain: Training) -> None:
    """After so many steps without an overflow, counted once a step; an overflow starts the count anew."""
    plain.restart(SCALE)
    loss_scale = plain.optimiser.loss_scale
    loss_scale.steps.assign(loss_scale.growth_steps - 2)
    found = []
    for _ in range(3):
        plain.run((1,))
        found.append(scales(plain))
    assert found == [[SCALE] * REPLICAS, [2 * SCALE] * REPLICAS, [2 * SCALE] * REPLICAS]
    loss_scale.steps.assign(loss_scale.growth_steps - 1)
    plain.optimiser.dynamic_scale.assign(TOO_LARGE)
    plain.run((3,))
    assert scales(plain) == [TOO_LARGE / 2] * REPLICAS
    assert [int(copy) for copy in plain.copies([loss_scale.steps])[0]] == [0] * REPLICAS


def test_after_an_overflow_all_go_on_in_step(plain: Training) -> None:
    plain.restart(TOO_LARGE)
    plain.run((2,))
    before = plain.weights()
    plain.optimiser.dynamic_scale.assign(SCALE)
    plain.run((2,))
    assert int(plain.optimiser.iterations.numpy()) == 1  # once, not once a replica
    assert any(not np.array_equal(a, b) for a, b in zip(before, plain.weights(), strict=True))
    assert all(np.isfinite(weight).all() for weight in plain.weights())
    assert in_step(plain, (*plain.model.variables, *plain.optimiser.variables))


def test_keras_own_way_lets_the_overflow_through(tensorflow: ModuleType) -> None:
    """Its loss scale looks at replica 0 alone, and its optimiser sums afterwards."""
    with own_sum():
        naive = Training("none", keras_optimiser)
        naive.restart(TOO_LARGE)
        naive.run((2,))
    assert not all(np.isfinite(weight).all() for weight in naive.weights())
    assert float(naive.optimiser.dynamic_scale.numpy()) >= TOO_LARGE


def keras_optimiser(config: TrainingConfig, model: Any, steps: int) -> Any:
    import keras

    own = keras.optimizers.SGD(config.learning_rate, 0.9)
    return KerasUpdate(keras.optimizers.LossScaleOptimizer(own), model)


@contextmanager
def own_sum() -> Iterator[None]:
    """The step without our sum over the replicas."""
    with mock.patch("segmenter.training.step.sum_over_replicas", lambda gradients: gradients):
        yield


def in_step(training: Training, variables: Any) -> bool:
    """Whether all replicas hold the same, to the bit."""
    return all((copy == copies[0]).all() for copies in training.copies(variables) for copy in copies)


def test_all_replicas_hold_the_same_after_some_steps(tensorflow: ModuleType) -> None:
    """Weights, moving statistics, momenta and loss scale; each replica's images and labels are others."""
    training = Training("batch")
    for labelled in ((0, 1, 2, 3), (1,), (0, 3)):
        training.run(labelled)
    moving = [v for v in training.model.variables if "moving" in v.path]
    assert len(moving) == 2 * 6
    assert all(np.abs(copies[0]).max() > 0 for copies in training.copies(moving))
    assert in_step(training, (*training.model.variables, *training.optimiser.variables))


# ------------------------------------------------------------------------------------------ losses


def test_the_average_over_the_batch_is_no_average_over_pixels(tensorflow: ModuleType) -> None:
    """`compute_average_loss` divides by images alone; ours gives each pixel its part of its image."""
    from segmenter.training.losses import segmentation_loss

    tf = tensorflow
    label, logits = tf.zeros((16, 8, 8), tf.uint8), tf.zeros((16, 8, 8, 3))
    of_pixels = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(label, tf.int32), logits)
    assert float(tf.nn.compute_average_loss(of_pixels, global_batch_size=64)) == pytest.approx(
        16 * math.log(3)
    )
    share = float(segmentation_loss(LossConfig(), None, 64)(label, logits))
    assert share == pytest.approx(math.log(3) * 16 / 64, rel=1e-6)


def test_a_strategys_scope_does_not_change_the_loss(tensorflow: ModuleType) -> None:
    """Keras' own losses divide by the number of replicas there, also where nothing is distributed."""
    import keras

    from segmenter.training.losses import segmentation_loss

    tf = tensorflow
    label, logits = tf.zeros((2, 8, 8), tf.uint8), tf.zeros((2, 8, 8, 3))
    with strategy_of(REPLICAS).scope():
        ours = float(segmentation_loss(LossConfig(), None, 2)(label, logits))
        theirs = float(keras.losses.SparseCategoricalCrossentropy(from_logits=True)(label, logits))
    assert ours == pytest.approx(math.log(3), rel=1e-6)
    assert theirs == pytest.approx(math.log(3) / REPLICAS, rel=1e-6)


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
