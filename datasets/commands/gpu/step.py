"""The training step of the planned recipe: images a second and memory, with and without XLA."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from segmenter.devices.strategy import Devices
from segmenter.training.timing import made_stack, step_parts

from .bench import Bench, unequal_copies
from .figures import Figure

BETWEEN = (0.75, 1.33)
"""Formula over measured that is good enough to choose a batch by."""


def rate_name(replicas: int, xla: bool) -> str:
    """Return the name of a figure, under which later questions find it."""
    return f"step on {replicas} device{'s' * (replicas > 1)}{', XLA' * xla}"


def figures(bench: Bench, xla: bool = False) -> Iterator[Figure]:
    """Yield images a second, memory against the formula; on several devices, the share of one of each."""
    devices, count = bench.devices(), bench.replicas
    alone = rate_of_one(bench, xla) if count > 1 else 0.0
    started = time.perf_counter()
    parts, stack, note = make_step(bench, devices, xla)
    rate, first = time_step(parts, stack, bench.sizes.calls)
    note += f"; {first - started:.0f} s to the end of the first step"
    yield Figure(rate_name(count, xla), rate, "tiles/s", note=note, told=True)
    if count == 1:
        yield from memory(parts, devices, bench.images, bench.settings().tiles.size, xla=xla)
        return
    note = f"together {rate / alone:.2f} times one"
    name = f"share of one, each of {bench.noun}{', XLA' * xla}"
    yield Figure(name, 100 * rate / count / alone, "%", note=note, told=True)
    if not xla:
        variables = parts.model.variables
        unequal = unequal_copies(devices.strategy, variables)
        name, note = "variables that differ between replicas", f"of {len(variables)}, in any bit"
        yield Figure(name, float(unequal), "", "0", unequal == 0, law=True, note=note)


def rate_of_one(bench: Bench, xla: bool) -> float:
    """Return images a second on the first device, as an earlier question found it or timed now."""
    known = bench.known.get(rate_name(1, xla))
    if isinstance(known, float):
        return known
    one = replace(bench, several=False)
    parts, stack, _ = make_step(one, one.devices(), xla)
    return time_step(parts, stack, bench.sizes.calls)[0]


def make_step(bench: Bench, devices: Devices, xla: bool) -> tuple[Any, Any, str]:
    """Return the parts of the planned recipe's step, batches for a call, and a text on them."""
    recipe = bench.settings()
    changes = {"global_batch": bench.replicas * bench.images, "xla": xla, "accumulate": 1}
    training, side = recipe.training.model_copy(update=changes), recipe.tiles.size
    per_call = 1 if bench.place == "logical" else training.steps_per_call
    parts = step_parts(devices, recipe.model, recipe.loss, training)
    text = f"{bench.images} tiles of {side}² on each, {training.precision}"
    return parts, made_stack(devices, per_call, training.global_batch, side), text


def memory(parts: Any, devices: Devices, images: int, side: int, *, xla: bool) -> Iterator[Figure]:
    """Yield the allocator's peak over all steps but the first, against the formula."""
    import tensorflow as tf

    from segmenter.model.size import BYTES_PER_PARAMETER, training_bytes_per_image

    model, name = parts.model, f"memory of a step{', XLA' * xla}"
    mixed = any("16" in str(layer.compute_dtype) for layer in model.layers)
    formula = images * training_bytes_per_image(model, side, side, mixed=mixed)
    formula += BYTES_PER_PARAMETER * model.count_params()
    expected = f"{formula / 2**30:.3g} GiB by the formula"
    if not devices.names[0].startswith("GPU"):
        yield Figure(name, None, "GiB", expected, note="it needs a GPU: a CPU's allocator keeps no peak")
        return
    peak = int(tf.config.experimental.get_memory_info(devices.names[0])["peak"])
    ratio = formula / peak
    holds = BETWEEN[0] <= ratio <= BETWEEN[1]
    yield Figure(
        name, peak / 2**30, "GiB", expected, holds, note=f"formula over measured {ratio:.2f}", told=True
    )


def time_step(parts: Any, stack: Any, calls: int) -> tuple[float, float]:
    """Return images a second, after two calls that compile and warm up, and the clock after the first.

    The allocator's peak is counted from there: in the first step cuDNN tries its algorithms.
    """
    import tensorflow as tf

    from segmenter.training.step import make_steps

    first = parts.strategy.experimental_local_results(stack[2])[0]
    count, images = int(first.shape[0]), int(first.shape[1]) * parts.strategy.num_replicas_in_sync
    steps, number = make_steps(parts), tf.constant(count)
    ends = []
    for call in range(calls + 2):
        float(steps(stack, number)[0][-1])  # the losses come back when the steps are done
        ends.append(time.perf_counter())
        if not call:
            for gpu in tf.config.list_logical_devices("GPU"):
                tf.config.experimental.reset_memory_stats(gpu.name.removeprefix("/device:"))
    return calls * count * images / (ends[-1] - ends[1]), ends[0]
