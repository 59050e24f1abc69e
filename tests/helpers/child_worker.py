"""A worker of a MultiWorkerMirroredStrategy: two steps with micro-batches; its weights to a file.

Arguments: number of the worker, addresses of all with commas between, the file.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np


def main() -> None:
    number, addresses, target = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
    os.environ |= {
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_CONFIG": json.dumps(
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
        ),
    }
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    training = trained(strategy, number, len(addresses))
    np.savez(target, *training)


def trained(strategy: Any, number: int, workers: int) -> list[Any]:
    from unittest import mock

    import tensorflow as tf

    from tests.helpers.small_training import BATCH, NO_NORM, PER_PIXEL, Training, batches

    with mock.patch("tests.helpers.small_training.strategy_of", return_value=strategy):
        training = Training(NO_NORM, PER_PIXEL, workers, accumulate=2)
    own = slice(number * BATCH // workers, (number + 1) * BATCH // workers)
    for batch in zip(*batches(2), strict=True):
        parts = tuple(part[own] for part in batch)
        training.step(
            strategy.experimental_distribute_values_from_function(
                lambda _, parts=parts: tuple(map(tf.constant, parts))
            )
        )
    return training.weights()


if __name__ == "__main__":
    main()
