"""Optimisers that update all weights as one vector, on gradients that are summed over the replicas.

Keras updates weight by weight: a dozen operations for each of them, some 1,500 launches a step on a GPU for
the default U-Net, after the last gradient, where nothing hides them. Here the gradients are put into one
vector before they are summed (the sum would do that anyway), and stay there: unscaling, the look for an
overflow, clipping, decay, moments and update are some twenty operations whatever the number of weights. Each
number is computed as Keras computes it, to the bit, but for the norm that `clip_norm` compares: its sum has
another order.

Nothing here talks to other replicas. Each keeps, and updates, copies of its own of weights and state: equal,
since what is applied is the same sum on all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.model.stages import Pace, is_decayed
from segmenter.training.optimiser.rules import Rule
from segmenter.training.optimiser.vectors import as_vector, numbers_in, write_vector


@dataclass(frozen=True)
class Segment:
    """Weights that train at one rate, as a vector: first those that decay, then the others.

    Attributes:
        decayed, others: Keras variables.
        rate: factor on learning rate and decay.
        late: whether they are frozen at first.
        moments: the rule's vectors, Keras variables (n,).
    """

    decayed: tuple[Any, ...]
    others: tuple[Any, ...]
    rate: float
    late: bool
    moments: tuple[Any, ...]

    @property
    def weights(self) -> tuple[Any, ...]:
        """All of it, in the order of the vector."""
        return (*self.decayed, *self.others)


class LossScale:
    """A dynamic loss scale, as that of Keras: halved at an overflow, doubled after so many steps without.

    Attributes:
        scale: its variable.
        steps: since it was changed last, its variable.
        growth_steps: after which it is doubled.
    """

    growth_steps = 2000

    def __init__(self) -> None:
        self.scale = _variable((), "float32", "dynamic_scale", 2.0**15)
        self.steps = _variable((), "int64", "step_counter")

    def follow(self, finite: Any) -> None:
        """Take in whether a step's gradients were finite."""
        grows = finite & tf.equal(self.steps.value, self.growth_steps - 1)
        factor = tf.where(finite, tf.where(grows, 2.0, 1.0), 0.5)
        self.scale.assign(self.scale.value * factor)
        goes_on = tf.cast(finite & ~grows, tf.int64)
        self.steps.assign((self.steps.value + 1) * goes_on)


