"""Law 2 on these devices: the gradient of one step on R replicas against one, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import LossConfig, TrainingConfig
from segmenter.grid.labels import IGNORE
from segmenter.training.timing import CLASSES, step_parts

from .bench import Bench
from .figures import Figure

LIMIT = 1e-10
"""Allowed, of the largest value."""
_LOSS = LossConfig(dice=0.5, lovasz=0.5, focal=0.5, normalisation="per_pixel", label_smoothing=0.1)


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield the largest difference of the two gradients, of the largest value of one.

    The first replica has hardly any labels, so that a mean of the replicas' own losses would be far off.
    """
    alone = bench.devices(1)
    import tensorflow as tf  # which has to be told of its devices first

    name = f"gradient on {bench.noun} against one, in float64"
    found: list[NDArray[np.float64]] = []
    try:
        for devices in (alone, bench.devices()):
            found.append(_gradient(bench, devices))
    except (tf.errors.UnimplementedError, tf.errors.NotFoundError) as error:
        yield Figure(name, None, note=f"no kernel for it here: {str(error).strip().splitlines()[0]}")
        return
    one, many = found
    difference = float(np.abs(one - many).max() / np.abs(one).max())
    law = bench.place != "parts"
    yield Figure(name, difference, "", f"≤ {LIMIT:.0e}", difference <= LIMIT, law=law, told=True)


def _gradient(bench: Bench, devices: Any) -> NDArray[np.float64]:
    import keras
    import tensorflow as tf

    from segmenter.training.step import summed_gradient

    images, side = 2 * bench.replicas, 32 if bench.tiny else 64
    training = TrainingConfig(global_batch=images).model_copy(update={"precision": "float64"})
    keras.utils.set_random_seed(1)
    parts = step_parts(devices, bench.settings().model, _LOSS, training)
    rng = np.random.default_rng(7)
    image = rng.integers(0, 256, (images, side, side, 3), np.uint8)
    label = rng.integers(0, CLASSES, (images, side // 8, side // 8), np.uint8).repeat(8, 1).repeat(8, 2)
    label[0, 1:] = label[1] = IGNORE
    batch = devices.distribute(tuple(map(tf.constant, (image, rng.random(label.shape) > 0.1, label))))
    return np.asarray(summed_gradient(parts, compiled=False)(batch), np.float64)
