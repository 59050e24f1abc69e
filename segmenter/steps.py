"""The compiled training step: forward, loss, gradients summed over the replicas, update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from segmenter.losses import ReplicaLoss
from segmenter.normalisation import Normalisation
from segmenter.optimisers import sum_over_replicas


@dataclass(frozen=True)
class StepParts:
    """What a step is made of; `min_pixels` is the recipe's, for counting the classes a batch holds."""

    strategy: Any
    model: Any
    optimiser: Any
    loss: ReplicaLoss
    normalisation: Normalisation
    min_pixels: int


def make_step(parts: StepParts) -> Any:
    """A compiled function of a distributed batch (image, valid, label) → (global loss, held).

    `held` is (2, K) int32, counted on the label tensors that go into the step: how many tiles of the global
    batch hold each class, and how many replicas have such a tile.

    Law 2, *equivalence*: the sum of the replicas' shares is the loss of the global batch, and the summed
    gradients are its gradients, whatever the number of replicas.
    """
    strategy, model, optimiser = parts.strategy, parts.model, parts.optimiser

    def replica(image: Any, valid: Any, label: Any) -> Any:
        pixels = parts.normalisation.apply(image, valid, model.inputs[0].dtype)
        with tf.GradientTape() as tape:
            logits = model(pixels, training=True)
            loss = parts.loss(label, logits)
            scaled = optimiser.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        optimiser.apply(sum_over_replicas(gradients), model.trainable_variables)
        tiles_K = tiles_holding(label, logits.shape[-1], parts.min_pixels)
        return loss, tf.stack([tiles_K, tf.cast(tiles_K > 0, tf.int32)])

    @tf.function(reduce_retracing=True)
    def step(batch: Any) -> Any:
        loss, held = strategy.run(replica, args=batch)
        total = tf.distribute.ReduceOp.SUM
        return strategy.reduce(total, loss, axis=None), strategy.reduce(total, held, axis=None)

    return step


def tiles_holding(label_BHW: Any, classes: int, min_pixels: int) -> Any:
    """(K,) int32: the tiles that alone show at least `min_pixels` pixels of each class."""
    # Class by class: a byte a pixel is read K times, where a one-hot tensor would write 4 K bytes a pixel.
    of_class = [tf.math.count_nonzero(label_BHW == k, axis=(1, 2), dtype=tf.int32) for k in range(classes)]
    return tf.stack([tf.math.count_nonzero(n >= min_pixels, dtype=tf.int32) for n in of_class])


def optimiser_arrays(optimiser: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The optimiser's state, by position: moments, step count, loss scale."""
    return {f"optimiser/{i:05d}": v.numpy() for i, v in enumerate(_state(optimiser))}


def assign_optimiser(optimiser: keras.optimizers.Optimizer, arrays: dict[str, Any]) -> None:
    """Inverse of `optimiser_arrays`, for an optimiser built for the same model."""
    for i, variable in enumerate(_state(optimiser)):
        variable.assign(arrays[f"optimiser/{i:05d}"])


def _state(optimiser: keras.optimizers.Optimizer) -> list[Any]:
    return list(optimiser.variables)  # a loss-scale optimiser's include those of the one it wraps
