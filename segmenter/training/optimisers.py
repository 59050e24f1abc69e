"""Optimisers of Keras, made right for several replicas.

Keras 3 sums gradients over the replicas inside the optimiser, after it has clipped them and after the loss
scale has looked at replica 0's alone. So the trainer sums first (`sum_over_replicas`), and these optimisers
leave that out: clipping then sees the gradient of the global batch, and an overflow on any replica is an
overflow on all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from segmenter.config.recipe import TrainingConfig
from segmenter.errors import ConfigError
from segmenter.model.stages import Pace, is_decayed
from segmenter.training.schedules import schedule_of


class _AlreadySummed:
    """Mix-in: what is applied has been summed over the replicas before."""

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


class _Paced:
    """Mix-in: each weight has a factor on its learning rate, and with that on its decay.

    It is on the update, not on the gradient, which Adam would divide out again. Gradients are clipped before.
    """

    _rate_of: Mapping[str, float] = MappingProxyType({})

    def set_pace(self, model: keras.Model, pace: Pace) -> None:
        """Take over the rates; to be called before `build`."""
        self._rate_of = MappingProxyType(
            {self._key(v): pace.rates[v.path] for v in model.trainable_variables if v.path in pace.rates}
        )

    def _key(self, variable: Any) -> str:
        """The same for a variable and for each replica's copy of it."""
        return str(self._var_key(variable))  # type: ignore[attr-defined]

    def _apply_weight_decay(self, variables: Any) -> None:
        plain = [v for v in variables if self._key(v) not in self._rate_of]
        super()._apply_weight_decay(plain)  # type: ignore[misc]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Keras', for one variable, at its own rate."""
        rate = self._rate_of.get(self._key(variable))
        if rate is not None:
            learning_rate = tf.cast(learning_rate, variable.dtype) * tf.cast(rate, variable.dtype)
            self._decay(variable, learning_rate)
        super().update_step(gradient, variable, self._corrected(variable, learning_rate))  # type: ignore[misc]

    def _corrected(self, variable: Any, learning_rate: Any) -> Any:
        return learning_rate

    def _decay(self, variable: Any, learning_rate: Any) -> None:
        """Decoupled decay, w ← w − η λ w, before the update, as Keras has it."""
        keras_own: Any = self
        if keras_own.weight_decay and keras_own._use_weight_decay(variable):
            weight_decay = tf.cast(keras_own.weight_decay, variable.dtype)
            variable.assign_sub(variable * weight_decay * learning_rate)


@keras.saving.register_keras_serializable("segmenter")
class SummedAdamW(_Paced, _AlreadySummed, keras.optimizers.AdamW):
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) on gradients that are already summed.

    The moments of weights that are frozen at first start from 0 later than the others'. Keras corrects their
    bias by the steps of all, which are then too many: the first updates would be up to 6.5 times as large as
    they should be. So these weights' steps are counted apart.
    """

    _late: frozenset[str] = frozenset()

    def set_pace(self, model: keras.Model, pace: Pace) -> None:
        """Take over the rates, and which weights train later."""
        super().set_pace(model, pace)
        self._late = frozenset(self._key(v) for v in model.trainable_variables if v.path in pace.late)
        if self._late:
            self._late_steps = self.add_variable(
                shape=(), dtype="int64", aggregation="only_first_replica", name="late_steps"
            )

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Keras', which counts the steps of late weights apart."""
        applied = super().apply(grads, trainable_variables)
        if any(self._key(variable) in self._late for variable in trainable_variables or ()):
            self._late_steps.assign_add(1)
        return applied

    def _corrected(self, variable: Any, learning_rate: Any) -> Any:
        """Learning rate of a late weight, such that Keras' correction for all becomes that for its steps."""
        if self._key(variable) not in self._late:
            return learning_rate
        own, all_ = (self._correction(steps, variable.dtype) for steps in (self._late_steps, self.iterations))
        return tf.cast(learning_rate, variable.dtype) * own / all_

    def _correction(self, steps: Any, dtype: Any) -> Any:
        """√(1 − β₂ᵗ) / (1 − β₁ᵗ) for the step after so many (Kingma & Ba, arXiv:1412.6980, section 2)."""
        t = tf.cast(tf.convert_to_tensor(steps) + 1, dtype)
        beta_1, beta_2 = (tf.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        return tf.sqrt(1 - tf.pow(beta_2, t)) / (1 - tf.pow(beta_1, t))


@keras.saving.register_keras_serializable("segmenter")
class SummedSGD(_Paced, _AlreadySummed, keras.optimizers.SGD):
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
    config: TrainingConfig, model: keras.Model, steps: int, *, for_fit: bool = False, pace: Pace | None = None
) -> keras.optimizers.Optimizer:
    """The recipe's optimiser, built for the model's weights; to be called in the strategy's scope.

    It takes gradients that are summed over the replicas; with `for_fit`, each replica's own, as Keras' `fit`
    hands them over.

    Args:
        pace: of the weights, where the recipe says any (`model.stages.pace_of`); then the weights that train
            in no epoch have no state.

    Raises:
        ConfigError: the recipe says a pace, and none is given.
    """
    if pace is None and (config.freeze_encoder or config.rates):
        raise ConfigError(
            "training.freeze_encoder, training.rates: expected 0 and {} here, where all weights train alike "
            "from the start, as in Keras' own fit; train.py has both"
        )
    mixed = config.precision == "mixed_float16"
    optimiser = _plain(config, steps, sums=for_fit and not mixed)
    undecayed = [v for v in model.trainable_variables if not is_decayed(v.path, len(v.shape))]
    optimiser.exclude_from_weight_decay(var_list=undecayed)
    variables = model.trainable_variables
    if pace is not None:
        optimiser.set_pace(model, pace)
        variables = [v for v in variables if pace.trains(v.path)]
    if mixed:
        wrapper = SummingLossScale if for_fit else keras.optimizers.LossScaleOptimizer
        optimiser = wrapper(optimiser)
    # Built before the step is traced: under a strategy, variables cannot be made inside it.
    optimiser.build(variables)
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
    return (SummingSGD if sums else SummedSGD)(momentum=0.9, nesterov=True, weight_decay=decay, **common)
