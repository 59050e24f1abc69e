"""A model of 16 bits with its compiled step on four replicas, to overflow on some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.commands.gpu.replicas import strategy_of
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.grid.labels import IGNORE

REPLICAS, SIDE, CLASSES = 4, 8, 3


class Training:
    """A model of 16 bits with its optimiser and compiled step, on four replicas; momentum from rest.

    Each replica has as many images as micro-batches, by default one.
    """

    def __init__(self, normalisation: str, wrapped: Any = None, accumulate: int = 1) -> None:
        import keras

        from segmenter.model.building import build_model
        from segmenter.model.normalisation import Normalisation
        from segmenter.training.losses import segmentation_loss
        from segmenter.training.optimiser.optimisers import build_optimiser
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
        """Of each variable, what each replica holds."""
        found = [self.strategy.experimental_local_results(v.value) for v in variables]
        return [[np.asarray(part) for part in parts] for parts in found]

    def weights(self) -> list[NDArray[Any]]:
        return [copy for copies in self.copies(self.model.variables) for copy in copies]