class FlatOptimiser:
    """Weights of a model as one vector, and what updates it; to be made in the strategy's scope.

    Attributes:
        weights: those that it updates in some epoch.
        iterations: Keras variable, updates so far; skipped steps are not in it.
        dynamic_scale: Keras variable of the loss scale; None without one.
    """

    def __init__(
        self,
        rule: Rule,
        weights: Sequence[Any],
        schedule: Any,
        pace: Pace,
        *,
        weight_decay: float = 0.0,
        clip_norm: float = 0.0,
        clip_value: float = 0.0,
        scaled: bool = False,
        shared: bool = False,
    ) -> None:
        """Make the state for weights that train in some epoch, in the model's order.

        Args:
            schedule: step, from 0 → learning rate.
            weight_decay: decoupled, w ← w − η λ w before the update (Loshchilov & Hutter, arXiv:1711.05101),
                for the weights that `is_decayed` tells.
            clip_norm, clip_value: limits of the gradient's norm, or of its numbers; 0: none.
            scaled: with a dynamic loss scale.
            shared: others update the same variables at the same time: changes are added, each at once.
        """
        self.rule, self.schedule, self.weight_decay = rule, schedule, weight_decay
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.weights, self.shared = tuple(weights), shared
        self.loss_scale = LossScale() if scaled else None
        self.iterations = _variable((), "int64", "iteration")
        self.segments = _segments(rule, self.weights, pace)
        late = any(segment.late for segment in self.segments) and rule.bias_corrected
        self._late_steps = _variable((), "int64", "late_steps") if late else None

    @property
    def dynamic_scale(self) -> Any:
        """Variable of the loss scale; None for an optimiser without one, which skips no step."""
        return None if self.loss_scale is None else self.loss_scale.scale

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the next update, float32."""
        return self.schedule(self.iterations.value)

    @property
    def variables(self) -> list[Any]:
        """All its state, as Keras variables."""
        own = [] if self.loss_scale is None else [self.loss_scale.steps, self.loss_scale.scale]
        late = [] if self._late_steps is None else [self._late_steps]
        return [*own, self.iterations, *late, *(v for s in self.segments for v in s.moments)]

    # ---------------------------------------------------------------------------------- the step

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss to differentiate: times the loss scale."""
        return loss if self.loss_scale is None else loss * tf.cast(self.loss_scale.scale.value, loss.dtype)

    def flat(self, gradients: Sequence[Any], trained: Sequence[Any]) -> Any:
        """Concatenate the gradients of the weights that train now, (n,) in this optimiser's order."""
        of = {v.path: gradient for v, gradient in zip(trained, gradients, strict=True)}
        order = [v.path for segment in self._now(trained) for v in segment.weights]
        if len(order) != len(of):
            raise ValueError(f"expected the gradients of {len(order)} weights, got {len(of)}")
        return as_vector([of[path] for path in order])

    def apply(self, gradient: Any, trained: Sequence[Any], then: Callable[[], None] | None = None) -> Any:
        """Update the weights that train now; to be called in a replica.

        Args:
            gradient: (n,), `flat` gradients summed over the replicas, times the loss scale.
            then: what follows an update, as an average of the weights does: on a GPU each branch of its own
                would wait for the host.

        Returns:
            Whether it was applied: false where a number was not finite, for which only the loss scale looks.
        """
        if self.loss_scale is None:
            self._update(gradient, trained)
            if then is not None:
                then()
            return tf.constant(True)

        def update() -> None:
            self._update(gradient / scale, trained)
            if then is not None:
                then()

        finite = tf.reduce_all(tf.math.is_finite(gradient))
        scale = tf.cast(self.loss_scale.scale.value, gradient.dtype)
        tf.cond(finite, update, lambda: None)
        self.loss_scale.follow(finite)
        return finite

    def _now(self, trained: Sequence[Any]) -> list[Segment]:
        """Return the segments that train, late ones only if their weights are among the trained."""
        paths = {v.path for v in trained}
        return [segment for segment in self.segments if segment.weights[0].path in paths]

    def clipped(self, gradient: Any) -> Any:
        """Clip the gradient (n,) to the limits."""
        if self.clip_norm:
            (gradient,), _ = tf.clip_by_global_norm([gradient], self.clip_norm)
        elif self.clip_value:
            gradient = tf.clip_by_value(gradient, -self.clip_value, self.clip_value)
        return gradient

    def _update(self, gradient: Any, trained: Sequence[Any]) -> None:
        gradient = self.clipped(gradient)
        segments = self._now(trained)
        own = (
            tf.split(gradient, [numbers_in(s.weights) for s in segments]) if len(segments) > 1 else [gradient]
        )
        for segment, part in zip(segments, own, strict=True):
            self._update_segment(segment, part)
        self.count()
        if self._late_steps is not None and any(segment.late for segment in segments):
            self._add_one(self._late_steps)

    def count(self) -> None:
        """Count an update."""
        self._add_one(self.iterations)

    def _add_one(self, counter: Any) -> None:
        (counter.value if self.shared else counter).assign_add(1)  # Keras' own reads, and then writes

    def _update_segment(self, segment: Segment, gradient: Any) -> None:
        dtype, now = gradient.dtype, self.iterations.value
        rate = tf.cast(self.learning_rate, dtype)
        if segment.rate != 1:
            rate *= tf.cast(segment.rate, dtype)
        decayed, others = (as_vector(v) if v else None for v in (segment.decayed, segment.others))
        now_at = (
            tf.concat([part for part in (decayed, others) if part is not None], 0) if self.shared else None
        )
        if self.weight_decay and decayed is not None:
            decayed -= decayed * tf.cast(self.weight_decay, dtype) * rate
        step = tf.cast(now + 1, dtype)
        if segment.late and self._late_steps is not None:
            rate = self._corrected(rate, step, self._late_steps.value)
        before = [tf.convert_to_tensor(m.value) for m in segment.moments]
        moments = self.rule.new_moments(gradient, before, rate)
        for variable, value, old in zip(segment.moments, moments, before, strict=True):
            write_vector([variable], value, old if self.shared else None)
        weights = tf.concat([part for part in (decayed, others) if part is not None], 0)
        write_vector(segment.weights, weights - self.rule.change(gradient, moments, rate, step), now_at)

    def _corrected(self, rate: Any, step: Any, late_steps: Any) -> Any:
        """Return the rate of late weights that turns the bias correction of all steps into that of their own.

        Their moments start from 0 later than the others'. Corrected by the steps of all, which are too many,
        the first updates would be up to 6.5 times as large as they should be.
        """
        own = self.rule.correction(tf.cast(late_steps + 1, step.dtype))
        return rate * own / self.rule.correction(step)

    # ---------------------------------------------------------------------------------- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state by name, weight by weight, in the order and with the content of Keras' optimisers.

        So checkpoints do not depend on how the weights lie in vectors. Of a Keras loss scale, `unused` and
        `no_rate` are the wrapper's own step and learning rate, which never change.
        """
        found: dict[str, NDArray[Any]] = {}
        if self.loss_scale is not None:
            found |= {"unused": np.zeros((), np.int64), "no_rate": np.zeros((), np.float32)}
            found |= {v.name: np.asarray(v.numpy()) for v in (self.loss_scale.steps, self.loss_scale.scale)}
        counters = (self.iterations, *(() if self._late_steps is None else (self._late_steps,)))
        found |= {v.name: np.asarray(v.numpy()) for v in counters}
        moments = self._moments_by_name()
        names = [f"{v.path}/{moment}" for v in self.weights for moment in self.rule.moments]
        return found | {name: moments[name] for name in names}

    def assign(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the state from what `arrays` returned.

        Raises:
            ValueError: an array has another shape.
        """
        for name, own in self.arrays().items():
            if arrays[name].shape != own.shape:
                raise ValueError(f"{name}: expected shape {own.shape}, got {arrays[name].shape}")
        for variable in self.variables:
            if variable.name in arrays:
                variable.assign(arrays[variable.name])
        for segment in self.segments:
            for moment, variable in zip(self.rule.moments, segment.moments, strict=True):
                parts = [arrays[f"{v.path}/{moment}"].ravel() for v in segment.weights]
                variable.assign(np.concatenate(parts))

    def _moments_by_name(self) -> dict[str, NDArray[Any]]:
        found = {}
        for segment in self.segments:
            ends = np.cumsum([numbers_in([v]) for v in segment.weights])[:-1]
            for moment, variable in zip(self.rule.moments, segment.moments, strict=True):
                parts = np.split(variable.numpy(), ends)
                for weight, part in zip(segment.weights, parts, strict=True):
                    found[f"{weight.path}/{moment}"] = part.reshape(weight.shape)
        return found


def _segments(rule: Rule, weights: Sequence[Any], pace: Pace) -> list[Segment]:
    """Group the weights by rate and start."""
    if len(dtypes := {v.dtype for v in weights}) != 1:
        raise ValueError(f"expected weights of one type, got {sorted(dtypes)}")
    groups: dict[tuple[float, bool], list[Any]] = {}
    for variable in weights:
        kind = pace.rates.get(variable.path, 1.0), variable.path in pace.late
        groups.setdefault(kind, []).append(variable)
    found = []
    for number, ((rate, late), members) in enumerate(groups.items()):
        decays = [is_decayed(v.path, len(v.shape)) for v in members]
        decayed, others = (
            tuple(v for v, d in zip(members, decays, strict=True) if d == which) for which in (True, False)
        )
        moments = tuple(
            _variable((numbers_in(members),), members[0].dtype, f"{m}{number}") for m in rule.moments
        )
        found.append(Segment(decayed, others, rate, late, moments))
    return found


def _variable(shape: tuple[int, ...], dtype: str, name: str, value: float = 0) -> Any:
    """Return a variable of which each replica updates a copy of its own."""
    return keras.Variable(np.full(shape, value, dtype), dtype=dtype, trainable=False, name=name)
