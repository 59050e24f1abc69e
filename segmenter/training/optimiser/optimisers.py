"""The recipe's optimiser, on gradients that are summed over the replicas, and the layers that it trains.

Keras 3 sums gradients over the replicas inside the optimiser, after it has clipped them and after the loss
scale has looked at replica 0's alone. Here they are summed first (`sum_over_replicas`): clipping then sees
the gradient of the global batch, and an overflow on any replica is an overflow on all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from segmenter.config.recipe import TrainingConfig
from segmenter.model.stages import Pace
from segmenter.training.optimiser.flat import FlatOptimiser
from segmenter.training.optimiser.rules import Adam, Momentum, Nesterov, Plain, Rule
from segmenter.training.optimiser.schedules import Schedule


def sum_over_replicas(gradient: Any) -> Any:
    """Return the gradient of the global batch, on every replica, by one all-reduce; call it in a replica."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradient
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)


def build_optimiser(
    config: TrainingConfig, model: keras.Model, steps: int, *, pace: Pace | None = None
) -> FlatOptimiser:
    """Return the recipe's optimiser, built for the model's weights; call it in the strategy's scope.

    Args:
        steps: of the whole training.
        pace: of the weights (`model.stages.pace_of`); those that train in no epoch have no state. None: all
            train alike from the start.
    """
    limits = {"clip_norm": config.clip_norm, "clip_value": config.clip_value}
    weights = model.trainable_variables
    return flat_optimiser(config, weights, steps, pace or Pace(), scaled=config.loss_scaled, **limits)


def flat_optimiser(
    config: TrainingConfig, weights: Sequence[Any], steps: int, pace: Pace, **options: Any
) -> FlatOptimiser:
    """Return the recipe's rule, rate and decay for some weights; `options` as of `FlatOptimiser`."""
    return FlatOptimiser(
        _rule(config),
        [v for v in weights if pace.trains(v.path)],
        Schedule(config, steps),
        pace,
        weight_decay=config.weight_decay,
        **options,
    )


def _rule(config: TrainingConfig) -> Rule:
    if config.optimizer == "adamw":
        return Adam()
    if not config.momentum:
        return Plain()
    return Nesterov(config.momentum) if config.nesterov else Momentum(config.momentum)


def set_trained(model: keras.Model, pace: Pace, epoch: int) -> None:
    """Make exactly those layers of a model trainable that train in an epoch, from 0.

    The others have no gradients, and their BatchNorm normalises by its moving statistics, which stay. It
    counts where a step is compiled next: one that is compiled stays as it is.
    """
    for layer in _layers(model):
        if paths := [variable.path for variable in layer.weights]:
            layer.trainable = all(pace.trains(path, epoch) for path in paths)


def _layers(model: keras.Model) -> Iterator[Any]:
    """Yield the layers of a model, and of the models that are layers of it."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer
