"""The compiled step apart from law 2: micro-batches, steps a call, averages, frozen weights, rates, 16 bits.

Keras looks for an overflow on replica 0 alone, and sums afterwards: here a step that overflows on any replica
is skipped by all, and leaves no trace.
"""

import functools
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from datasets.commands.gpu.bench import unequal_copies
from segmenter.base.errors import ConfigError
from segmenter.config.recipe import LossConfig, Recipe, TrainingConfig, UNetConfig
from segmenter.devices.strategy import Devices
from segmenter.grid.labels import IGNORE
from segmenter.training.checks import check_devices
from segmenter.training.losses import segmentation_loss
from segmenter.training.optimiser import build_optimiser
from segmenter.training.step import tiles_holding
from tests.helpers.laboratory import BATCH, CLASSES, EMPHASES, LIMIT, SHARES, SIDE, SUM, WEIGHTS
from tests.helpers.naive import SEEN
from tests.helpers.refusals import refused
from tests.helpers.small_training import (
    AVERAGE,
    NO_NORM,
    NORM,
    PER_IMAGE,
    PER_PIXEL,
    SGD,
    Training,
    batches,
    central_of,
    difference,
)

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.slow
def test_micro_batches_without_batchnorm_equal_the_batch() -> None:
    stack = batches(2)
    whole, cut = Training(NO_NORM, PER_PIXEL), Training(NO_NORM, PER_PIXEL, 2, accumulate=2)
    start = whole.weights()
    np.testing.assert_allclose(cut.each(stack), whole.each(stack), rtol=LIMIT)
    assert difference(cut.weights(), whole.weights()) <= LIMIT
    assert difference(start, whole.weights()) > SEEN  # they did move


@pytest.mark.slow
def test_with_batchnorm_the_statistics_are_those_of_the_micro_batches() -> None:
    """As documented: each of the two micro-batches moves the averages, as steps on the halves would."""
    image, valid, label = batches(1)
    cut = Training(NORM, LossConfig(), accumulate=2)
    cut.each((image, valid, label))
    pixels = np.where(valid[..., None], (image.astype("float64") - 120) / 60, 0)[0]
    first = Training(NORM, LossConfig()).model.get_layer("down0_conv0")(pixels).numpy()
    layer = cut.model.get_layer("down0_norm0")
    mean = np.zeros(first.shape[-1])
    for half in np.split(first, 2):
        mean = layer.momentum * mean + (1 - layer.momentum) * half.mean(axis=(0, 1, 2))
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-10)


@pytest.mark.slow
def test_steps_of_one_call_are_the_steps_one_by_one_and_weights_are_averaged_by_the_formula() -> None:
    stack = batches(3)
    one, many = (Training(NORM, LossConfig(), 2, average=AVERAGE) for _ in range(2))
    losses, average = [], one.weights()
    for step in range(3):
        losses += one.each(tuple(part[step : step + 1] for part in stack))
        decay = min(AVERAGE, (2 + step) / (11 + step))
        average = [decay * a + (1 - decay) * w for a, w in zip(average, one.weights(), strict=True)]
    assert difference(one.weights(averaged=True), average) <= 1e-14
    assert difference(average, one.weights()) > SEEN
    blank = tuple(np.zeros_like(part[:1]) for part in stack)
    filled = tuple(np.concatenate(pair) for pair in zip(stack, blank, strict=True))
    first = many.at_once(tuple(part[:2] for part in filled), 2)
    rest, held, applied, scales = many.at_once(tuple(part[2:] for part in filled), 1)
    assert [*first.loss.numpy(), *rest.numpy()] == losses
    assert (applied.numpy().tolist(), scales.numpy().tolist()) == ([True], [1.0])  # no loss scale
    for averaged in (False, True):
        for a, b in zip(many.weights(averaged), one.weights(averaged), strict=True):
            np.testing.assert_array_equal(a, b)
    tiles = [sum((image == k).sum() >= 8 for image in stack[2][2]) for k in range(CLASSES)]
    assert held.numpy()[0, 0].tolist() == tiles
    assert unequal_copies(many.devices.strategy, many.averaged.model.variables) == 0


@pytest.mark.parametrize(
    ("training", "where"),
    [
        ({"xla": True}, "training.xla"),
        ({"accumulate": 4}, "training.accumulate"),
        ({"global_batch": 6}, "training.global_batch"),
    ],
)
def test_what_does_not_go_with_the_devices_is_refused(training: dict[str, Any], where: str) -> None:
    folder = {"kind": "potsdam", "root": "nowhere"}
    recipe = Recipe(name="x", dataset=folder, training={"global_batch": 8, **training})
    devices = Devices(None, tuple(SimpleNamespace(name=f"CPU:{i}") for i in range(4)))
    with refused(ConfigError, where=where):
        check_devices(recipe, devices)


