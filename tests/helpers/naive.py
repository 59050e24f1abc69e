"""Naive variants of distributed training, which the matrix of equivalence has to tell from the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from segmenter.config.recipe import LossConfig
from segmenter.grid.labels import IGNORE


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

    def apply(self, gradients: Any, trained: Any, then: Any = None) -> Any:
        import tensorflow as tf

        self.own.apply(gradients, trained)
        return tf.constant(True)


class Naive:
    """The traps of `laboratory.Traps`."""

    def mean_of_means(
        self, config: LossConfig, weights: Any, batch: int | None, shares: Any
    ) -> Callable[[Any, Any], Any]:
        """The trap: each replica's own loss, of its own images that have a valid pixel, over the replicas."""
        import tensorflow as tf

        from segmenter.training.losses import segmentation_loss

        alone = segmentation_loss(config, weights, None, shares)

        def loss(labels: Any, logits: Any) -> Any:
            labelled = tf.reduce_any(labels != IGNORE, axis=(1, 2))
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            with mock.patch("segmenter.training.losses.total.replicas", return_value=1):
                own = alone(tf.boolean_mask(labels, labelled), tf.boolean_mask(logits, labelled))
            return own / replicas

        return loss

    def optimiser(self, rate: float, norm: float, value: float, model: Any) -> KerasUpdate:
        import keras

        limits = {"global_clipnorm": norm or None, "clipvalue": value or None}
        return KerasUpdate(keras.optimizers.SGD(rate, 0.9, nesterov=True, **limits), model)

    @contextmanager
    def clipping_before_the_sum(self) -> Iterator[None]:
        """The trap: Keras' own optimiser, which clips a replica's gradients and then sums them."""
        with mock.patch("segmenter.training.step.sum_over_replicas", lambda gradients: gradients):
            yield
