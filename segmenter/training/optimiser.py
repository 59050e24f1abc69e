"""The recipe's optimiser: Keras' update applied to summed gradients, with all weights as one vector.

Keras 3 sums gradients over the replicas inside the optimiser, after clipping them and after the loss scale
has checked only replica 0's. Here they are joined to one vector and summed first: clipping then sees the
gradient of the global batch, and an overflow on any replica is detected on all.

Keras updates weight by weight: some 1,500 launches a step on a GPU for the default U-Net, after the last
gradient, where nothing runs in parallel. Here its update sees all weights of one rate as one vector; each
number has the same bits as in Keras, except for the order of the sum in `clip_norm`.

Only `sum_over_replicas` communicates. Each replica keeps and updates its own copies of weights and state;
they stay equal, since all apply the same sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.optimizers import schedules as keras_schedules
from numpy.typing import NDArray

from segmenter.config.recipe import TrainingConfig
from segmenter.model.stages import Pace, is_decayed
from segmenter.runs.resume import warmup_steps


class AveragedWeights:
    """Moving average of a model's weights: a ← d·a + (1 − d)·w after each applied step.

    After n updates, d is the smaller of `decay` and (1 + n) / (10 + n): first an average over all steps,
    which forgets the random start, later over the last 1 / (1 − decay). (As in
    `tf.train.ExponentialMovingAverage` with `num_updates`; Keras' own fails under a strategy.) BatchNorm's
    statistics are averaged like weights; counters are copied.

    Each replica computes the average from its own copy of the weights: nothing is sent.
    """

    def __init__(self, strategy: Any, model: Any, averaged: Any, decay: float) -> None:
        """Average a model's weights into `averaged`, another model of the same structure.

        Both must have been built in the strategy's scope.
        """
        self._decay = decay
        self.model = averaged
        self._pairs = list(zip(averaged.variables, model.variables, strict=True))
        with strategy.scope():  # each replica counts for itself
            self._updates = tf.Variable(0, False, dtype=tf.int64)
        self.follow()

    def follow(self) -> None:
        """Restart the average from the model's weights."""
        for average, weight in self._pairs:
            average.assign(weight.value)
        self._updates.assign(0)

    def take_in(self) -> None:
        """Add the model's current weights to the average; call in a replica, compiled, after an update."""
        self._updates.assign_add(1)
        for average, weight in self._pairs:
            if not weight.value.dtype.is_floating:
                average.assign(weight.value)
        for dtype in dict.fromkeys(w.dtype for _, w in self._pairs if w.value.dtype.is_floating):
            averages, weights = zip(*(pair for pair in self._pairs if pair[1].dtype == dtype), strict=True)
            n = tf.cast(self._updates, dtype)
            decay = tf.minimum(tf.cast(self._decay, dtype), (1 + n) / (10 + n))
            change = (1 - decay) * (as_vector(weights) - as_vector(averages))
            # Added, and not assigned: other workers may update it at the same time.
            for average, part in zip(averages, parts_of(change, averages), strict=True):
                average.value.assign_add(part)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that a checkpoint stores besides the averaged model's weights."""
        return {"ema_updates": self._updates.numpy()}

    def assign(self, arrays: dict[str, Any]) -> None:
        """Restore the state from the result of `arrays`."""
        self._updates.assign(arrays["ema_updates"])


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step, counted from 0: a linear warm-up to the peak, then one of `COURSES`.

    Attributes:
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


def sum_over_replicas(gradient: Any) -> Any:
    """Return the gradient of the global batch on every replica, by one all-reduce; call in a replica."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradient
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)


def numbers_in(weights: Sequence[Any]) -> int:
    """Return the total number of elements of variables or tensors."""
    return sum(int(np.prod(v.shape)) for v in weights)


def as_vector(parts: Sequence[Any]) -> Any:
    """Concatenate tensors, or the values of Keras variables, to (n,)."""
    values = [part.value if isinstance(part, keras.Variable) else part for part in parts]
    return tf.concat([tf.reshape(value, [-1]) for value in values], 0)


def parts_of(vector: Any, like: Sequence[Any]) -> list[Any]:
    """Split a vector (n,) into tensors with the shapes of some variables."""
    parts = tf.split(vector, [numbers_in([v]) for v in like])
    return [tf.reshape(part, v.shape) for part, v in zip(parts, like, strict=True)]


class Vector:
    """Values of some weights (n,) with the interface of the variable that Keras' optimisers update."""

    def __init__(self, name: str, dtype: str, numbers: int) -> None:
        self.name, self.dtype, self.shape = name, dtype, (numbers,)
        self._unique_id = name  # by which Keras finds the moments
        self.value: Any = None

    def assign_add(self, change: Any) -> None:
        """Add to the value."""
        self.value = self.value + change

    def assign_sub(self, change: Any) -> None:
        """Subtract from the value."""
        self.value = self.value - change


@dataclass(frozen=True)
class Segment:
    """Weights that train at one rate, as a vector: first those with decay, then the others.

    Attributes:
        weights: Keras variables, in the vector's order.
        late: True if they are frozen at first.
        vector: stands for the weights in Keras' update.
    """

    weights: tuple[Any, ...]
    decayed: int
    rate: float
    late: bool
    vector: Vector


class LossScale:
    """Dynamic loss scale like Keras': halved at an overflow, doubled after some steps without one.

    Attributes:
        steps: variable: number of steps since its last change.
        growth_steps: number of steps after which it is doubled.
    """

    growth_steps = 2000

    def __init__(self) -> None:
        self.scale = _variable((), "float32", "dynamic_scale", 2.0**15)
        self.steps = _variable((), "int64", "step_counter")

    def follow(self, finite: Any) -> None:
        """Update the scale; `finite`: a step's gradients were finite."""
        grows = finite & tf.equal(self.steps.value, self.growth_steps - 1)
        factor = tf.where(finite, tf.where(grows, 2.0, 1.0), 0.5)
        self.scale.assign(self.scale.value * factor)
        goes_on = tf.cast(finite & ~grows, tf.int64)
        self.steps.assign((self.steps.value + 1) * goes_on)


class Optimiser:
    """The recipe's optimiser for some weights; create it in the strategy's scope.

    Attributes:
        weights: weights that it updates in any epoch, in the model's order.
        iterations: Keras variable, number of updates so far, without skipped steps.
        loss_scale: None without one.
    """

    def __init__(
        self,
        config: TrainingConfig,
        weights: Sequence[Any],
        steps: int,
        pace: Pace,
        *,
        scaled: bool = False,
        shared: bool = False,
    ) -> None:
        """Create the state for all weights that train in any epoch.

        Args:
            shared: other processes update the same variables concurrently, so changes are added atomically.
        """
        self._config, self._shared = config, shared
        self._schedule = Schedule(config, steps)
        self.weights = tuple(v for v in weights if pace.trains(v.path))
        self._segments = _segments(self.weights, pace)
        self.loss_scale = LossScale() if scaled else None
        self.iterations = _variable((), "int64", "iteration")
        adam = config.optimizer == "adamw"
        late = adam and any(segment.late for segment in self._segments)
        self._late_steps = _variable((), "int64", "late_steps") if late else None
        moments: list[Any] = []
        self._keras = _of_keras(config, self.iterations, moments, shared=shared)
        self._keras.build([segment.vector for segment in self._segments])
        self._names = ("momentum", "velocity") if adam else ("momentum",) * bool(config.momentum)
        kinds = [(segment, name) for segment in self._segments for name in self._names]
        self._moments = list(zip(kinds, moments, strict=True))

    @property
    def dynamic_scale(self) -> Any:
        """Variable of the loss scale; None without loss scaling, where no step is skipped."""
        return None if self.loss_scale is None else self.loss_scale.scale

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the next update, float32."""
        return self._schedule(self.iterations.value)

    @property
    def variables(self) -> list[Any]:
        """All state variables, as Keras variables."""
        return [*self._counters, *(variable for _, variable in self._moments)]

    @property
    def _counters(self) -> list[Any]:
        own = [] if self.loss_scale is None else [self.loss_scale.steps, self.loss_scale.scale]
        late = [] if self._late_steps is None else [self._late_steps]
        return [*own, self.iterations, *late]

    # ---------------------------------------------------------------------------------- the step

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss to differentiate: multiplied by the loss scale, if any."""
        return loss if self.loss_scale is None else loss * tf.cast(self.loss_scale.scale.value, loss.dtype)

    def flat(self, gradients: Sequence[Any], trained: Sequence[Any]) -> Any:
        """Concatenate the gradients of the weights that currently train, (n,) in this optimiser's order."""
        of = {v.path: gradient for v, gradient in zip(trained, gradients, strict=True)}
        return as_vector([of[v.path] for segment in self._now(trained) for v in segment.weights])

    def apply(self, gradient: Any, trained: Sequence[Any], then: Callable[[], None] | None = None) -> Any:
        """Update the weights that currently train; call in a replica.

        Args:
            gradient: (n,), `flat` gradients summed over the replicas, times the loss scale.
            then: called after an update, for the average of the weights: on a GPU a separate branch would
                wait for the host.

        Returns:
            True if applied; false if a gradient was not finite, which only a loss scale checks.
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

    def clip(self, gradient: Any) -> Any:
        """Clip the gradient (n,) to the recipe's limits."""
        config = self._config
        if config.clip_norm:
            (gradient,), _ = tf.clip_by_global_norm([gradient], config.clip_norm)
        elif config.clip_value:
            gradient = tf.clip_by_value(gradient, -config.clip_value, config.clip_value)
        return gradient

    def count(self) -> None:
        """Count an update."""
        self.iterations.value.assign_add(1)

    def _now(self, trained: Sequence[Any]) -> list[Segment]:
        """Return the segments that train, in the order of the gradient's vector."""
        paths = {v.path for v in trained}
        return [segment for segment in self._segments if segment.weights[0].path in paths]

    def _update(self, gradient: Any, trained: Sequence[Any]) -> None:
        segments = self._now(trained)
        parts = tf.split(self.clip(gradient), [segment.vector.shape[0] for segment in segments])
        for segment, part in zip(segments, parts, strict=True):
            self._update_segment(segment, part)
        self.count()
        if self._late_steps is not None and any(segment.late for segment in segments):
            self._late_steps.value.assign_add(1)

    def _update_segment(self, segment: Segment, gradient: Any) -> None:
        """Decay weights, w ← w − η λ w (Loshchilov & Hutter, arXiv:1711.05101), and update them."""
        rate = tf.cast(self.learning_rate, gradient.dtype)
        if segment.rate != 1:
            rate *= tf.cast(segment.rate, rate.dtype)
        vector, before = segment.vector, as_vector(segment.weights)
        vector.value = before
        if self._config.weight_decay and segment.decayed:
            decayed, others = before[: segment.decayed], before[segment.decayed :]
            decay = tf.cast(self._config.weight_decay, rate.dtype)
            vector.value = tf.concat([decayed - decayed * decay * rate, others], 0)
        if self._late_steps is not None and segment.late:
            rate = rate * self._correction(self._late_steps) / self._correction(self.iterations)
        self._keras.update_step(gradient, vector, rate)
        if self._shared:
            for variable, change in zip(
                segment.weights, parts_of(vector.value - before, segment.weights), strict=True
            ):
                variable.value.assign_add(change)
            return
        for variable, value in zip(segment.weights, parts_of(vector.value, segment.weights), strict=True):
            variable.assign(value)

    def _correction(self, steps_before: Any) -> Any:
        """Return Adam's factor √(1 − β₂ᵗ) / (1 − β₁ᵗ) for moments that start from 0, in the next step t.

        Late weights start their moments later. Corrected by the total number of steps, their first updates
        would be up to 6.5 times too large.
        """
        step = tf.cast(steps_before.value + 1, self.weights[0].dtype)
        first, second = (
            1 - tf.pow(tf.cast(beta, step.dtype), step) for beta in (self._keras.beta_1, self._keras.beta_2)
        )
        return tf.sqrt(second) / first

    # ---------------------------------------------------------------------------------- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state by name and weight, in the order of Keras' optimisers.

        Checkpoints do not depend on the layout of the vectors. `unused` and `no_rate` are the step and the
        learning rate of Keras' wrapper for a loss scale.
        """
        arrays: dict[str, NDArray[Any]] = {}
        if self.loss_scale is not None:
            arrays |= {"unused": np.zeros((), np.int64), "no_rate": np.zeros((), np.float32)}
        arrays |= {v.name: np.asarray(v.numpy()) for v in self._counters}
        moments = {}
        for (segment, name), variable in self._moments:
            ends = np.cumsum([numbers_in([v]) for v in segment.weights])[:-1]
            for weight, part in zip(segment.weights, np.split(variable.numpy(), ends), strict=True):
                moments[f"{weight.path}/{name}"] = part.reshape(weight.shape)
        names = [f"{v.path}/{name}" for v in self.weights for name in self._names]
        return arrays | {name: moments[name] for name in names}

    def assign(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state from the result of `arrays`.

        Raises:
            ValueError: an array has another shape.
        """
        for name, own in self.arrays().items():
            if arrays[name].shape != own.shape:
                raise ValueError(f"{name}: expected shape {own.shape}, got {arrays[name].shape}")
        for variable in self._counters:
            variable.assign(arrays[variable.name])
        for (segment, name), variable in self._moments:
            variable.assign(np.concatenate([arrays[f"{v.path}/{name}"].ravel() for v in segment.weights]))


def _of_keras(config: TrainingConfig, iterations: Any, moments: list[Any], *, shared: bool) -> Any:
    """Return Keras' optimiser, of which only `update_step` is used.

    Args:
        iterations: its step counter: for Keras' own variable, replicas would have no separate copies.
        moments: list that receives its moment variables, vector by vector.
        shared: as in `Optimiser`.
    """
    adam = config.optimizer == "adamw"
    base: Any = keras.optimizers.Adam if adam else keras.optimizers.SGD

    class OfKeras(base):
        @property
        def iterations(self) -> Any:
            return iterations

        def add_variable_from_reference(
            self, reference_variable: Any, name: str | None = None, initializer: str = "zeros"
        ) -> Any:
            like = reference_variable
            moments.append(_variable(like.shape, like.dtype, f"{like.name}_{name}"))
            return moments[-1]

        def assign(self, variable: Any, value: Any) -> None:
            if shared:
                self.assign_add(variable, value - variable.value)
            else:
                super().assign(variable, value)

    look_ahead = {"momentum": config.momentum, "nesterov": config.nesterov and config.momentum > 0}
    return OfKeras(learning_rate=lambda: 0.0, **({} if adam else look_ahead))


def _segments(weights: Sequence[Any], pace: Pace) -> list[Segment]:
    """Group weights by rate and start epoch."""
    groups: dict[tuple[float, bool], list[Any]] = {}
    for v in weights:
        groups.setdefault((pace.rates.get(v.path, 1.0), v.path in pace.late), []).append(v)
    segments = []
    for number, ((rate, late), group) in enumerate(groups.items()):
        decayed = [v for v in group if is_decayed(v.path, len(v.shape))]
        ordered = (*decayed, *(v for v in group if not is_decayed(v.path, len(v.shape))))
        vector = Vector(f"weights{number}", group[0].dtype, numbers_in(ordered))
        segments.append(Segment(ordered, numbers_in(decayed), rate, late, vector))
    return segments


def _variable(shape: tuple[int, ...], dtype: str, name: str, value: float = 0) -> Any:
    """Return a variable of which each replica updates its own copy."""
    return keras.Variable(np.full(shape, value, dtype), dtype=dtype, trainable=False, name=name)


def build_optimiser(
    config: TrainingConfig, model: keras.Model, steps: int, *, pace: Pace | None = None
) -> Optimiser:
    """Return the recipe's optimiser for a model; call in the strategy's scope.

    Args:
        pace: training schedule of the weights (`model.stages.pace_of`); weights that never train have no
            state. None: all train alike from the start.
    """
    return Optimiser(config, model.trainable_variables, steps, pace or Pace(), scaled=config.loss_scaled)


def set_trained(model: keras.Model, pace: Pace, epoch: int) -> None:
    """Make exactly those layers trainable that train in an epoch, counted from 0.

    Other layers have no gradients, and their BatchNorm uses its moving statistics without updating them. This
    affects steps compiled later, not those already compiled.
    """
    for layer in _layers(model):
        if paths := [variable.path for variable in layer.weights]:
            layer.trainable = all(pace.trains(path, epoch) for path in paths)


def _layers(model: keras.Model) -> Iterator[Any]:
    """Yield the layers of a model, including those of nested models."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer
