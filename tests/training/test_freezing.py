"""Frozen encoders and learning rates by stage: what a step leaves alone, how much it changes the rest."""

import functools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from datasets.commands.gpu.laboratory import BATCH
from segmenter.config.recipe import TrainingConfig
from tests.helpers.small_training import NORM, PER_IMAGE, PER_PIXEL, Training, batches, difference

RATE, DECAY = 0.01, 0.1


def config(**settings: Any) -> TrainingConfig:
    plain = {"global_batch": BATCH, "schedule": "constant", "warmup": 0, "learning_rate": RATE}
    return TrainingConfig(**{**plain, "weight_decay": DECAY, **settings})


def named(training: Training) -> dict[str, NDArray[Any]]:
    return {v.path: v.numpy() for v in training.model.variables}


def is_encoder(path: str) -> bool:
    return path.startswith(("down", "bottom"))


def changed(before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]]) -> set[str]:
    return {path for path in before if not np.array_equal(before[path], after[path])}


def moments(training: Training) -> dict[str, NDArray[Any]]:
    """The optimiser's state by the names of the weights."""
    return dict(training.optimiser.arrays())


@functools.cache
def steps_of(count: int) -> Any:
    return batches(count)


@pytest.mark.parametrize(
    ("replicas", "options"),
    [
        (1, {"average": 0.7, "accumulate": 2, "training": {"clip_norm": 0.01}}),
        pytest.param(
            *(2, {"dtype": "mixed_float16", "training": {"precision": "mixed_float16"}}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["averaged, accumulated and clipped", "16 bits on two replicas"],
)
def test_a_frozen_encoder_is_left_alone_to_the_bit_and_then_trains(
    tensorflow: ModuleType, replicas: int, options: dict[str, Any]
) -> None:
    settings = config(freeze_encoder=1, **options.get("training", {}))
    loss = PER_IMAGE if "accumulate" not in options else PER_PIXEL
    training = Training(NORM, loss, replicas, **{**options, "training": settings})
    start = named(training)
    training.at_once(steps_of(3), 3)
    frozen = named(training)
    assert {p for p in start if is_encoder(p)} & changed(start, frozen) == set()
    assert changed(start, frozen) == {p for p in start if not is_encoder(p)}
    idle = [value for path, value in moments(training).items() if "down" in path or "bottom" in path]
    assert idle
    assert all(not value.any() for value in idle)
    if training.averaged is not None:
        averaged = {v.path: v.numpy() for v in training.averaged.model.variables}
        assert {p for p in start if is_encoder(p)} & changed(start, averaged) == set()
    training.enter(1)
    training.at_once(steps_of(3), 2)
    assert changed(frozen, named(training)) == set(start)


def test_no_gradient_is_computed_for_frozen_weights(tensorflow: ModuleType) -> None:
    """Of the seven convolutions four are the encoder's; backward, only those of decoder and head are left."""
    training = Training(NORM, PER_IMAGE, training=config(freeze_encoder=1))
    assert training.operations(steps_of(1))["Conv2DBackpropFilter"] == 3
    assert training.operations(steps_of(1))["MaxPoolGrad"] == 0
    training.enter(1)
    assert training.operations(steps_of(1))["Conv2DBackpropFilter"] == 7


@pytest.mark.slow
def test_late_weights_begin_with_steps_as_large_as_the_first(tensorflow: ModuleType) -> None:
    """Adam's first update is the learning rate in each component, whenever it is; Keras' own would be 3.2."""
    training = Training(NORM, PER_IMAGE, training=config(freeze_encoder=1, weight_decay=0))
    training.at_once(steps_of(9), 9)
    before = named(training)
    training.enter(1)
    training.at_once(steps_of(1), 1)
    after = named(training)
    kernels = [p for p in before if is_encoder(p) and p.endswith("kernel")]
    moved = np.concatenate([np.abs(after[p] - before[p]).ravel() for p in kernels])
    assert np.median(moved) == pytest.approx(RATE, rel=1e-3)
    assert moved.max() <= RATE * (1 + 1e-6)


@pytest.mark.parametrize(
    ("optimizer", "replicas"), [("adamw", 1), pytest.param("sgd", 2, marks=pytest.mark.slow)]
)
def test_a_rate_scales_update_and_decay_of_its_stage(
    tensorflow: ModuleType, optimizer: str, replicas: int
) -> None:
    plain = Training(NORM, PER_IMAGE, replicas, training=config(optimizer=optimizer))
    rates = {"encoder": 0.1, "encoder stage 1": 0.5, "head": 2}
    paced = Training(NORM, PER_IMAGE, replicas, training=config(optimizer=optimizer, rates=rates))
    start = named(plain)
    for training in (plain, paced):
        training.at_once(steps_of(1), 1)
    full, own = named(plain), named(paced)
    expected = {"down": 0.5, "bottom": 0.1, "logits": 2, "up": 1}
    for variable in plain.model.trainable_variables:
        path = variable.path
        rate = next(value for name, value in expected.items() if path.startswith(name))
        step = full[path] - start[path]
        np.testing.assert_allclose(own[path] - start[path], rate * step, rtol=1e-6, atol=1e-13)


def test_frozen_batch_norm_stays_and_costs_no_collective(tensorflow: ModuleType) -> None:
    """Two replicas do what one does; six layers of BatchNorm, four of the encoder, have two sums each."""
    which = ("none", "encoder", "all")
    of = {each: Training(NORM, PER_IMAGE, 2, training=config(freeze_norms=each)) for each in which}
    sums = {name: two.operations(steps_of(1))["CollectiveReduceV2"] for name, two in of.items()}
    assert sums["none"] - sums["encoder"] == 4 * 2 * 2
    assert sums["none"] - sums["all"] == 6 * 2 * 2
    one, two = Training(NORM, PER_IMAGE, training=config(freeze_norms="encoder")), of["encoder"]
    start = named(two)
    norms = {path for path in start if "_norm" in path and is_encoder(path)}
    assert len(norms) == 4 * 4
    one.each(steps_of(3))
    two.each(steps_of(3))
    assert changed(start, named(two)) == set(start) - norms
    assert difference(two.weights(), one.weights()) < 1e-12


def test_decay_spares_scales_and_shifts_and_nothing_else(tensorflow: ModuleType) -> None:
    """By computation: a step without any gradient is the decay alone."""
    import keras

    from segmenter.training.optimiser import build_optimiser

    class Scale(keras.layers.Layer):  # type: ignore[misc]
        """As ConvNeXt's LayerScale, whose weight has no name."""

        def build(self, shape: Any) -> None:
            self.gamma = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x: Any) -> Any:
            return x * self.gamma

    layers = keras.layers
    image = keras.Input((8, 8, 2))
    x = layers.Conv2D(3, 3, name="beta_bias_conv", bias_initializer="ones")(image)
    x = layers.DepthwiseConv2D(3, name="gamma_depthwise", bias_initializer="ones")(x)
    x = layers.SeparableConv2D(2, 3, bias_initializer="ones")(x)
    x = layers.LayerNormalization(beta_initializer="ones")(layers.BatchNormalization()(x))
    model = keras.Model(image, layers.Dense(2, bias_initializer="ones")(Scale()(x)))
    optimiser = build_optimiser(config(), model, 10)
    before = [v.numpy() for v in model.trainable_variables]
    trained = model.trainable_variables
    optimiser.apply(optimiser.flat([v * 0 for v in before], trained), trained)
    decayed = set()
    for variable, value in zip(model.trainable_variables, before, strict=True):
        if np.array_equal(variable.numpy(), value):
            continue
        np.testing.assert_allclose(variable.numpy(), value * (1 - RATE * DECAY), rtol=1e-6)
        decayed.add(variable.path)
    separable, dense = (next(x.name for x in model.layers if x.name.startswith(n)) for n in ("sep", "dense"))
    assert decayed == {
        "beta_bias_conv/kernel", "gamma_depthwise/kernel", f"{separable}/depthwise_kernel",
        f"{separable}/pointwise_kernel", f"{dense}/kernel",
    }  # fmt: skip
