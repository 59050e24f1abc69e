"""Learning rates as pure functions of the step, so that resuming needs no state."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from segmenter.schema import TrainingConfig


@keras.saving.register_keras_serializable("segmenter")
class WarmupThen(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0 to the peak, then `poly` (1 − t)^0.9, `cosine` ½(1 + cos πt) or `constant`.

    t runs from 0 at the end of the warm-up to 1 at `steps`. Poly: Chen et al., arXiv:1606.00915;
    cosine: Loshchilov & Hutter, arXiv:1608.03983, without restarts.
    """

    def __init__(self, kind: str, peak: float, warmup: int, steps: int) -> None:
        self.kind, self.peak, self.warmup, self.steps = kind, peak, warmup, steps

    def __call__(self, step: Any) -> Any:
        """Learning rate of the optimiser's step number `step`, from 0."""
        now = tf.cast(step, tf.float32)
        t = tf.clip_by_value((now - self.warmup) / max(self.steps - self.warmup, 1), 0.0, 1.0)
        after = {
            "poly": lambda: (1 - t) ** 0.9,
            "cosine": lambda: 0.5 * (1 + tf.cos(math.pi * t)),
            "constant": lambda: tf.ones_like(t),
        }[self.kind]()
        rising = (now + 1) / max(self.warmup, 1)
        return self.peak * tf.where(now < self.warmup, rising, after)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"kind": self.kind, "peak": self.peak, "warmup": self.warmup, "steps": self.steps}


def schedule_of(config: TrainingConfig, steps: int) -> WarmupThen:
    """The recipe's schedule for a training of `steps` steps; a warm-up takes at most a tenth of it."""
    return WarmupThen(config.schedule, config.learning_rate, min(config.warmup, steps // 10), steps)
