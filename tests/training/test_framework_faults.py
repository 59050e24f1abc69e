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
from numpy.typing import NDArray

from datasets.commands.gpu.bench import strategy_of
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.grid.labels import IGNORE
from tests.helpers.naive import KerasUpdate

REPLICAS, SIDE, CLASSES = 2, 8, 3
SCALE = 2.0**15  # where Keras starts
TOO_LARGE = 2.0**126
"""A loss scale with which gradients of 16 bits overflow, and zeros do not."""


class Training:
    """A model of 16 bits with its optimiser and compiled step, on two replicas; momentum from rest.

    Each replica has as many images as micro-batches, by default one.
    """

    def __init__(self, normalisation: str, wrapped: Any = None, accumulate: int = 1) -> None:
        import keras

        from segmenter.model.building import build_model
        from segmenter.model.normalisation import Normalisation
        from segmenter.training.losses import segmentation_loss
        from segmenter.training.optimiser import build_optimiser
        from segmenter.training.step import StepParts, make_step

        keras.utils.set_random_seed(3)
        self.strategy, self.images = strategy_of(REPLICAS), accumulate
        batch = REPLICAS * accumulate
        config = UNetConfig(depth=1, width=2, normalisation=normalisation)
        training = TrainingConfig(
            optimizer="sgd", precision="mixed_float16", schedule="constant", warmup=0, global_batch=batch
        )
        with self.strategy.scope():
            self.model = build_model(config, 3, CLASSES, dtype="mixed_float16", synchronised=True)
            self.optimiser = (wrapped or build_optimiser)(training, self.model, 10)
        plain = Normalisation.of([120.0] * 3, [60.0] * 3)
        loss = segmentation_loss(LossConfig(), None, batch)
        self.step = make_step(
            StepParts(self.strategy, self.model, self.optimiser, loss, plain, 1, accumulate)
        )
        self._start = [(v, v.numpy()) for v in (*self.model.variables, *self.optimiser.variables)]

    def restart(self, scale: float) -> None:
        for variable, value in self._start:
            variable.assign(value)
        self.optimiser.dynamic_scale.assign(scale)

    def run(self, labelled: tuple[int, ...]) -> float:
        """One step, in which only the first image of some replicas has labels; gives the loss."""
        rng = np.random.default_rng(8)
        image = rng.integers(0, 256, (REPLICAS, self.images, SIDE, SIDE, 3), np.uint8)
        label = np.full((REPLICAS, self.images, SIDE, SIDE), IGNORE, np.uint8)
        label[list(labelled), 0] = rng.integers(0, CLASSES, (len(labelled), SIDE, SIDE))
        return float(self.step(self._dealt(image, np.ones(label.shape, bool), label))[0])

    def _dealt(self, *parts: NDArray[Any]) -> Any:
        import tensorflow as tf

        return self.strategy.experimental_distribute_values_from_function(
            lambda c: tuple(tf.constant(part[c.replica_id_in_sync_group]) for part in parts)
        )

    def copies(self, variables: Any) -> list[list[NDArray[Any]]]:
        """Return each replica's copy of each variable."""
        found = [self.strategy.experimental_local_results(v.value) for v in variables]
        return [[np.asarray(part) for part in parts] for parts in found]

    def weights(self) -> list[NDArray[Any]]:
        return [copy for copies in self.copies(self.model.variables) for copy in copies]


@pytest.fixture(scope="module")
def plain(tensorflow: ModuleType) -> Training:
    """Without BatchNorm, by whose sums an overflow on one replica would be one on all."""
    return Training("none")


@pytest.fixture(scope="module", params=[1, 2], ids=["whole", "in micro-batches"])
def either(request: pytest.FixtureRequest, tensorflow: ModuleType) -> Training:
    """The same, also in two micro-batches, the first of which has the labels and the overflow."""
    return Training("none", accumulate=request.param)


@pytest.mark.parametrize("bad", range(REPLICAS))
def test_an_overflow_on_one_replica_is_skipped_by_all_who_then_go_on(either: Training, bad: int) -> None:
    either.restart(TOO_LARGE)
    before = either.weights()
    assert math.isfinite(either.run((bad,)))
    assert all(np.array_equal(a, b) for a, b in zip(before, either.weights(), strict=True))
    assert int(either.optimiser.iterations.numpy()) == 0
    assert scales(either) == [TOO_LARGE / 2] * REPLICAS
    either.optimiser.dynamic_scale.assign(SCALE)
    either.run((bad,))  # nothing of it is left in the sums
    assert int(either.optimiser.iterations.numpy()) == 1  # once, not once a replica
    assert any(not np.array_equal(a, b) for a, b in zip(before, either.weights(), strict=True))
    assert all(np.isfinite(weight).all() for weight in either.weights())
    assert in_step(either, (*either.model.variables, *either.optimiser.variables))


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
    plain.run((1,))
    assert scales(plain) == [TOO_LARGE / 2] * REPLICAS
    assert [int(copy) for copy in plain.copies([loss_scale.steps])[0]] == [0] * REPLICAS


def test_keras_own_way_lets_the_overflow_through(tensorflow: ModuleType) -> None:
    """Its loss scale looks at replica 0 alone, and its optimiser sums afterwards."""
    with own_sum():
        naive = Training("none", keras_optimiser)
        naive.restart(TOO_LARGE)
        naive.run((1,))
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
    for labelled in ((0, 1), (1,), (0,)):
        training.run(labelled)
    moving = [v for v in training.model.variables if "moving" in v.path]
    assert len(moving) == 2 * 6
    assert all(np.abs(copies[0]).max() > 0 for copies in training.copies(moving))
    assert in_step(training, (*training.model.variables, *training.optimiser.variables))


def test_an_overflow_on_the_way_forward_leaves_no_trace(tensorflow: ModuleType) -> None:
    """With BatchNorm every replica sees it, in the statistics; these must be finite again at once."""
    training = Training("batch")
    rng = np.random.default_rng(8)
    label = rng.integers(0, CLASSES, (REPLICAS, 1, SIDE, SIDE)).astype(np.uint8)
    image = rng.uniform(0, 255, (REPLICAS, 1, SIDE, SIDE, 3)).astype(np.float32)
    bright = image.copy()
    bright[1, 0, 3, 3, 0] = 1e7  # after normalisation above the largest float16, 65504

    def step(pixels: np.ndarray) -> float:
        return float(training.step(training._dealt(pixels, np.ones(label.shape, bool), label))[0])

    assert np.isfinite(step(image))
    before = [v.numpy() for v in training.model.trainable_variables]
    scale = float(training.optimiser.dynamic_scale.numpy())
    assert not np.isfinite(step(bright))
    assert float(training.optimiser.dynamic_scale.numpy()) == scale / 2
    for was, now in zip(before, training.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(was, now.numpy())
    assert all(np.isfinite(copy).all() for copy in training.weights())
    assert np.isfinite(step(image))
    assert all(np.isfinite(copy).all() for copy in training.weights())
    assert any(
        (was != now.numpy()).any()
        for was, now in zip(before, training.model.trainable_variables, strict=True)
    )


# ------------------------------------------------------------------------------------------ losses


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
