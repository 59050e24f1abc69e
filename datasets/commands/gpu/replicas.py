"""Strategies over several replicas in one process."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np


def collectives_apart(replicas: int) -> AbstractContextManager[Any]:
    """Give a strategy created in the block separate numbers for its collectives.

    Strategies of one process would use the same numbers, and wait for each other.
    """
    import tensorflow as tf

    return mock.patch.object(tf.distribute.MirroredStrategy, "_collective_key_base", 100_000 * replicas)


@functools.cache
def strategy_of(replicas: int) -> Any:
    """Return one strategy for each number of logical CPU devices in a process."""
    import tensorflow as tf

    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    with collectives_apart(replicas):
        return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def unequal_copies(strategy: Any, variables: Iterable[Any]) -> int:
    """Count the Keras variables whose copies differ between replicas in any bit."""
    copies = (strategy.experimental_local_results(variable.value) for variable in variables)
    return sum(len({np.asarray(copy).tobytes() for copy in each}) > 1 for each in copies)
