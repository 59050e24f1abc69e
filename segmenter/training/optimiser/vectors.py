"""Variables as one vector: put together, taken apart, written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def numbers_in(weights: Sequence[Any]) -> int:
    """Count the numbers of some variables or tensors, all together."""
    return sum(int(np.prod(v.shape)) for v in weights)


def as_vector(parts: Sequence[Any]) -> Any:
    """Concatenate tensors, or the values of Keras variables, to (n,)."""
    values = [part.value if isinstance(part, keras.Variable) else part for part in parts]
    return tf.concat([tf.reshape(value, [-1]) for value in values], 0)


def write_vector(variables: Sequence[Any], vector: Any, before: Any = None) -> None:
    """Set variables to the parts of a vector.

    Args:
        before: what they were when the vector was computed, where others may write them at the same time:
            the difference is then added to each, in one operation, so that no change is lost.
    """
    sizes = [numbers_in([v]) for v in variables]
    if before is None:
        for variable, part in zip(variables, tf.split(vector, sizes), strict=True):
            variable.assign(tf.reshape(part, variable.shape))
        return
    for variable, part in zip(variables, tf.split(vector - before, sizes), strict=True):
        variable.value.assign_add(tf.reshape(part, variable.shape))
