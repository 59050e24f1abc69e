"""The compiled step apart from law 2's matrix: micro-batches, several steps a call, averaged weights."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.commands.gpu.laboratory import BATCH, CLASSES, EMPHASES, LIMIT, SHARES, SIDE, SUM, WEIGHTS
from segmenter.base.errors import ConfigError
from segmenter.config.recipe import LossConfig, Recipe
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
    from segmenter.devices.strategy import Devices
    from segmenter.training.checks import check_devices

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
    from segmenter.training.losses import segmentation_loss

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
    from segmenter.training.step import tiles_holding

    label = np.zeros((2, side, side), np.uint8)
    label[1, 0, 0] = 1
    most = side * side
    assert tiles_holding(tensorflow.constant(label), 3, most).numpy().tolist() == [1, 0, 0]
    assert tiles_holding(tensorflow.constant(label), 3, most - 1).numpy().tolist() == [2, 0, 0]
    assert tiles_holding(tensorflow.constant(label), 3, 1).numpy().tolist() == [2, 1, 0]
