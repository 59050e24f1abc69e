"""Bits: on a CPU, the same step gives the same bits, whatever else the machine does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.commands.gpu.bench import strategy_of
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import LossConfig, ModelConfig, TrainingConfig, UNetConfig
from tests.helpers.executed_sums import widest_sum

ROOT = Path(__file__).resolve().parents[2]
EVERY_TERM = ("cross_entropy", "focal", "dice", "jaccard", "tversky", "lovasz")
WEIGHTS = (1.0, 2.0, 0.5, 1.0, 3.0, 1.5)
SUM = LossConfig(**dict.fromkeys(EVERY_TERM, 0.5), label_smoothing=0.1, ohem=0.5, boundary=2.0)


def step_of(model: ModelConfig, loss: LossConfig, *, plain_norm: bool = False) -> Any:
    """A compiled step on one device, of the demo's optimiser."""
    from segmenter.training.step import make_step

    return make_step(parts_of(model, loss, plain_norm=plain_norm))


def parts_of(
    model: ModelConfig, loss: LossConfig, replicas: int = 1, *, plain_norm: bool = False, accumulate: int = 1
) -> Any:
    """What a step is made of."""
    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts

    strategy = strategy_of(replicas)
    with strategy.scope():
        net = build_model(model, 3, 6, synchronised=not plain_norm)
        optimiser = build_optimiser(TrainingConfig(clip_norm=1.0), net, 100)
    share = segmentation_loss(loss, WEIGHTS, 16)
    plain = Normalisation.of([120.0] * 3, [60.0] * 3)
    return StepParts(strategy, net, optimiser, share, plain, 32, accumulate)


def dealt(content: tuple[Any, ...], strategy: Any) -> Any:
    """A batch with each replica's part of it on its device."""
    from segmenter.devices.strategy import Devices

    names = [SimpleNamespace(name=f"CPU:{i}") for i in range(strategy.num_replicas_in_sync)]
    return Devices(strategy, tuple(names)).distributed(tuple(map(np.asarray, content)))  # type: ignore[arg-type]


def batch(side: int, images: int = 16) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shape = (images, side, side)
    return (
        rng.integers(0, 256, (*shape, 3), np.uint8),
        np.ones(shape, bool),
        rng.integers(0, 6, shape, np.uint8),
    )


def wide_sums(step: Any, side: int = 32, strategy: Any = None) -> list[str]:
    """The sums of more than two tensors in a compiled step, which TensorFlow takes in any order."""
    import tensorflow as tf

    content = tuple(map(tf.constant, batch(side))) if strategy is None else dealt(batch(side), strategy)
    graph = step.get_concrete_function(content).graph.as_graph_def()
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


def test_no_sum_depends_on_who_is_ready(tensorflow: ModuleType) -> None:
    small = UNetConfig(depth=2, width=4, dropout=0.1)
    assert wide_sums(step_of(small, SUM)) == []
    assert len(wide_sums(step_of(small, SUM, plain_norm=True))) == 10  # what Keras' BatchNorm leaves


def test_no_sum_of_several_replicas_depends_on_who_is_ready(tensorflow: ModuleType) -> None:
    from segmenter.training.step import make_step

    parts = parts_of(UNetConfig(depth=1, width=4, dropout=0.1), SUM, 2)
    assert wide_sums(make_step(parts), strategy=parts.strategy) == []


@pytest.mark.slow
def test_steps_over_replicas_and_micro_batches_give_the_same_bits_again(tensorflow: ModuleType) -> None:
    """From the same state: all weights, moments, statistics and losses after three steps."""
    from segmenter.training.step import make_step

    per_pixel = LossConfig(cross_entropy=1.0, dice=0.5, normalisation="per_pixel", class_weights=WEIGHTS)
    parts = parts_of(UNetConfig(depth=1, width=4, dropout=0.1), per_pixel, 4, accumulate=2)
    step, content = make_step(parts), dealt(batch(48), parts.strategy)
    variables = [*parts.model.variables, *parts.optimiser.variables]
    start = [v.numpy() for v in variables]

    def run() -> list[bytes]:
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        losses = [np.asarray(step(content)[0]).tobytes() for _ in range(3)]
        return losses + [v.numpy().tobytes() for v in variables]

    first = run()
    assert all(run() == first for _ in range(6))
    assert first[3:] != [value.tobytes() for value in start]


def test_gradients_of_the_losses_are_added_two_by_two_when_it_runs(tensorflow: ModuleType) -> None:
    from segmenter.training.losses import in_order

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
    from segmenter.training.losses import in_order

    factors = np.random.default_rng(2).normal(size=(4, 1000)).astype("float32")
    x = tf.ones(1000)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = sum(tf.reduce_sum(f * each) for f, each in zip(factors, in_order(x, 4), strict=True))
    expected = ((factors[0] + factors[1]) + factors[2]) + factors[3]
    assert np.array_equal(tape.gradient(y, x), expected)


@pytest.mark.slow
def test_the_demos_model_gives_the_same_bits_again(tensorflow: ModuleType) -> None:
    """At its size and with its loss; with Keras' BatchNorm, three of nine repetitions differed."""
    tf = tensorflow
    from segmenter.model.building import build_model
    from segmenter.training.losses import segmentation_loss

    recipe = load_recipe(ROOT / "configs" / "demo.yaml")
    model = build_model(recipe.model, 3, 6, synchronised=True)
    share = segmentation_loss(recipe.loss, WEIGHTS, 16)
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
