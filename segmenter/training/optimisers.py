"""Optimisers of Keras, made right for several replicas.

Keras 3 sums gradients over the replicas inside the optimiser, after it has clipped them and after the loss
scale has looked at replica 0's alone. So the trainer sums first (`sum_over_replicas`), and these optimisers
leave that out: clipping then sees the gradient of the global batch, and an overflow on any replica is an
overflow on all.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from segmenter.config.recipe import TrainingConfig
from segmenter.training.schedules import schedule_of


class _AlreadySummed:
    """Mix-in: what is applied has been summed over the replicas before."""

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


@keras.saving.register_keras_serializable("segmenter")
class SummedAdamW(_AlreadySummed, keras.optimizers.AdamW):
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) on gradients that are already summed."""


@keras.saving.register_keras_serializable("segmenter")
class SummedSGD(_AlreadySummed, keras.optimizers.SGD):
    """SGD with momentum on gradients that are already summed."""


class _SumsFirst:
    """Mix-in for Keras' own `fit`, which hands over what each replica has: first of all, sum it."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply(sum_over_replicas(list(grads)), trainable_variables)  # type: ignore[misc]


@keras.saving.register_keras_serializable("segmenter")
class SummingAdamW(_SumsFirst, SummedAdamW):
    """AdamW that sums over the replicas itself, and only then clips."""


@keras.saving.register_keras_serializable("segmenter")
class SummingSGD(_SumsFirst, SummedSGD):
    """SGD with momentum that sums over the replicas itself, and only then clips."""


@keras.saving.register_keras_serializable("segmenter")
class SummingLossScale(_SumsFirst, keras.optimizers.LossScaleOptimizer):
    """A dynamic loss scale around an optimiser on summed gradients; it sums, then looks for an overflow."""


def sum_over_replicas(gradients: list[Any]) -> list[Any]:
    """The gradients of the global batch, on every replica, in one all-reduce; to be called in a replica."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, gradients))


def loss_scale(optimiser: keras.optimizers.Optimizer) -> Any:
    """The variable of the dynamic loss scale; None for an optimiser without one, which skips no step."""
    return getattr(optimiser, "dynamic_scale", None)


def build_optimiser(
    config: TrainingConfig, model: keras.Model, steps: int, *, for_fit: bool = False
) -> keras.optimizers.Optimizer:
    """The recipe's optimiser, built for the model's weights; to be called in the strategy's scope.

    It takes gradients that are summed over the replicas; with `for_fit`, each replica's own, as Keras' `fit`
    hands them over.
    """
    mixed = config.precision == "mixed_float16"
    sums = for_fit and not mixed
    common = {
        "learning_rate": schedule_of(config, steps),
        "global_clipnorm": config.clip_norm or None,
        "clipvalue": config.clip_value or None,
    }
    if config.optimizer == "adamw":
        # Keras' AdamW takes 0 for no decay, and refuses None.
        optimiser = (SummingAdamW if sums else SummedAdamW)(weight_decay=config.weight_decay, **common)
    else:
        decay = config.weight_decay or None
        optimiser = (SummingSGD if sums else SummedSGD)(
            momentum=0.9, nesterov=True, weight_decay=decay, **common
        )
    # Decay on a scale or shift pulls normalisation to zero and regularises nothing.
    optimiser.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    if mixed:
        wrapper = SummingLossScale if for_fit else keras.optimizers.LossScaleOptimizer
        optimiser = wrapper(optimiser)
    # Built before the step is traced: under a strategy, variables cannot be made inside it.
    optimiser.build(model.trainable_variables)
    return optimiser
