"""Pieces for Keras' own `compile` and `fit`, for notebooks: see docs/internals.md, which a test runs.

`train.py` does not use this: its loop counts classes on the device, resumes in the middle of an epoch, and
reads no result before the next step is under way.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from segmenter.model.normalisation import Normalisation
from segmenter.training.losses import ReplicaLoss


class GlobalLoss(keras.losses.Loss):
    """A loss of the global batch (`losses.segmentation_loss`) as `compile` takes one.

    Keras' own losses average over each replica's part and then over the replicas. Ours gives each replica
    its share, and Keras' trainer sums the shares' gradients: so nothing is left to reduce. The loss that
    `fit` shows is the mean of share × replicas, which is their sum where all parts are equally large, as
    those of planned batches are.
    """

    def __init__(self, share: ReplicaLoss, name: str = "loss") -> None:
        super().__init__(name=name, reduction=None)
        self._share = share

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """(b, H, W) class ids, as Keras gives them: in its float type; (b, H, W, K) logits → a scalar."""
        if tf.distribute.in_cross_replica_context():
            # Before the first step, Keras traces the loss once outside the replicas, for its type alone.
            if tf.executing_eagerly():
                raise ValueError("GlobalLoss is each replica's share: expected to be called in strategy.run")
            return tf.zeros((), y_pred.dtype)
        return self._share(tf.cast(y_true, tf.uint8), y_pred)


def fit_dataset(batches: Any, normalisation: Normalisation, dtype: str = "float32") -> Any:
    """`pipeline.epoch_dataset`'s batches as (normalised pixels, label), which `fit` takes."""

    def pair(image: Any, valid: Any, label: Any, slot: Any) -> Any:
        return normalisation.apply(image, valid, dtype), label

    return batches.map(pair, num_parallel_calls=2, deterministic=True)
