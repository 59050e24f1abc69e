"""The recipe's optimiser: for train.py (`flat`), and for Keras' own `fit` one of Keras', made right there.

Keras 3 sums gradients over the replicas inside the optimiser, after it has clipped them and after the loss
scale has looked at replica 0's alone. Here they are summed first (`sum_over_replicas`): clipping then sees
the gradient of the global batch, and an overflow on any replica is an overflow on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import TrainingConfig
from segmenter.model.stages import Pace, is_decayed
from segmenter.training.optimiser.flat import FlatOptimiser
from segmenter.training.optimiser.rules import Adam, Momentum, Nesterov, Plain, Rule
from segmenter.training.optimiser.schedules import schedule_of


class _Summed:
    """Mix-in: what is applied has been summed over the replicas before."""

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


class _SumsFirst:
    """Mix-in for Keras' own `fit`, which hands over what each replica has: first of all, sum it."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply(sum_over_replicas(list(grads)), trainable_variables)  # type: ignore[misc]


@keras.saving.register_keras_serializable("segmenter")
class SummedAdamW(_Summed, keras.optimizers.AdamW):
    """AdamW on gradients that are already summed, for `SummingLossScale` to wrap."""


@keras.saving.register_keras_serializable("segmenter")
class SummedSGD(_Summed, keras.optimizers.SGD):
    """SGD with momentum on gradients that are already summed, for `SummingLossScale` to wrap."""


@keras.saving.register_keras_serializable("segmenter")
class SummingAdamW(_SumsFirst, SummedAdamW):
    """AdamW that sums over the replicas itself, and only then clips."""


@keras.saving.register_keras_serializable("segmenter")
class SummingSGD(_SumsFirst, SummedSGD):
    """SGD with momentum that sums over the replicas itself, and only then clips."""


@keras.saving.register_keras_serializable("segmenter")
class SummingLossScale(_SumsFirst, keras.optimizers.LossScaleOptimizer):
    """A dynamic loss scale around an optimiser on summed gradients; it sums, then looks for an overflow."""


def sum_over_replicas(gradients: Any) -> Any:
    """The gradients of the global batch, on every replica, in one all-reduce; to be called in a replica.

    Args:
        gradients: a tensor, or a list of them.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)


def build_optimiser(
    config: TrainingConfig, model: keras.Model, steps: int, *, for_fit: bool = False, pace: Pace | None = None
) -> Any:
    """The recipe's optimiser, built for the model's weights; to be called in the strategy's scope.

    Args:
        for_fit: one of Keras', which takes each replica's own gradients, as Keras' `fit` hands them over;
            else a `FlatOptimiser`.
        pace: of the weights, where the recipe says any (`model.stages.pace_of`); then the weights that train
            in no epoch have no state.

    Raises:
        ConfigError: the recipe says a pace, and none is given.
    """
    if pace is None and (config.freeze_encoder or config.freeze_norms != "none" or config.rates):
        raise ConfigError(
            "training.freeze_encoder, freeze_norms, rates: expected 0, none, {} here, where all weights "
            "train alike from the start, as in Keras' own fit; train.py has both"
        )
    if for_fit:
        return _of_keras(config, model, steps)
    scaled = config.loss_scaled
    limits = {"clip_norm": config.clip_norm, "clip_value": config.clip_value}
    return flat_optimiser(config, model.trainable_variables, steps, pace or Pace(), scaled=scaled, **limits)


def flat_optimiser(
    config: TrainingConfig, weights: Sequence[Any], steps: int, pace: Pace, **options: Any
) -> FlatOptimiser:
    """The recipe's rule, rate and decay for some weights; `options` as of `FlatOptimiser`."""
    return FlatOptimiser(
        _rule(config),
        [v for v in weights if pace.trains(v.path)],
        schedule_of(config, steps),
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


def _of_keras(config: TrainingConfig, model: keras.Model, steps: int) -> keras.optimizers.Optimizer:
    mixed = config.loss_scaled
    optimiser = _plain(config, steps, sums=not mixed)
    undecayed = [v for v in model.trainable_variables if not is_decayed(v.path, len(v.shape))]
    optimiser.exclude_from_weight_decay(var_list=undecayed)
    if mixed:
        optimiser = SummingLossScale(optimiser)
    # Built before the step is traced: under a strategy, variables cannot be made inside it.
    optimiser.build(model.trainable_variables)
    return optimiser


def _plain(config: TrainingConfig, steps: int, *, sums: bool) -> Any:
    """The recipe's optimiser, not built yet, without a loss scale."""
    common = {
        "learning_rate": schedule_of(config, steps),
        "global_clipnorm": config.clip_norm or None,
        "clipvalue": config.clip_value or None,
    }
    if config.optimizer == "adamw":
        # Keras' AdamW takes 0 for no decay, and refuses None.
        return (SummingAdamW if sums else SummedAdamW)(weight_decay=config.weight_decay, **common)
    decay = config.weight_decay or None
    momentum = {"momentum": config.momentum, "nesterov": config.nesterov and config.momentum > 0}
    return (SummingSGD if sums else SummedSGD)(weight_decay=decay, **momentum, **common)
