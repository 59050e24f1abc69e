"""Memory of a training step: growth of the allocator's peak with batch size, against the formula."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from segmenter.config.recipe import LossConfig, TrainingConfig

from .bench import Bench
from .figures import Figure
from .step import BANDS, CLASSES, made_stack, training_steps

BETWEEN = (0.75, 1.33)
"""Formula over measured that is good enough to choose a batch by."""
PRECISIONS = ("float32", "mixed_float16")


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield for each precision the bytes per image, measured and by formula, and a step's peak."""
    devices, sizes = bench.devices(1), bench.sizes
    batches = (max(1, sizes.images // 2), sizes.images)
    for precision in PRECISIONS[1:] if sizes.tiny else PRECISIONS:
        peaks = [peak(devices, bench, precision, images) for images in batches]
        formula = per_image(bench, precision)
        yield from compared(precision, batches, peaks, formula)


def compared(
    precision: str, batches: tuple[int, int], peaks: list[int | None], formula: int
) -> Iterator[Figure]:
    """Yield the formula's bytes per image compared with the peaks at two batch sizes."""
    name, unit, expected = f"memory of an image, {precision}", "MiB", f"{formula / 2**20:.4g} MiB"
    low, high = peaks
    if low is None or high is None:
        yield Figure(name, None, unit, expected, note="a CPU's allocator keeps no peak")
        return
    measured = (high - low) / (batches[1] - batches[0])
    yield Figure(name, measured / 2**20, unit, expected)
    ratio = formula / measured if measured > 0 else float("inf")
    holds = BETWEEN[0] <= ratio <= BETWEEN[1]
    yield Figure(f"formula over measured, {precision}", ratio, "", f"{BETWEEN[0]} … {BETWEEN[1]}", holds)
    yield Figure(f"peak at {batches[1]} images, {precision}", high / 2**30, "GiB")


def peak(devices: Any, bench: Bench, precision: str, images: int) -> int | None:
    """Return the allocator's peak in bytes during a step; None on a CPU."""
    import tensorflow as tf

    training = TrainingConfig(precision=precision, global_batch=images, steps_per_call=1)
    steps = training_steps(devices, bench.sizes.model, LossConfig(), training)
    stack, one = made_stack(devices, 1, images, bench.sizes.side), tf.constant(1)
    float(steps(stack, one).loss[-1])  # compiles; cuDNN tries its algorithms, with memory of their own
    name = devices.names[0]
    most = None
    if name.startswith("GPU"):
        tf.config.experimental.reset_memory_stats(name)
        float(steps(stack, one).loss[-1])
        most = int(tf.config.experimental.get_memory_info(name)["peak"])
    del steps, stack
    gc.collect()
    return most


def per_image(bench: Bench, precision: str) -> int:
    """Return the bytes per image by the formula."""
    from segmenter.model.building import build_model
    from segmenter.model.size import training_bytes_per_image

    side, mixed = bench.sizes.side, precision != "float32"
    model = build_model(bench.sizes.model, BANDS, CLASSES, dtype=precision, synchronised=True)
    return training_bytes_per_image(model, side, side, mixed=mixed)
