"""Arms of `studies.input_peers` in tf.data as tutorials have it: a Python function for each tile."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Callable
from typing import Any

from studies import input_peers_common as common

Read = Callable[[str, str], tuple[Any, Any]]


def _rasterio(image: str, label: str) -> tuple[Any, Any]:
    import numpy as np
    import rasterio

    with rasterio.open(image) as file:
        read = np.moveaxis(file.read(), 0, -1)
    with rasterio.open(label) as file:
        return np.ascontiguousarray(read), file.read(1)


def _cv2(image: str, label: str) -> tuple[Any, Any]:
    import cv2

    read = cv2.cvtColor(cv2.imread(image), cv2.COLOR_BGR2RGB)
    return read, cv2.imread(label, cv2.IMREAD_UNCHANGED)


ARMS: dict[str, Read] = {"rasterio": _rasterio, "cv2": _cv2}


def _dataset(read: Read, options: argparse.Namespace) -> Any:
    import tensorflow as tf

    pairs, local = common.files(options.folder), threading.local()

    def tile(number: Any) -> tuple[Any, Any]:
        if not hasattr(local, "change"):  # a `Compose` is not safe to share between threads
            local.change = common.transforms(options.case)
        image, label = read(*pairs[int(number)])
        moved = local.change(image=image, mask=label)
        return moved["image"], moved["mask"]

    def shaped(number: Any) -> tuple[Any, Any]:
        image, label = tf.numpy_function(tile, [number], (tf.uint8, tf.uint8))
        return tf.ensure_shape(image, (256, 256, 3)), tf.ensure_shape(label, (256, 256))

    numbers = tf.data.Dataset.range(len(pairs)).shuffle(len(pairs)).repeat()
    tiles = numbers.map(shaped, num_parallel_calls=options.workers, deterministic=False)
    return tiles.batch(options.batch, drop_remainder=True).prefetch(2)


def main() -> None:
    """Measure one arm."""
    options = common.arguments(__doc__)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    common.measure(_dataset(ARMS[options.arm], options), options)


if __name__ == "__main__":
    main()
