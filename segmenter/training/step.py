"""Compiled training step: forward, loss, gradients summed over the replicas, update."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from segmenter.base.errors import EXIT_SOME_FAILED, DeviceError
from segmenter.base.terminal import say
from segmenter.config.recipe import Recipe, TrainingConfig
from segmenter.devices.strategy import Devices, is_central, sums_not_compiled
from segmenter.model.dropout import masks_of
from segmenter.model.normalisation import Normalisation
from segmenter.runs.resume import CheckpointFacts
from segmenter.training.optimiser import AveragedWeights, Optimiser, sum_over_replicas

_CALLS = 4
_STEP, _COMPILED, _BY_KERNELS = "step", "compiled by XLA", "by TensorFlow's kernels"
_AGREES, _ROUNDINGS, _MOST = 1e-10, 10, 0.01
"""Difference of the gradients in float32 or float64, of their norm, that is allowed: ten times what one
rounding of each weight changes, which follows the model; never more than this, nor less than law 2."""
_SCALE = 256.0
"""Loss scale meanwhile, at most: with the first of a training, gradients of 16 bits may overflow."""
_MOST_SECONDS = 1800
"""A trial compiles four functions, each in minutes where a card's kernels are made as well."""


def xla_of(recipe: Recipe, devices: Devices) -> bool | None:
    """Return True if XLA compiles the step; None: `auto`, decided by a trial."""
    asked = recipe.training.xla
    if asked != "auto":
        return bool(asked)
    return False if why_untried(recipe, devices) else None


def why_untried(recipe: Recipe, devices: Devices) -> str:
    """Return why `auto` leaves XLA out without a trial; empty text if it is tried."""
    if not devices.kind.may_try_xla or not all(device.name.startswith("GPU") for device in devices.used):
        return "it gains on GPUs only"
    if recipe.training.accumulate > 1:
        return "training.accumulate is above 1"
    if recipe.distribution.deterministic and recipe.model.max_pooled:
        return "max pooling has no deterministic gradient under XLA"
    several = devices.replicas > 1
    return sums_not_compiled(recipe.distribution, devices.used, devices.workers.count) if several else ""


def xla_facts(training: TrainingConfig, parts: StepParts) -> dict[str, str]:
    """Return the choice of a trial, for a checkpoint: the last bits depend on it."""
    if training.xla != "auto":
        return {}
    if parts.xla is None:
        return {_STEP: "to be decided by a trial"}
    return {_STEP: _COMPILED if parts.xla else _BY_KERNELS}


def with_xla_as_before(parts: StepParts, facts: CheckpointFacts, devices: Devices) -> StepParts:
    """Return a step's parts with the choice of the checkpoint's trial, if it was made on the same devices."""
    chosen, now = facts.computed_on.get(_STEP), devices.computed_on
    same = facts.replicas == devices.replicas and facts.computed_on.get("devices") == now["devices"]
    if parts.xla is None and same and chosen in (_COMPILED, _BY_KERNELS):
        return replace(parts, xla=chosen == _COMPILED)
    return parts


def tried_xla(parts: StepParts, stack: Any, *, timed: bool = True) -> tuple[StepParts, str]:
    """Return a step's parts, with XLA if its gradient is equal and faster, and a line on the choice.

    Both are computed for one batch, without dropout, whose masks differ under XLA; the training state is
    unchanged. They are compared in float32 without TF32, as in 16 bits roundings would hide a gradient that
    is wrong, and timed in the training's precision. If XLA cannot compile the step, or fails, TensorFlow's
    kernels are used.

    Args:
        stack: distributed batches of some steps, as for `make_steps`; the first is used.
        timed: False: XLA is taken if it agrees, so that equal trainings choose alike.
    """
    batch = parts.strategy.run(lambda stack: tuple(part[0] for part in stack), args=(stack,))
    try:
        with _ended_in_time(), _without_chance(parts):
            difference, bound = _compare_gradients(parts, batch)
            said = f"in float32 its gradient differs by {difference:.0e}, {bound:.0e} is allowed"
            if not difference <= bound:  # NaN too
                return replace(parts, xla=False), f"xla: auto: not compiled, {said}"
            (_, plain), (got, fast) = (
                _time_gradient(parts, batch, compiled=compiled) for compiled in (False, True)
            )
    except Exception as error:  # whatever the compiler says, the training goes on without it
        return replace(parts, xla=False), f"xla: auto: not compiled, XLA failed ({_reason(error)})"
    won = bool(np.isfinite(got).all()) and (fast < plain or not timed)
    clock = f"{1000 * fast:.0f} ms a gradient against {1000 * plain:.0f}; " if timed else ""
    return replace(parts, xla=won), f"xla: auto: {'compiled' if won else 'not compiled'}, {clock}{said}"


