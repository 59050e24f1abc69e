"""Choice of XLA for the step, by trying both ways on the first batch (`training.xla: auto`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from segmenter.config.recipe import Recipe, TrainingConfig
from segmenter.devices.strategy import Devices, sums_not_compiled
from segmenter.training.step import StepParts, summed_gradient

_CALLS = 4
_STEP, _COMPILED = "step", "compiled by XLA"
_AGREES, _ROUNDINGS, _MOST = 1e-10, 10, 0.5
"""Difference of the gradients, of their norm, that is allowed: ten times what one rounding of each weight
changes, which follows the model and its precision; never more than half, nor less than law 2 in float64."""
_SCALE = 256.0
"""Loss scale meanwhile, at most: with the first of a training, gradients of 16 bits may overflow."""


def xla_of(recipe: Recipe, devices: Devices) -> bool | None:
    """Return True if XLA compiles the step; None: `auto` on GPUs, decided by a trial."""
    asked = recipe.training.xla
    if asked != "auto":
        return bool(asked)
    on_gpus = not devices.kind.elsewhere and all(device.name.startswith("GPU") for device in devices.used)
    if not on_gpus or recipe.training.accumulate > 1:
        return False
    several = devices.replicas > 1
    refused = several and sums_not_compiled(recipe.distribution, devices.used, devices.workers.count)
    return False if refused else None


def xla_facts(training: TrainingConfig, parts: StepParts) -> dict[str, str]:
    """Return the choice of a trial, for a checkpoint: the last bits depend on it."""
    if training.xla != "auto" or parts.xla is None:
        return {}
    return {_STEP: _COMPILED if parts.xla else "by TensorFlow's kernels"}


def with_xla_as_before(parts: StepParts, computed_on: Mapping[str, str]) -> StepParts:
    """Return the parts of a step with the choice of the checkpoint's trial, if it had one."""
    if parts.xla is None and _STEP in computed_on:
        return replace(parts, xla=computed_on[_STEP] == _COMPILED)
    return parts


def tried_xla(parts: StepParts, stack: Any) -> tuple[StepParts, str]:
    """Return a step's parts, with XLA if its gradient is equal and faster, and a line on the choice.

    Both are computed for one batch, without dropout, whose masks differ under XLA; the training state is
    unchanged. If XLA cannot compile the step, or fails, TensorFlow's kernels are used.

    Args:
        stack: distributed batches of some steps, as for `make_steps`; the first is used.
    """
    batch = parts.strategy.run(lambda stack: tuple(part[0] for part in stack), args=(stack,))
    with _unchanged(parts):
        expected, plain = _timed(parts, batch, compiled=False)
        norm = max(float(np.linalg.norm(expected)), 1e-30)
        bound = min(max(_AGREES, _ROUNDINGS * _rounded(parts, batch, expected) / norm), _MOST)
        try:
            got, fast = _timed(parts, batch, compiled=True)
        except Exception as error:  # whatever the compiler says, the training goes on without it
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return replace(parts, xla=False), f"xla: auto: not compiled, XLA failed ({reason[:200]})"
    difference = float(np.linalg.norm(got - expected)) / norm
    said = f"{1000 * fast:.0f} ms a gradient against {1000 * plain:.0f}, which differs by {difference:.0e}"
    if not difference <= bound:  # NaN too
        return replace(parts, xla=False), f"xla: auto: not compiled, {said} where {bound:.0e} is allowed"
    won = fast < plain
    return replace(parts, xla=won), f"xla: auto: {'compiled' if won else 'not compiled'}, {said}"


def _timed(parts: StepParts, batch: Any, *, compiled: bool) -> tuple[Any, float]:
    """Return the gradient, (n,) float64, and the shortest time of a call in seconds, without the first."""
    function, times = summed_gradient(parts, compiled=compiled), []
    gradient = np.asarray(function(batch), np.float64)
    for _ in range(_CALLS):
        before = time.perf_counter()
        np.asarray(function(batch))  # which waits for it
        times.append(time.perf_counter() - before)
    return gradient, min(times)


def _rounded(parts: StepParts, batch: Any, expected: Any) -> float:
    """Return how much the gradient changes if each weight is rounded up or down once."""
    kind, rng = parts.model.layers[1].compute_dtype, np.random.default_rng(0)
    half_a_digit = 2.0**-9 if kind == "bfloat16" else float(np.finfo(kind).eps) / 2
    for variable in parts.model.trainable_variables:
        value = variable.numpy()
        variable.assign(value * (1 + half_a_digit * rng.choice([-1.0, 1.0], value.shape)).astype(value.dtype))
    gradient = np.asarray(summed_gradient(parts, compiled=False)(batch), np.float64)
    return float(np.linalg.norm(gradient - expected))


@contextmanager
def _unchanged(parts: StepParts) -> Iterator[None]:
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
