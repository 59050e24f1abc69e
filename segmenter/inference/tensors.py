"""Tensor operations of prediction: functions of pixels as one loop, and resampling.

TensorFlow computes operation by operation, each a pass over memory: on a CPU, choosing the largest of eight
numbers takes longer than the convolution that computes them. XLA makes it one loop, six times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

from segmenter.grid.resampling import taps

_CHUNK, _MOST_CHUNKS = 1 << 16, 64
"""Pixels that are computed at once, or some multiples of it: XLA compiles for each shape anew, which is to
happen a bounded number of times, whatever the sizes of rasters. What comes out does not depend on it."""


def per_pixel(function: Callable[..., Any], *inputs: Any) -> Any:
    """Return a function's result, computed in pieces of pixels if that is faster (on a CPU).

    Args:
        function: function of tensors (N, ...) of `inputs`' types, pixel by pixel, that returns (N, ...).
        inputs: (B, H, W) or (B, H, W, channels) with a static number of channels.

    Returns:
        (B, H, W) or (B, H, W, channels), as if the function had been called with the inputs.
    """
    if tf.config.get_visible_devices("GPU"):
        return getattr(function, "python_function", function)(*inputs)
    shape = tf.shape(inputs[0])[:3]
    flat = [tf.reshape(x, [-1, *x.shape[3:]]) for x in inputs]
    compiled, count = fused(function), tf.shape(flat[0])[0]
    chunk = compiled.get_concrete_function(*(tf.TensorSpec([_CHUNK, *x.shape[1:]], x.dtype) for x in flat))
    result = tf.cond(
        (count % _CHUNK == 0) & (count > 0) & (count <= _CHUNK * _MOST_CHUNKS),
        lambda: compiled(*flat),
        lambda: _in_chunks(compiled, chunk.output_dtypes, flat),
    )
    inner = chunk.output_shapes[1:]
    return tf.ensure_shape(tf.reshape(result, tf.concat([shape, inner], 0)), [None, None, None, *inner])


def fused(function: Callable[..., Any]) -> Any:
    """Return a function compiled as one loop; `per_pixel` compiles it once. See `_in_chunks`."""
    if hasattr(function, "get_concrete_function"):  # it is fused
        return function
    return tf.function(function, jit_compile=True, autograph=False)


def _in_chunks(compiled: Any, dtype: Any, inputs: list[Any]) -> Any:
    """Compute in chunks of equal length; the last one overlaps the one before."""
    count = tf.shape(inputs[0])[0]
    missing = tf.maximum(_CHUNK - count, 0)
    inputs = [_padded(x, missing) for x in inputs]
    chunks, last = -(-tf.maximum(count, 1) // _CHUNK), count + missing - _CHUNK

    def step(i: Any, results: Any) -> Any:
        start = tf.minimum(i * _CHUNK, last)
        parts = [tf.ensure_shape(x[start : start + _CHUNK], [_CHUNK, *x.shape[1:]]) for x in inputs]
        return i + 1, results.write(i, compiled(*parts)[i * _CHUNK - start :])

    empty = tf.TensorArray(dtype, chunks, infer_shape=False)
    # One after the other: XLA's program for a CPU (TensorFlow 2.21) grows a list of its own in each call, and
    # two calls of one program at once ended in a segmentation fault.
    _, results = tf.while_loop(lambda i, _: i < chunks, step, [0, empty], parallel_iterations=1)
    return results.concat()[:count]


def _padded(values: Any, missing: Any) -> Any:
    paddings = tf.concat([[[0, missing]], tf.zeros([values.shape.rank - 1, 2], tf.int32)], 0)
    return tf.cond(missing > 0, lambda: tf.pad(values, paddings), lambda: values)


# ------------------------------------------------------------------------------------------------ resampling


def rescaled(array_BHWC: Any, scale: Fraction) -> Any:
    """Return a tensor at another scale; the scaled sides must be whole numbers.

    A window gives the same bits as the whole, except within one pixel of the window's border.
    """
    if scale == 1:
        return array_BHWC
    return _along(_along(array_BHWC, scale, 1), scale, 2)


def _along(array_BHWC: Any, scale: Fraction, axis: int) -> Any:
    step = 1 / scale
    p, q = step.numerator, step.denominator
    # Weights recur after q pixels, and their places p pixels on; far from any border.
    table = taps(4 * q, 5 * q, 16 * p, step)
    first, weights = table.index - 4 * p, table.weight.astype(np.float32)
    length = tf.shape(array_BHWC)[axis]
    target = tf.range(length * q // p)
    phase, place = target % q, target // q * p
    total: Any = None
    for tap in range(first.shape[1]):
        index = place + tf.gather(tf.constant(first[:, tap], tf.int32), phase)
        weight = tf.gather(tf.constant(weights[:, tap]), phase)
        part = tf.gather(array_BHWC, tf.clip_by_value(index, 0, length - 1), axis=axis)
        part *= tf.reshape(weight, [-1, 1, 1] if axis == 1 else [-1, 1])
        total = part if total is None else total + part
    return total
