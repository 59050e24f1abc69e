"""Keras' own optimisers in the place of `training.flat`: its traps, and what it has to equal."""

from __future__ import annotations

from typing import Any


class KerasUpdate:
    """An optimiser of Keras as a step takes one: it clips, and looks for an overflow, before it sums.

    With `step.sum_over_replicas` patched away, that is.
    """

    def __init__(self, optimiser: Any, model: Any) -> None:
        optimiser.build(model.trainable_variables)
        self.own = optimiser
        self.dynamic_scale = getattr(optimiser, "dynamic_scale", None)
        self.scale_loss = optimiser.scale_loss

    @property
    def variables(self) -> list[Any]:
        return list(self.own.variables)

    def flat(self, gradients: Any, trained: Any) -> Any:
        return gradients

    def apply(self, gradients: Any, trained: Any) -> Any:
        import tensorflow as tf

        self.own.apply(gradients, trained)
        return tf.constant(True)