def _reason(error: Exception) -> str:
    """Return the line of an error that says what failed: TensorFlow's first and last lines do not."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [
        line for line in lines if not line.startswith(("Graph execution error", "Detected at", "[[", "["))
    ]
    return (told or lines or [type(error).__name__])[-1][:200]


@contextmanager
def _ended_in_time() -> Iterator[None]:
    """End the program with a line if the block takes longer than `_MOST_SECONDS`.

    A compiler or a sum over cards that hangs cannot be interrupted from Python; nothing is being written.
    """

    def end() -> None:
        error = DeviceError(
            "training.xla: auto",
            f"the trial did not end in {_MOST_SECONDS // 60} minutes",
            remedy="say training.xla: false; nothing was trained since the last checkpoint",
        )
        say(f"error: {error}", aside=True)
        os._exit(EXIT_SOME_FAILED)

    watch = threading.Timer(_MOST_SECONDS, end)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _compare_gradients(parts: StepParts, batch: Any) -> tuple[float, float]:
    """Return the difference between XLA's gradient and TensorFlow's, of its norm, and what is allowed.

    Where float32 needs more memory than there is, half of each replica's tiles are compared.
    """
    with _without_tf32():
        exact = _in_full(parts)
        while True:
            try:
                expected, _ = _time_gradient(exact, batch, compiled=False)
                got, _ = _time_gradient(exact, batch, compiled=True)
                break
            except tf.errors.ResourceExhaustedError:
                first = parts.strategy.experimental_local_results(batch[0])[0]
                if first.shape[0] < 2:
                    raise
                batch = parts.strategy.run(
                    lambda *each: tuple(part[: part.shape[0] // 2] for part in each), args=batch
                )
        norm = max(float(np.linalg.norm(expected)), 1e-30)
        bound = min(max(_AGREES, _ROUNDINGS * _rounding_change(exact, batch, expected) / norm), _MOST)
    return float(np.linalg.norm(got - expected)) / norm, bound


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Compute float32 in full in the block, and compile it so."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def _in_full(parts: StepParts) -> StepParts:
    """Return the parts with a copy of the model in float32; themselves if the model computes in full."""
    model = parts.model
    if model.layers[-1].variable_dtype == "float64" or not any(
        "16" in str(layer.compute_dtype) for layer in model.layers
    ):
        return parts

    def in_full(layer: Any) -> Any:
        config = layer.get_config() | {"dtype": "float32"}
        return type(layer).from_config(config | ({"rate": 0.0} if "rate" in config else {}))

    with parts.strategy.scope():
        twin = keras.models.clone_model(model, clone_function=in_full)
    for own, copy in zip(model.layers, twin.layers, strict=True):
        copy.trainable = own.trainable
    for own, copy in zip(model.variables, twin.variables, strict=True):
        copy.assign(own.numpy())
    return replace(parts, model=twin)


def _time_gradient(parts: StepParts, batch: Any, *, compiled: bool) -> tuple[Any, float]:
    """Return the gradient, (n,) float64, and the shortest time of a call in seconds, without the first."""
    function, times = summed_gradient(parts, compiled=compiled), []
    gradient = np.asarray(function(batch), np.float64)
    for _ in range(_CALLS):
        before = time.perf_counter()
        np.asarray(function(batch))  # which waits for it
        times.append(time.perf_counter() - before)
    return gradient, min(times)


def _rounding_change(parts: StepParts, batch: Any, expected: Any) -> float:
    """Return how much the gradient changes if each weight is rounded up or down once."""
    rng = np.random.default_rng(0)
    half_a_digit = float(np.finfo(parts.model.trainable_variables[0].dtype).eps) / 2
    for variable in parts.model.trainable_variables:
        value = variable.numpy()
        variable.assign(value * (1 + half_a_digit * rng.choice([-1.0, 1.0], value.shape)).astype(value.dtype))
    gradient = np.asarray(summed_gradient(parts, compiled=False)(batch), np.float64)
    return float(np.linalg.norm(gradient - expected))


@contextmanager
def _without_chance(parts: StepParts) -> Iterator[None]:
    """Disable dropout and use a small loss scale in the block; restore all variables afterwards."""
    model, scale = parts.model, parts.optimiser.dynamic_scale
    dropping = [layer for layer in model.layers if hasattr(layer, "masks")]
    rates = [layer.rate for layer in dropping]
    values = [(v, v.numpy()) for v in [*model.variables, *([] if scale is None else [scale])]]
    if scale is not None:
        scale.assign(min(float(values[-1][1]), _SCALE))
    for layer in dropping:
        layer.rate = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(dropping, rates, strict=True):
            layer.rate = rate
        for variable, value in values:
            variable.assign(value)


_SUM = tf.distribute.ReduceOp.SUM


@dataclass(frozen=True)
class StepParts:
    """Parts of a training step.

    Attributes:
        min_pixels: least pixels of a class for a tile to hold it, from the recipe.
        accumulate: number of micro-batches into which each replica splits its part of the batch.
        xla: compile a replica's work with XLA; for one device or for GPUs, without accumulation. None:
            decided by a trial (`tried_xla`).
        batch: tiles of a step over all replicas, for batches with slots.
    """

    strategy: Any
    model: Any
    optimiser: Optimiser
    loss: Any
    normalisation: Normalisation
    min_pixels: int
    accumulate: int = 1
    averaged: AveragedWeights | None = None
    xla: bool | None = False
    batch: int = 0


class StepResult(NamedTuple):
    """Result of one step: scalars and `held` (2, K); of several steps, with a leading axis of steps.

    Attributes:
        held: int32, counted on the step's label tensors: number of tiles of the global batch that hold each
            class, and number of replicas with such a tile.
        applied: false if the loss scale skipped the step because a gradient was not finite; weights are then
            unchanged.
        scale: float32, the loss scale after the step; 1 without loss scaling.
    """

    loss: Any
    held: Any
    applied: Any
    scale: Any


def make_step(parts: StepParts) -> Any:
    """Return a compiled function from a distributed batch (image, valid, label[, slot]) to `StepResult`.

    Slots are the tiles' positions in the plan; without them, replicas must have contiguous, equal parts.

    Law 2, *equivalence*: the sum of the replicas' shares is the loss of the global batch, and the summed
    gradients are its gradients, whatever the number of replicas and of micro-batches.
    """
    one = _one_step(parts)

    # Branches over tensors are TensorFlow's own operations, here and elsewhere: AutoGraph, which rewrites
    # the source of all that is called, would take a fifth of a training's start.
    @tf.function(reduce_retracing=True, autograph=False)
    def step(batch: Any) -> Any:
        return one(batch)

    return step


def summed_gradient(parts: StepParts, *, compiled: bool) -> Any:
    """Return a function from a distributed batch to the (n,) gradient, summed over replicas."""

    def own(*batch: Any) -> Any:
        _, gradients = _gradients(parts, batch)
        return sum_over_replicas(parts.optimiser.flat(gradients, parts.model.trainable_variables))

    run = tf.function(own, jit_compile=True, autograph=False) if compiled else own

    @tf.function(autograph=False)
    def gradient(batch: Any) -> Any:
        return parts.strategy.experimental_local_results(parts.strategy.run(run, args=batch))[0]

    return gradient


def make_steps(parts: StepParts) -> Any:
    """Return a compiled function from (stack, count) to the `StepResult` of `count` steps, loss in float32.

    `stack` is a distributed batch with a further leading axis: the batches of several steps. The first
    `count` are run one after the other without returning to the host, each as in `make_step`.
    """
    one, strategy = _one_step(parts), parts.strategy

    @tf.function(reduce_retracing=True, autograph=False)
    def steps(stack: Any, count: Any) -> Any:
        held_shape = (2, parts.model.outputs[0].shape[-1])
        kinds = StepResult((tf.float32, ()), (tf.int32, held_shape), (tf.bool, ()), (tf.float32, ()))
        empty = [tf.TensorArray(dtype, count, element_shape=shape) for dtype, shape in kinds]

        def body(i: Any, results: Any) -> Any:
            done = one(strategy.run(_nth, args=(stack, i)))
            taken = [r.write(i, tf.cast(value, r.dtype)) for r, value in zip(results, done, strict=True)]
            return i + 1, taken

        _, results = tf.while_loop(
            lambda i, _: i < count, body, [tf.constant(0), empty], parallel_iterations=1
        )
        return StepResult(*(result.stack() for result in results))

    return steps


def _nth(stack: Any, i: Any) -> Any:
    return tuple(part[i] for part in stack)


def _one_step(parts: StepParts) -> Callable[[Any], StepResult]:
    """Return a step as a function to be traced in the cross-replica context."""
    strategy = parts.strategy
    update = _accumulate(parts) if parts.accumulate > 1 else _at_once(parts)

    def one(batch: Any) -> StepResult:
        loss, held, applied, scale = update(batch)
        return StepResult(
            strategy.reduce(_SUM, loss, axis=None),
            tf.cast(strategy.reduce(_SUM, held, axis=None), tf.int32),
            *(strategy.experimental_local_results(same)[0] for same in (applied, scale)),
        )

    return one


def _at_once(parts: StepParts) -> Callable[[Any], Any]:
    """Return the update by one forward and backward pass over a replica's whole part."""

    def own(*batch: Any) -> Any:
        loss, gradients = _gradients(parts, batch)
        gradient = parts.optimiser.flat(gradients, parts.model.trainable_variables)
        return loss, count_held(parts, batch[2]), gradient

    def replica(*batch: Any) -> Any:
        loss, held, gradient = own(*batch)
        return loss, held, *_apply_gradient(parts, gradient)

    def centrally(batch: Any) -> Any:
        loss, held, gradient = parts.strategy.run(own, args=batch)
        return loss, held, *_applied_centrally(parts, parts.strategy.reduce(_SUM, gradient, axis=None))

    if is_central(parts.strategy):
        return centrally
    compiled = tf.function(replica, jit_compile=True, autograph=False) if parts.xla else replica
    return lambda batch: parts.strategy.run(compiled, args=batch)


