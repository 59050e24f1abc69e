"""Learning rates as pure functions of the step, so that resuming needs no state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import schedules as keras_schedules

from segmenter.config.recipe import TrainingConfig
from segmenter.runs.extending import warmup_steps


@dataclass(frozen=True)
class Shape:
    """The course of the learning rate as a share of its peak.

    Attributes:
        kind: one of `SHAPES`.
        warmup: steps in which it rises from 0 to 1, linearly: (step + 1) / warmup.
        steps: of the whole training, warm-up included.
        decay_rate, decay_steps, staircase: of `exponential`.
        boundaries, values: of `piecewise`; boundaries count from the first step.
    """

    kind: str
    warmup: int
    steps: int
    decay_rate: float = 1.0
    decay_steps: int = 1
    staircase: bool = False
    boundaries: tuple[int, ...] = ()
    values: tuple[float, ...] = (1.0,)

    def share(self, step: Any) -> Any:
        """Share of the peak in the optimiser's step number `step`, from 0; float32, exact to 2^24."""
        now = tf.cast(step, tf.float32)
        rising = (now + 1) / max(self.warmup, 1)
        since = tf.maximum(now - self.warmup, 0.0)
        return tf.where(now < self.warmup, rising, SHAPES[self.kind](self)(since))

    @property
    def decay(self) -> int:
        """Steps from the end of the warm-up to the end."""
        return max(self.steps - self.warmup, 1)


SHAPES: dict[str, Callable[[Shape], Callable[[Any], Any]]] = {
    # (1 − t)^0.9 (Chen et al., arXiv:1606.00915)
    "poly": lambda shape: keras_schedules.PolynomialDecay(1.0, shape.decay, 0.0, power=0.9),
    # ½ (1 + cos πt) (Loshchilov & Hutter, arXiv:1608.03983, without restarts)
    "cosine": lambda shape: keras_schedules.CosineDecay(1.0, shape.decay),
    "constant": lambda shape: tf.ones_like,
    # decay_rate^(s / decay_steps); with a staircase, of whole decay_steps
    "exponential": lambda shape: keras_schedules.ExponentialDecay(
        1.0, shape.decay_steps, shape.decay_rate, shape.staircase
    ),
    # values[i] in the steps above boundaries[i − 1] and up to boundaries[i]
    "piecewise": lambda shape: keras_schedules.PiecewiseConstantDecay(
        [float(boundary - shape.warmup) for boundary in shape.boundaries], list(shape.values)
    ),
}
"""By name, the share of the peak as a function of the steps since the warm-up: Keras' own schedules."""


@keras.saving.register_keras_serializable("segmenter")
class WarmupThen(keras_schedules.LearningRateSchedule):
    """A linear warm-up to the peak, then one of `SHAPES`; `options` are the further fields of `Shape`."""

    def __init__(self, kind: str, peak: float, warmup: int, steps: int, **options: Any) -> None:
        lists = {key: tuple(value) for key, value in options.items() if isinstance(value, list)}
        self.peak, self.shape = peak, Shape(kind, warmup, steps, **{**options, **lists})

    def __call__(self, step: Any) -> Any:
        """Learning rate of the optimiser's step number `step`, from 0."""
        return self.peak * self.shape.share(step)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"peak": self.peak, **asdict(self.shape)}


def peak_of(config: TrainingConfig) -> float:
    """The peak learning rate for the recipe's global batch B, by the rule it names against reference R.

    linear: × B/R (Goyal et al., arXiv:1706.02677), for SGD; sqrt: × √(B/R) (Krizhevsky, arXiv:1404.5997),
    which keeps the variance of a step and suits Adam (Malladi et al., arXiv:2205.10287).
    """
    if config.reference_batch is None:
        return config.learning_rate
    ratio = config.global_batch / config.reference_batch
    return config.learning_rate * (ratio if config.scaling == "linear" else math.sqrt(ratio))


def schedule_of(config: TrainingConfig, steps: int) -> WarmupThen:
    """The recipe's schedule for a training of `steps` steps; a warm-up takes at most a tenth of it."""
    options: dict[str, Any] = {}
    if config.schedule == "exponential":
        options = {key: getattr(config, key) for key in ("decay_rate", "decay_steps", "staircase")}
    elif config.schedule == "piecewise":
        options = {"boundaries": config.boundaries, "values": config.values}
    return WarmupThen(config.schedule, peak_of(config), warmup_steps(config, steps), steps, **options)


def describe_schedule(config: TrainingConfig, steps: int) -> str:
    """One line: the resolved peak and where it comes from, the warm-up, and what follows."""
    shape = schedule_of(config, steps).shape
    parts = [f"learning rate: peak {peak_of(config):.4g}"]
    if config.scaling != "none":
        ratio = f"{config.global_batch}/{config.reference_batch}"
        root = f"√({ratio})" if config.scaling == "sqrt" else ratio
        parts[0] += f" = {config.learning_rate:.4g} × {root} ({config.scaling})"
    if shape.warmup:
        parts.append(f"{shape.warmup} steps of warm-up")
    parts.append(f"then {config.schedule} to step {steps}" if shape.warmup else f"{config.schedule}")
    late = [boundary for boundary in shape.boundaries if boundary >= steps]
    note = f"; warning: the training ends before boundary {late[0]}" if late else ""
    return ", ".join(parts) + note
