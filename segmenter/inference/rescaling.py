"""Resampling within a compiled graph: by `resampling`, for windows on the grid of `tta.seen_by`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

from segmenter.grid.resampling import taps


def rescaled(array_BHWC: Any, scale: Fraction) -> Any:
    """A tensor at another scale; its sides times the scale are whole numbers.

    The same bits for a window as for the whole, but within one pixel of the window's border.
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