def _applied_centrally(parts: StepParts, gradient: Any) -> tuple[Any, Any]:
    """Update weights that all replicas share as one copy: once, on the host, outside the replicas."""
    with tf.device("CPU:0"):
        return _update_weights(parts, gradient)


def _apply_gradient(parts: StepParts, gradient: Any) -> tuple[Any, Any]:
    """Sum a replica's gradient over all, and update the weights; return (applied, loss scale)."""
    return _update_weights(parts, sum_over_replicas(gradient))


def _update_weights(parts: StepParts, gradient: Any) -> tuple[Any, Any]:
    optimiser = parts.optimiser
    then = None if parts.averaged is None else parts.averaged.take_in
    applied = optimiser.apply(gradient, parts.model.trainable_variables, then)
    scale = optimiser.dynamic_scale
    return applied, tf.ones(()) if scale is None else tf.identity(scale.value)


def _accumulate(parts: StepParts) -> Callable[[Any], Any]:
    """Return the update by consecutive micro-batches, whose gradients each replica adds.

    The losses' denominator (images, or weight of valid pixels, of the global batch) is known before the first
    micro-batch, so the sum is the gradient of the whole batch. BatchNorm is different: its statistics are
    those of one micro-batch over all replicas.
    """
    strategy, model, trained = parts.strategy, parts.model, parts.model.trainable_variables
    # Each replica's own: nothing is sent before the last micro-batch is done.
    local = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    dtype = model.outputs[0].dtype
    with strategy.scope():
        total = sum(int(np.prod(v.shape)) for v in trained)
        gradient_sum = tf.Variable(tf.zeros((total,), trained[0].dtype), False, **local)
        loss_sum = tf.Variable(tf.zeros((), dtype), False, **local)

    def start(image: Any, valid: Any, label: Any, *slot: Any) -> Any:
        for variable in (gradient_sum, loss_sum):
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        known = parts.loss.needs_valid_weight
        return parts.loss.valid_weight(label, dtype) if known else tf.zeros((), dtype)

    def micro(weight: Any, i: Any, *batch: Any) -> None:
        own = [micro_batch(tensor, parts.accumulate, i) for tensor in batch]
        known = (weight,) if parts.loss.needs_valid_weight else ()
        loss, gradients = _gradients(parts, own, *known)
        gradient_sum.assign_add(parts.optimiser.flat(gradients, trained))
        loss_sum.assign_add(loss)

    def finish(image: Any, valid: Any, label: Any, *slot: Any) -> Any:
        # A copy: over several processes, what is read of such a variable has no device to be summed on.
        own = tf.identity(gradient_sum)
        return tf.identity(loss_sum), count_held(parts, label), *_apply_gradient(parts, own)

    def finish_own(image: Any, valid: Any, label: Any, *slot: Any) -> Any:
        return tf.identity(loss_sum) / strategy.num_replicas_in_sync, count_held(parts, label)

    def finish_centrally(batch: Any) -> Any:
        # What a replica adds to a variable that all share is summed over them at once.
        loss, held = strategy.run(finish_own, args=batch)
        return loss, held, *_applied_centrally(parts, tf.identity(gradient_sum))

    def update(batch: Any) -> Any:
        weight = strategy.run(start, args=batch)

        def body(i: Any) -> Any:
            strategy.run(micro, args=(weight, i, *batch))
            return i + 1

        # One at a time: side by side, they would need the memory that they are to save.
        tf.while_loop(lambda i: i < parts.accumulate, body, [tf.constant(0)], parallel_iterations=1)
        return finish_centrally(batch) if is_central(strategy) else strategy.run(finish, args=batch)

    return update