HANDED_ON = {"Cast", "TopKV2"}
"""Kernels of a GPU for int32: `Cast` makes other numbers of it, `TopKV2` gives its order so."""


@pytest.mark.slow
@pytest.mark.parametrize("config", [SUM, EMPHASES], ids=["sum of all", "emphases"])
def test_no_map_of_int32_is_computed_with(config: LossConfig) -> None:
    """TensorFlow 2.21 adds, multiplies and compares int32 in host memory, also on a GPU."""
    training = Training(NORM, segmentation_loss(config, WEIGHTS, BATCH, SHARES), dtype="float32")
    batch = training.devices.distribute(tuple(part[0] for part in batches(1)))
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


@functools.cache
def steps_of(count: int) -> Any:
    return batches(count)


def test_a_frozen_encoder_is_left_alone_to_the_bit_and_then_trains() -> None:
    settings = config(freeze_encoder=1, clip_norm=0.01)
    training = Training(NORM, PER_PIXEL, average=AVERAGE, accumulate=2, training=settings)
    start = named(training)
    training.at_once(steps_of(3), 3)
    frozen = named(training)
    assert {p for p in start if is_encoder(p)} & changed(start, frozen) == set()
    assert changed(start, frozen) == {p for p in start if not is_encoder(p)}
    state = dict(training.optimiser.arrays())  # by the names of the weights
    idle = [value for path, value in state.items() if "down" in path or "bottom" in path]
    assert idle
    assert all(not value.any() for value in idle)
    averaged = {v.path: v.numpy() for v in training.averaged.model.variables}
    assert {p for p in start if is_encoder(p)} & changed(start, averaged) == set()
    training.enter(1)
    training.at_once(steps_of(3), 2)
    assert changed(frozen, named(training)) == set(start)


def test_no_gradient_is_computed_for_frozen_weights() -> None:
    """Four of the seven convolutions are the encoder's; backward, only those of decoder and head are left."""
    training = Training(NORM, LossConfig(), training=config(freeze_encoder=1))
    assert training.operations(steps_of(1))["Conv2DBackpropFilter"] == 3
    assert training.operations(steps_of(1))["MaxPoolGrad"] == 0
    training.enter(1)
    assert training.operations(steps_of(1))["Conv2DBackpropFilter"] == 7


@pytest.mark.slow
def test_late_weights_begin_with_steps_as_large_as_the_first() -> None:
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


@pytest.mark.slow
def test_a_rate_scales_update_and_decay_of_its_stage() -> None:
    rates = {"encoder": 0.1, "encoder stage 1": 0.5, "head": 2}
    plain, paced = (Training(NORM, LossConfig(), training=config(rates=each)) for each in ({}, rates))
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


@pytest.mark.slow
def test_frozen_batch_norm_stays_and_costs_no_collective() -> None:
    """Two replicas do what one does; six layers of BatchNorm, four of the encoder, have two sums each."""
    which = ("none", "encoder", "all")
    of = {each: Training(NORM, LossConfig(), 2, training=config(freeze_norms=each)) for each in which}
    sums = {name: two.operations(steps_of(1))["CollectiveReduceV2"] for name, two in of.items()}
    assert sums["none"] - sums["encoder"] == 4 * 2 * 2
    assert sums["none"] - sums["all"] == 6 * 2 * 2
    one, two = Training(NORM, LossConfig(), training=config(freeze_norms="encoder")), of["encoder"]
    start = named(two)
    norms = {path for path in start if "_norm" in path and is_encoder(path)}
    assert len(norms) == 4 * 4
    one.each(steps_of(3))
    two.each(steps_of(3))
    assert changed(start, named(two)) == set(start) - norms
    assert difference(two.weights(), one.weights()) < 1e-12


def test_decay_spares_scales_and_shifts_and_nothing_else() -> None:
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


REPLICAS, LOCAL, STEPS = 2, BATCH // 2, 3
PLAIN = UNetConfig(depth=1, width=3, normalisation="none")
MIXED = SGD.model_copy(update={"precision": "mixed_float16"})
SCALE = 2.0**10  # with which nothing overflows
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
    return made(PLAIN, strategy=strategy, accumulate=1 if request.param == "whole" else 2)


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


@pytest.mark.parametrize("bad", [0, *(pytest.param(r, marks=pytest.mark.slow) for r in range(1, REPLICAS))])
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


@pytest.mark.slow
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
