"""Learning rates as pure functions of the step, so that resuming needs no state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras.optimizers import schedules as keras_schedules

from segmenter.config.recipe import TrainingConfig
from segmenter.runs.resume import warmup_steps


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step, counted from 0: a linear warm-up to the peak, then one of `COURSES`.

    Attributes:
        config: section `training` of the recipe.
        steps: number of steps of the whole training, including warm-up.
    """

    config: TrainingConfig
    steps: int

    @property
    def warmup(self) -> int:
        """Steps in which the rate rises linearly to the peak: (step + 1) / warmup."""
        return warmup_steps(self.config, self.steps)

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of a step as float32, exact up to step 2^24."""
        now = tf.cast(step, tf.float32)
        rising = (now + 1) / max(self.warmup, 1)
        since = tf.maximum(now - self.warmup, 0.0)
        falling = COURSES[self.config.schedule](self)(since)
        return peak_of(self.config) * tf.where(now < self.warmup, rising, falling)


def _decay(schedule: Schedule) -> int:
    """Return the number of steps from the end of the warm-up to the end of the training."""
    return max(schedule.steps - schedule.warmup, 1)


COURSES: dict[str, Callable[[Schedule], Callable[[Any], Any]]] = {
    # (1 − t)^0.9 (Chen et al., arXiv:1606.00915)
    "poly": lambda schedule: keras_schedules.PolynomialDecay(1.0, _decay(schedule), 0.0, power=0.9),
    # ½ (1 + cos πt) (Loshchilov & Hutter, arXiv:1608.03983, without restarts)
    "cosine": lambda schedule: keras_schedules.CosineDecay(1.0, _decay(schedule)),
    "constant": lambda schedule: tf.ones_like,
    # decay_rate^(s / decay_steps); with a staircase, of whole decay_steps
    "exponential": lambda schedule: keras_schedules.ExponentialDecay(
        1.0, schedule.config.decay_steps, schedule.config.decay_rate, schedule.config.staircase
    ),
    # values[i] in the steps above boundaries[i − 1] and up to boundaries[i], counted from the first step
    "piecewise": lambda schedule: keras_schedules.PiecewiseConstantDecay(
        [float(boundary - schedule.warmup) for boundary in schedule.config.boundaries],
        list(schedule.config.values),
    ),
}
"""`training.schedule` → share of the peak as a function of the steps since the warm-up, as Keras has it."""


def peak_of(config: TrainingConfig) -> float:
    """Return the peak learning rate for the recipe's global batch B, by its rule against reference R.

    linear: × B/R (Goyal et al., arXiv:1706.02677), for SGD; sqrt: × √(B/R) (Krizhevsky, arXiv:1404.5997),
    which keeps the variance of a step and suits Adam (Malladi et al., arXiv:2205.10287).
    """
    if config.reference_batch is None:
        return config.learning_rate
    ratio = config.global_batch / config.reference_batch
    return config.learning_rate * (ratio if config.scaling == "linear" else math.sqrt(ratio))


def describe_schedule(config: TrainingConfig, steps: int) -> str:
    """Return a line on the peak rate and its origin, the warm-up, and the further course."""
    warmup = warmup_steps(config, steps)
    parts = [f"learning rate: peak {peak_of(config):.4g}"]
    if config.scaling != "none":
        ratio = f"{config.global_batch}/{config.reference_batch}"
        root = f"√({ratio})" if config.scaling == "sqrt" else ratio
        parts[0] += f" = {config.learning_rate:.4g} × {root} ({config.scaling})"
    if warmup:
        parts.append(f"{warmup} steps of warm-up")
    parts.append(f"then {config.schedule} to step {steps}" if warmup else f"{config.schedule}")
    late = [boundary for boundary in config.boundaries if boundary >= steps]
    note = f"; warning: the training ends before boundary {late[0]}" if late else ""
    return ", ".join(parts) + note
