"""Bits: on a CPU, the same step gives the same bits, whatever else the machine does meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config import load_recipe
from segmenter.schema import LossConfig, ModelConfig, TrainingConfig

ROOT = Path(__file__).resolve().parents[1]
EVERY_TERM = ("cross_entropy", "focal", "dice", "jaccard", "tversky", "lovasz")
SUM = LossConfig(**dict.fromkeys(EVERY_TERM, 0.5), label_smoothing=0.1)


def step_of(model: ModelConfig, loss: LossConfig, *, plain_norm: bool = False) -> Any:
    """A compiled step on one device, of the demo's optimiser."""
    import tensorflow as tf

    from segmenter.losses import segmentation_loss
    from segmenter.model import build_model
    from segmenter.normalisation import Normalisation
    from segmenter.optimisers import build_optimiser
    from segmenter.steps import StepParts, make_step

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        net = build_model(model, 3, 6, synchronised=not plain_norm)
        optimiser = build_optimiser(TrainingConfig(clip_norm=1.0), net, 100)
    share = segmentation_loss(loss, (1.0, 2.0, 0.5, 1.0, 3.0, 1.5), 16)
    return make_step(
        StepParts(strategy, net, optimiser, share, Normalisation.of([120.0] * 3, [60.0] * 3), 32)
    )


def batch(side: int, images: int = 16) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shape = (images, side, side)
    return (
        rng.integers(0, 256, (*shape, 3), np.uint8),
        np.ones(shape, bool),
        rng.integers(0, 6, shape, np.uint8),
    )


def wide_sums(step: Any, side: int = 32) -> list[str]:
    """The sums of more than two tensors in a compiled step, which TensorFlow takes in any order."""
    import tensorflow as tf

    graph = step.get_concrete_function(tuple(map(tf.constant, batch(side)))).graph.as_graph_def()
    nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
    data = {n.name: [i for i in n.input if not i.startswith("^")] for n in nodes if n.op == "AddN"}
    return [name for name, inputs in data.items() if len(inputs) > 2]


def test_add_n_depends_on_who_else_reads(tensorflow: ModuleType) -> None:
    """The trap: a sum of three is another where its first two are still needed elsewhere."""
    tf = tensorflow
    values = tf.constant(np.random.default_rng(1).normal(size=(3, 1000)), tf.float32)

    @tf.function
    def total(held: bool, values: Any) -> Any:
        parts = [tf.sin(v) for v in tf.unstack(values)]
        return tf.add_n(parts), parts[:2] if held else values

    assert not np.array_equal(total(True, values)[0], total(False, values)[0])


@pytest.mark.parametrize("loss", [LossConfig(dice=1.0), SUM])
def test_no_sum_depends_on_who_is_ready(tensorflow: ModuleType, loss: LossConfig) -> None:
    small = ModelConfig(depth=2, width=4, dropout=0.1)
    assert wide_sums(step_of(small, loss)) == []
    assert len(wide_sums(step_of(small, loss, plain_norm=True))) == 10  # what Keras' BatchNorm leaves


def test_gradients_are_added_in_the_order_of_the_users(tensorflow: ModuleType) -> None:
    tf = tensorflow
    from segmenter.losses.total import in_order

    factors = np.random.default_rng(2).normal(size=(4, 1000)).astype("float32")
    x = tf.ones(1000)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = sum(tf.reduce_sum(f * each) for f, each in zip(factors, in_order(x, 4), strict=True))
    expected = ((factors[0] + factors[1]) + factors[2]) + factors[3]
    assert np.array_equal(tape.gradient(y, x), expected)


def test_the_demos_model_gives_the_same_bits_again(tensorflow: ModuleType) -> None:
    """At its size and with its loss; with Keras' BatchNorm, three of nine repetitions differed."""
    tf = tensorflow
    from segmenter.losses import segmentation_loss
    from segmenter.model import build_model

    recipe = load_recipe(ROOT / "configs" / "demo.yaml")
    model = build_model(recipe.model, 3, 6, synchronised=True)
    share = segmentation_loss(recipe.loss, (1.0, 2.0, 0.5, 1.0, 3.0, 1.5), 16)
    image, _, label = batch(recipe.tiles.size)
    pixels = tf.constant(image, tf.float32) / 128 - 1

    @tf.function
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            value = share(label, model(pixels, training=True))
        return [value, *tape.gradient(value, [v.value for v in model.trainable_variables])]

    names = ["loss", *(v.path for v in model.trainable_variables)]
    first = [np.asarray(t) for t in gradients()]
    for _ in range(6):
        again = [np.asarray(t) for t in gradients()]
        assert [n for n, a, b in zip(names, first, again, strict=True) if not np.array_equal(a, b)] == []
