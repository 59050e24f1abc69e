"""Rules by which a vector of weights follows its gradient: Adam, and SGD with and without momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf


class Rule(Protocol):
    """How a vector of weights follows its gradient."""

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the vectors that it keeps beside the weights."""

    @property
    def bias_corrected(self) -> bool:
        """True if `correction` is part of the change: moments that start from 0 are too small at first."""

    def correction(self, step: Any) -> Any:
        """Return the factor that corrects for that, in the step of a number from 1."""

    def new_moments(self, gradient: Any, before: Sequence[Any], rate: Any) -> list[Any]:
        """Return the moments after a gradient (n,)."""

    def change(self, gradient: Any, moments: Sequence[Any], rate: Any, step: Any) -> Any:
        """Return what to subtract from the weights, (n,).

        Args:
            moments: after the gradient.
            rate: the learning rate, in the weights' type.
            step: of the optimiser, from 1, in the weights' type.
        """


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba, arXiv:1412.6980), as Keras computes it, its ε being the paper's ε̂."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    moments: tuple[str, ...] = ("momentum", "velocity")
    bias_corrected: bool = True

    def new_moments(self, gradient: Any, before: Sequence[Any], rate: Any) -> list[Any]:
        """Return m + (g − m)(1 − β₁) and v + (g² − v)(1 − β₂)."""
        m, v = before
        first = m + (gradient - m) * (1 - self.beta_1)
        return [first, v + (tf.square(gradient) - v) * (1 - self.beta_2)]

    def change(self, gradient: Any, moments: Sequence[Any], rate: Any, step: Any) -> Any:
        """Return α m / (√v + ε) with α = η √(1 − β₂ᵗ) / (1 − β₁ᵗ)."""
        m, v = moments
        second, first = self._powers(step)
        alpha = rate * tf.sqrt(1 - second) / (1 - first)
        return m * alpha / (tf.sqrt(v) + self.epsilon)

    def correction(self, step: Any) -> Any:
        """Return √(1 − β₂ᵗ) / (1 − β₁ᵗ) (section 2)."""
        second, first = self._powers(step)
        return tf.sqrt(1 - second) / (1 - first)

    def _powers(self, step: Any) -> tuple[Any, Any]:
        return tf.pow(tf.cast(self.beta_2, step.dtype), step), tf.pow(tf.cast(self.beta_1, step.dtype), step)


@dataclass(frozen=True)
class Plain:
    """SGD: w ← w − η g."""

    moments: tuple[str, ...] = ()
    bias_corrected: bool = False

    def correction(self, step: Any) -> Any:
        """Return 1."""
        return tf.ones_like(step)

    def new_moments(self, gradient: Any, before: Sequence[Any], rate: Any) -> list[Any]:
        """Return no moments."""
        return []

    def change(self, gradient: Any, moments: Sequence[Any], rate: Any, step: Any) -> Any:
        """Return η g."""
        return gradient * rate


@dataclass(frozen=True)
class Momentum:
    """SGD with Polyak's momentum μ, as Keras computes it: m ← μ m − η g, w ← w + m."""

    momentum: float = 0.9
    moments: tuple[str, ...] = ("momentum",)
    bias_corrected: bool = False

    def correction(self, step: Any) -> Any:
        """Return 1."""
        return tf.ones_like(step)

    def new_moments(self, gradient: Any, before: Sequence[Any], rate: Any) -> list[Any]:
        """Return μ m − η g."""
        return [before[0] * self.momentum - gradient * rate]

    def change(self, gradient: Any, moments: Sequence[Any], rate: Any, step: Any) -> Any:
        """Return −m."""
        return -moments[0]


@dataclass(frozen=True)
class Nesterov(Momentum):
    """The same with Nesterov's look ahead: m ← μ m − η g, w ← w + μ m − η g."""

    def change(self, gradient: Any, moments: Sequence[Any], rate: Any, step: Any) -> Any:
        """Return −(μ m − η g)."""
        return gradient * rate - moments[0] * self.momentum
