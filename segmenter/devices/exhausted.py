"""TensorFlow's errors for exhausted device memory, as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from segmenter.base.errors import DeviceError

_NO_MEMORY = ("OUT_OF_MEMORY", "out of memory", "ALLOC_FAILED")
"""Words of CUDA and cuDNN, in errors that are not TensorFlow's own ResourceExhaustedError."""


@contextmanager
def memory_errors(doing: str, remedy: str) -> Iterator[None]:
    """Convert TensorFlow's out-of-memory errors to one line that contains `doing` and `remedy`.

    Raises:
        DeviceError: memory is exhausted; all other errors pass unchanged.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        text = str(error)
        if not isinstance(error, tf.errors.ResourceExhaustedError) and not any(w in text for w in _NO_MEMORY):
            raise
        cause = next((line for line in text.splitlines() if "OOM" in line), text.splitlines()[0])
        raise DeviceError(f"out of memory {doing}: {remedy} ({cause.strip()})") from None