def micro_batch(tensor: Any, parts: int, i: Any) -> Any:
    """Return the i-th of `parts` equal parts along the first axis, whose size is static."""
    return tf.reshape(tensor, (parts, tensor.shape[0] // parts, *tensor.shape[1:]))[i]


def _gradients(parts: StepParts, batch: Sequence[Any], *weight: Any) -> Any:
    """Return this replica's share of the loss, and its gradients multiplied by the loss scale."""
    image, valid, label, *slot = batch
    masks = masks_of(slot[0], parts.batch) if slot else nullcontext()
    pixels = parts.normalisation.apply(image, valid, parts.model.inputs[0].dtype)
    trained = [v.value for v in parts.model.trainable_variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape, masks:
        for variable in trained:  # what lies before the first of these has no backward pass
            tape.watch(variable)
        loss = parts.loss(label, parts.model(pixels, training=True), *weight)
        scaled = parts.optimiser.scale_loss(loss)
    return loss, tape.gradient(scaled, trained)


def count_held(parts: StepParts, label: Any) -> Any:
    """Return (2, K) float32: tiles of this replica that hold each class; then 1 if there is any, else 0."""
    tiles_K = tiles_holding(label, parts.model.outputs[0].shape[-1], parts.min_pixels)
    return tf.stack([tiles_K, tf.cast(tiles_K > 0, tf.float32)])


def tiles_holding(label_BHW: Any, classes: int, min_pixels: int) -> Any:
    """Return (K,) float32: the number of tiles with at least `min_pixels` pixels of each class.

    float32 is exact for tiles up to 4096 × 4096 pixels; a GPU would count int32 on its host.
    """
    # Class by class: a byte a pixel is read K times, where a one-hot tensor would write 4 K bytes a pixel.
    of_class = [_count(label_BHW == k, axis=(1, 2)) for k in range(classes)]
    return tf.stack([_count(pixels >= min_pixels) for pixels in of_class])


def _count(true: Any, axis: Any = None) -> Any:
    return tf.reduce_sum(tf.cast(true, tf.float32), axis)


def optimiser_arrays(optimiser: Optimiser) -> dict[str, Any]:
    """Return the optimiser's state by position: moments, step count, loss scale."""
    return {f"optimiser/{i:05d}": array for i, array in enumerate(optimiser.arrays().values())}


def assign_optimiser(optimiser: Optimiser, arrays: dict[str, Any]) -> None:
    """Restore the state from `optimiser_arrays` of an optimiser of the same model."""
    optimiser.assign({name: arrays[f"optimiser/{i:05d}"] for i, name in enumerate(optimiser.arrays())})
