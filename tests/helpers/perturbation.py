"""Reach of a model, measured: by what moves when an input pixel changes, and by one output's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def make_all_contributions_count(model: Any, rng: np.random.Generator, gain: float = 0.5) -> None:
    """Positive weights that average: nothing cancels, no rectifier closes, none saturates."""
    for variable in model.variables:
        shape = tuple(variable.shape)
        if variable.dtype not in ("float32", "float64"):
            continue
        if "moving" in variable.path or len(shape) < 2:
            plain = (
                0.0 if "mean" in variable.name or "beta" in variable.name or "bias" in variable.name else 1.0
            )
            variable.assign(np.full(shape, gain if variable.name == "gamma" else plain))
        else:
            weights = rng.uniform(0.5, 1.5, shape)
            depthwise = shape[-1] == 1 and len(shape) == 4
            variable.assign(weights / weights.sum(axis=(0, 1) if depthwise else tuple(range(len(shape) - 1))))


def farthest_moved(
    model: Any, stride: int, middle: int, side: int, rng: np.random.Generator
) -> tuple[int, int]:
    """The farthest output pixel that moves along (rows, columns) when one input pixel changes.

    Every pixel of one cell of the stride's grid is changed, in an image of its own, the others being 0, so
    that what comes of the change wins in every pool.
    """
    bands, farthest = model.inputs[0].shape[-1], [0, 0]
    before = np.asarray(model(np.zeros((1, side, side, bands)), training=False))
    for row in range(middle, middle + stride):
        images = np.zeros((stride, side, side, bands))
        images[np.arange(stride), row, middle + np.arange(stride)] = rng.uniform(1, 2, (stride, bands))
        moved = (np.asarray(model(images, training=False)) != before).any(axis=3)
        number, rows, cols = np.nonzero(moved)
        for axis, far in enumerate((rows - row, cols - middle - number)):
            farthest[axis] = max(farthest[axis], int(np.abs(far).max(initial=0)))
    return farthest[0], farthest[1]


def gradient_reach(model: Any, scale: int, height: int, width: int) -> int:
    """Farthest column that one output in the middle depends on, beyond the `scale` columns it covers.

    The image is a strip: what a pixel reaches along its row, it reaches whatever the rows. Its values rise to
    one side and then to the other, so that every maximum is taken where it is farthest.
    """
    import tensorflow as tf

    ramp: NDArray[np.float64] = np.broadcast_to(
        np.linspace(0.5, 1, width)[:, None], (1, height, width, model.inputs[0].shape[-1])
    )
    farthest, at = 0, width // scale // 2
    for image in (ramp, ramp[:, :, ::-1]):
        pixels = tf.constant(np.ascontiguousarray(image))
        with tf.GradientTape() as tape:
            tape.watch(pixels)
            value = tf.reduce_sum(model(pixels, training=False)[:, height // scale // 2, at])
        _, _, cols, _ = np.nonzero(tape.gradient(value, pixels).numpy())
        assert cols.min() > 0, "the strip is too short"
        assert cols.max() < width - 1, "the strip is too short"
        farthest = max(farthest, at * scale - int(cols.min()), int(cols.max()) - (at + 1) * scale + 1)
    return farthest


def pixel_reach(model: Any, stride: int, radius: int) -> int:
    """Farthest column that any output pixel depends on, of a model whose output is as large as its image.

    Of all pixels of a cell of the stride's grid: in some, more comes from the left, in others from the right.
    """
    import tensorflow as tf

    width = (2 * (radius // stride) + 6) * stride
    bands, first, farthest = model.inputs[0].shape[-1], width // stride // 2 * stride, 0
    ramp = np.broadcast_to(np.linspace(0.5, 1, width)[:, None], (1, 2 * stride, width, bands))
    for at in range(first, first + stride):
        for image in (ramp, ramp[:, :, ::-1]):
            pixels = tf.constant(np.ascontiguousarray(image))
            with tf.GradientTape() as tape:
                tape.watch(pixels)
                value = tf.reduce_sum(model(pixels, training=False)[:, stride, at])
            _, _, cols, _ = np.nonzero(tape.gradient(value, pixels).numpy())
            assert 0 < cols.min() <= cols.max() < width - 1, "the strip is too short"
            farthest = max(farthest, at - int(cols.min()), int(cols.max()) - at)
    return farthest
