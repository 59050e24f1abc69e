"""Bits: on a CPU, the same step gives the same bits, whatever else the machine does meanwhile."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import LossConfig, UNetConfig
from segmenter.training.losses import in_order, segmentation_loss
from tests.helpers.executed_sums import widest_sum
from tests.helpers.laboratory import BATCH, WEIGHTS
from tests.helpers.small_training import SGD, Training, batches

EVERY_TERM = ("cross_entropy", "focal", "dice", "jaccard", "tversky", "lovasz")
SUM = LossConfig(**dict.fromkeys(EVERY_TERM, 0.5), label_smoothing=0.1, ohem=0.5, boundary=2.0)
MODEL = UNetConfig(depth=1, width=4, dropout=0.1)
ADAM = SGD.model_copy(update={"optimizer": "adamw", "clip_norm": 1.0})


def test_no_sum_of_several_replicas_depends_on_who_is_ready(tensorflow: ModuleType) -> None:
    """TensorFlow takes sums of more than two tensors in any order."""
    training = Training(MODEL, segmentation_loss(SUM, WEIGHTS, BATCH), 2, "float32", training=ADAM)
    sums = [node for node in training.nodes(batches(1, 32)) if node.op == "AddN"]
    data = {node.name: [each for each in node.input if not each.startswith("^")] for node in sums}
    assert [name for name, inputs in data.items() if len(inputs) > 2] == []


@pytest.mark.slow
def test_steps_over_replicas_and_micro_batches_give_the_same_bits_again(tensorflow: ModuleType) -> None:
    """From the same state: all weights, moments, statistics and losses after three steps."""
    per_pixel = LossConfig(cross_entropy=1.0, dice=0.5, normalisation="per_pixel", class_weights=WEIGHTS)
    training = Training(MODEL, per_pixel, 4, "float32", training=ADAM, accumulate=2)
    variables = [*training.model.variables, *training.optimiser.variables]
    start = [v.numpy() for v in variables]

    def run() -> list[Any]:
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        return [*training.each(batches(3, 48)), *(v.numpy().tobytes() for v in variables)]

    first = run()
    assert all(run() == first for _ in range(6))
    assert first[3:] != [value.tobytes() for value in start]


def test_gradients_of_the_losses_are_added_two_by_two_when_it_runs(tensorflow: ModuleType) -> None:
    def widest(fork: Callable[[Any], list[Any]]) -> int:
        @tensorflow.function(input_signature=[tensorflow.TensorSpec((None,))])
        def gradient(x: Any) -> Any:
            with tensorflow.GradientTape() as tape:
                tape.watch(x)
                y = sum(tensorflow.reduce_sum(tensorflow.sin(p * (i + 2.0))) for i, p in enumerate(fork(x)))
            return tape.gradient(y, x) * 3.0

        return widest_sum(gradient, tensorflow.ones(64))

    assert widest(lambda x: [x] * 4) == 4
    assert widest(lambda x: in_order(x, 4)) <= 2


def test_gradients_are_added_in_the_order_of_the_users(tensorflow: ModuleType) -> None:
    tf = tensorflow

    factors = np.random.default_rng(2).normal(size=(4, 1000)).astype("float32")
    x = tf.ones(1000)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = sum(tf.reduce_sum(f * each) for f, each in zip(factors, in_order(x, 4), strict=True))
    expected = ((factors[0] + factors[1]) + factors[2]) + factors[3]
    assert np.array_equal(tape.gradient(y, x), expected)
