"""A small model with its optimiser and compiled steps, on any number of replicas, and batches for it."""

import functools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import LossConfig, ModelConfig, TrainingConfig, UNetConfig
from segmenter.grid.labels import IGNORE
from segmenter.model.normalisation import Normalisation
from segmenter.model.stages import pace_of
from tests.helpers.laboratory import BANDS, BATCH, CLASSES, SIDE, WEIGHTS, strategy_of

NO_NORM = UNetConfig(depth=2, width=3, max_width=6, normalisation="none")
NORM = UNetConfig(depth=1, width=3)
PER_PIXEL = LossConfig(
    cross_entropy=1.0, focal=0.5, normalisation="per_pixel", class_weights=WEIGHTS, label_smoothing=0.1
)
PER_IMAGE = LossConfig(cross_entropy=1.0, focal=0.5, lovasz=0.5, class_weights=WEIGHTS)
AVERAGE = 0.7
SGD = TrainingConfig(global_batch=BATCH, optimizer="sgd", learning_rate=0.05, schedule="constant", warmup=0)


def batches(steps: int, side: int = SIDE) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]:
    """Stacked batches, ignored pixels in the first images: micro-batches of very unequal weight."""
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (steps, BATCH, side, side, BANDS), np.uint8)
    valid = rng.random((steps, BATCH, side, side)) > 0.1
    label = rng.integers(0, CLASSES, (steps, BATCH, side, side), np.uint8)
    label[:, 0, 1:], label[:, 1:3] = IGNORE, IGNORE
    return image, valid, label


def with_slots(stack: Any) -> Any:
    """Stacked batches with the slots of their images, unless they have them; those of batches in order."""
    return stack if len(stack) == 4 else (*stack, np.tile(np.arange(BATCH), (len(stack[0]), 1)))


class Training:
    """A model, its optimiser and a step on so many replicas."""

    def __init__(
        self,
        model: ModelConfig,
        loss: Any,
        replicas: int = 1,
        dtype: str = "float64",
        average: float = 0.0,
        training: TrainingConfig = SGD,
        shares: tuple[int, ...] = (),
        strategy: Any = None,
        **options: Any,
    ) -> None:
        import keras

        from segmenter.devices.strategy import Devices
        from segmenter.model.building import build_model, stages_of
        from segmenter.training.losses import segmentation_loss
        from segmenter.training.optimiser import AveragedWeights, build_optimiser
        from segmenter.training.step import StepParts

        keras.utils.set_random_seed(1)
        strategy = strategy or strategy_of(replicas)
        named: Any = tuple(SimpleNamespace(name=f"CPU:{i}") for i in range(replicas))
        self.devices = Devices(strategy, named, shares=shares)
        with strategy.scope():
            self.model = build_model(model, BANDS, CLASSES, dtype=dtype, synchronised=True)
            self.pace = pace_of(stages_of(self.model, model), training)
            self.optimiser = build_optimiser(training, self.model, 10, pace=self.pace)
            other = build_model(model, BANDS, CLASSES, dtype=dtype, synchronised=True)
        self.averaged = AveragedWeights(strategy, self.model, other, average) if average else None
        if isinstance(loss, LossConfig):
            weights = None if loss.class_weights == "none" else WEIGHTS
            loss = segmentation_loss(loss, weights, BATCH)
        self.parts = StepParts(
            strategy,
            self.model,
            self.optimiser,
            loss,
            Normalisation.of([120.0] * BANDS, [60.0] * BANDS),
            8,
            averaged=self.averaged,
            batch=BATCH,
            **options,
        )
        self.enter(0)

    def enter(self, epoch: int) -> None:
        """Steps for the weights that train in an epoch, from 0."""
        from segmenter.training.optimiser import set_trained
        from segmenter.training.step import make_step, make_steps

        set_trained(self.model, self.pace, epoch)
        self.step, self._many = make_step(self.parts), make_steps(self.parts)

    def nodes(self, stack: Any) -> list[Any]:
        """Operations of the compiled step, with those of the functions in it."""
        graph = self.step.get_concrete_function(
            self.devices.distribute(tuple(part[0] for part in with_slots(stack)))
        ).graph.as_graph_def()
        return [*graph.node, *(node for f in graph.library.function for node in f.node_def)]

    def operations(self, stack: Any) -> Counter[str]:
        """Count the operations of the compiled step by their kinds."""
        return Counter(node.op for node in self.nodes(stack))

    def each(self, stack: Any) -> list[float]:
        """The losses of steps, one call each."""
        steps, stack = len(stack[0]), with_slots(stack)
        return [
            float(self.step(self.devices.distribute(tuple(p[i] for p in stack)))[0]) for i in range(steps)
        ]

    def at_once(self, stack: Any, count: int) -> Any:
        """The losses and the classes held of the first steps of a stack, in one call."""
        import tensorflow as tf

        return self._many(self.devices.distribute(with_slots(stack), axis=1), tf.constant(count))

    def weights(self, averaged: bool = False) -> list[NDArray[Any]]:
        model = self.averaged.model if averaged and self.averaged is not None else self.model
        return [v.numpy() for v in model.variables]


def difference(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> float:
    largest = max(np.abs(y).max() for y in b)
    return float(max(np.abs(x - y).max() for x, y in zip(a, b, strict=True)) / largest)


@functools.cache
def central_of(replicas: int) -> Any:
    """One strategy with its variables on the host for each number of logical CPU devices and process."""
    import tensorflow as tf

    names = [f"CPU:{i}" for i in range(replicas)]
    return tf.distribute.experimental.CentralStorageStrategy(names, "CPU:0")
