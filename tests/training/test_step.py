"""The compiled step apart from law 2: micro-batches, steps a call, averages; frozen weights, rates."""

import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from datasets.commands.gpu.laboratory import BATCH, CLASSES, EMPHASES, LIMIT, SHARES, SIDE, SUM, WEIGHTS
from segmenter.base.errors import ConfigError
from segmenter.config.recipe import LossConfig, Recipe, TrainingConfig
from segmenter.devices.strategy import Devices
from segmenter.training.checks import check_devices
from segmenter.training.losses import segmentation_loss
from segmenter.training.optimiser import build_optimiser
from segmenter.training.step import tiles_holding
from tests.helpers.naive import SEEN
from tests.helpers.refusals import refused
from tests.helpers.small_training import (
    AVERAGE,
    NO_NORM,
    NORM,
    PER_IMAGE,
    PER_PIXEL,
    Training,
    batches,
    difference,
)


@pytest.mark.parametrize(
    ("loss", "replicas"),
    [
        (PER_PIXEL, 2),
        pytest.param(PER_PIXEL, 4, marks=pytest.mark.slow),
        pytest.param(PER_IMAGE, 2, marks=pytest.mark.slow),
    ],
)
def test_micro_batches_without_batchnorm_equal_the_batch(
    tensorflow: ModuleType, loss: LossConfig, replicas: int
) -> None:
    stack = batches(2)
    whole, cut = Training(NO_NORM, loss), Training(NO_NORM, loss, replicas, accumulate=2)
    start = whole.weights()
    np.testing.assert_allclose(cut.each(stack), whole.each(stack), rtol=LIMIT)
    assert difference(cut.weights(), whole.weights()) <= LIMIT
    assert difference(start, whole.weights()) > SEEN  # they did move


def test_with_batchnorm_the_statistics_are_those_of_the_micro_batches(tensorflow: ModuleType) -> None:
    """As documented: each of the two micro-batches moves the averages, as steps on the halves would."""
    image, valid, label = batches(1)
    cut = Training(NORM, PER_IMAGE, accumulate=2)
    cut.each((image, valid, label))
    pixels = np.where(valid[..., None], (image.astype("float64") - 120) / 60, 0)[0]
    first = Training(NORM, PER_IMAGE).model.get_layer("down0_conv0")(pixels).numpy()
    layer = cut.model.get_layer("down0_norm0")
    mean = np.zeros(first.shape[-1])
    for half in np.split(first, 2):
        mean = layer.momentum * mean + (1 - layer.momentum) * half.mean(axis=(0, 1, 2))
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-10)


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_steps_of_one_call_are_the_steps_one_by_one(tensorflow: ModuleType, replicas: int) -> None:
    stack = batches(3)
    one, many = (Training(NORM, PER_IMAGE, replicas, "float32", AVERAGE) for _ in range(2))
    expected = one.each(stack)
    blank = tuple(np.zeros_like(part[:1]) for part in stack)
    filled = tuple(np.concatenate(pair) for pair in zip(stack, blank, strict=True))
    first = many.at_once(tuple(part[:2] for part in filled), 2)
    rest, held, applied, scales = many.at_once(tuple(part[2:] for part in filled), 1)
    assert [*first.loss.numpy(), *rest.numpy()] == [np.float32(loss) for loss in expected]
    assert (applied.numpy().tolist(), scales.numpy().tolist()) == ([True], [1.0])  # no loss scale in float32
    for a, b in zip(many.weights(), one.weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(many.weights(averaged=True), one.weights(averaged=True), strict=True):
        np.testing.assert_array_equal(a, b)
    tiles = [sum((image == k).sum() >= 8 for image in stack[2][2]) for k in range(CLASSES)]
    assert held.numpy()[0, 0].tolist() == tiles


def test_averaged_weights_follow_the_formula_on_any_number_of_replicas(tensorflow: ModuleType) -> None:
    stack = batches(4)
    one, two = (Training(NORM, PER_IMAGE, replicas, average=AVERAGE) for replicas in (1, 2))
    expected = one.weights()
    for step in range(4):
        one.each(tuple(part[step : step + 1] for part in stack))
        decay = min(AVERAGE, (2 + step) / (11 + step))
        expected = [decay * a + (1 - decay) * w for a, w in zip(expected, one.weights(), strict=True)]
    assert difference(one.weights(averaged=True), expected) <= 1e-14
    assert difference(expected, one.weights()) > SEEN
    two.each(stack)
    assert difference(two.weights(averaged=True), expected) <= LIMIT
    for variable in two.averaged.model.variables:  # the same on each replica
        copies = [v.numpy() for v in two.devices.strategy.experimental_local_results(variable.value)]
        assert all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize(
    ("training", "where"),
    [
        ({"xla": True}, "training.xla"),
        ({"accumulate": 4}, "training.accumulate"),
        ({"global_batch": 6}, "training.global_batch"),
    ],
)
def test_what_does_not_go_with_the_devices_is_refused(
    tensorflow: ModuleType, training: dict[str, Any], where: str
) -> None:
    folder = {"kind": "potsdam", "root": "nowhere"}
    recipe = Recipe(name="x", dataset=folder, training={"global_batch": 8, **training})
    devices = Devices(None, tuple(SimpleNamespace(name=f"CPU:{i}") for i in range(4)))
    with refused(ConfigError, where=where):
        check_devices(recipe, devices)


HANDED_ON = {"Cast", "TopKV2"}
"""Kernels of a GPU for int32: `Cast` makes other numbers of it, `TopKV2` gives its order so."""


@pytest.mark.parametrize("config", [SUM, EMPHASES], ids=["sum of all", "emphases"])
def test_no_map_of_int32_is_computed_with(tensorflow: ModuleType, config: LossConfig) -> None:
    """TensorFlow 2.21 adds, multiplies and compares int32 in host memory, also on a GPU."""
    training = Training(NORM, segmentation_loss(config, WEIGHTS, BATCH, SHARES), dtype="float32")
    batch = training.devices.distributed(tuple(part[0] for part in batches(1)))
    graph = training.step.get_concrete_function(batch).graph
    found = {op.type for op in graph.get_operations() if any(map(_is_map, (*op.inputs, *op.outputs)))}
    assert found <= HANDED_ON
    assert "Conv2D" in {op.type for op in graph.get_operations()}  # it is the graph that computes


def _is_map(tensor: Any) -> bool:
    size = tensor.shape.num_elements()
    return tensor.dtype == np.int32 and (size is None or size >= BATCH * SIDE * SIDE)


@pytest.mark.parametrize("side", [5, 3000])
def test_pixels_are_counted_exactly(tensorflow: ModuleType, side: int) -> None:
    """In float32, tile by tile: 9 million pixels are below 2^24."""
    label = np.zeros((2, side, side), np.uint8)
    label[1, 0, 0] = 1
    most = side * side
    assert tiles_holding(tensorflow.constant(label), 3, most).numpy().tolist() == [1, 0, 0]
    assert tiles_holding(tensorflow.constant(label), 3, most - 1).numpy().tolist() == [2, 0, 0]
    assert tiles_holding(tensorflow.constant(label), 3, 1).numpy().tolist() == [2, 1, 0]


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
    """Four of the seven convolutions are the encoder's; backward, only those of decoder and head are left."""
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
