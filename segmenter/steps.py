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

    `held` is (K,) int32, how many tiles of the global batch hold each class, counted on the label tensors
    that go into the step. Law 2, *equivalence*: the sum of the replicas' shares is the loss of the global
    batch, and the summed gradients are its gradients, whatever the number of replicas.
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
        return loss, tiles_holding(label, logits.shape[-1], parts.min_pixels)

    @tf.function(reduce_retracing=True)
    def step(batch: Any) -> Any:
        loss, held = strategy.run(replica, args=batch)
        total = tf.distribute.ReduceOp.SUM
        return strategy.reduce(total, loss, axis=None), strategy.reduce(total, held, axis=None)

    return step


def tiles_holding(label_BHW: Any, classes: int, min_pixels: int) -> Any:
    """(K,) int32: the tiles that alone show at least `min_pixels` pixels of each class."""
    one_hot = tf.one_hot(label_BHW, classes, dtype=tf.float32)  # what is ignored is beyond K: no class
    pixels_BK = tf.reduce_sum(one_hot, axis=(1, 2))
    return tf.reduce_sum(tf.cast(pixels_BK >= min_pixels, tf.int32), axis=0)


def optimiser_arrays(optimiser: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The optimiser's state, by position: moments, step count, loss scale."""
    return {f"optimiser/{i:05d}": v.numpy() for i, v in enumerate(_state(optimiser))}


def assign_optimiser(optimiser: keras.optimizers.Optimizer, arrays: dict[str, Any]) -> None:
    """Inverse of `optimiser_arrays`, for an optimiser built for the same model."""
    for i, variable in enumerate(_state(optimiser)):
        variable.assign(arrays[f"optimiser/{i:05d}"])


def _state(optimiser: keras.optimizers.Optimizer) -> list[Any]:
    return list(optimiser.variables)  # a loss-scale optimiser's include those of the one it wraps
