"""Law 4 on this device: probabilities of a window, inside its halo, against those of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from segmenter.training.timing import BANDS, CLASSES

from .bench import Bench
from .figures import Figure

_SAME = {"float32": 1e-4, "mixed_float16": None}
"""Largest difference of probabilities that rounding may make: libraries choose algorithms by shape."""


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield the largest difference in both precisions, and the share of pixels with another class."""
    device = bench.devices().names[0]
    import keras
    import tensorflow as tf

    from segmenter.model.building import build_model
    from segmenter.model.receptive_field import network_geometry

    tf.config.experimental.enable_tensor_float_32_execution(False)  # Ampere and later: else three digits
    for precision, limit in _SAME.items():
        keras.utils.set_random_seed(1)
        with tf.device(device):
            model = build_model(bench.settings().model, BANDS, CLASSES, dtype=precision)
            network = network_geometry(model)
            if network.radius is None:
                yield Figure(f"window against the whole, {precision}", None, note="the model sees all of it")
                return
            halo = -(-network.radius // network.stride) * network.stride
            window = 2 * halo + network.stride * (4 if bench.place == "logical" else 16)
            whole = tf.random.stateless_normal((1, window + halo, window, BANDS), (1, 2))

            @tf.function
            def probabilities(pixels: Any, model: Any = model) -> Any:
                return tf.nn.softmax(tf.cast(model(pixels, training=False), tf.float32))

            cut = probabilities(whole).numpy()[0, : window - halo]
            got = probabilities(whole[:, :window]).numpy()[0, : window - halo]
        difference = float(np.abs(got - cut).max())
        other = float(np.mean(got.argmax(-1) != cut.argmax(-1)))
        expected: dict[str, Any] = (
            {} if limit is None else {"expected": f"≤ {limit:g}", "holds": difference <= limit}
        )
        yield Figure(
            f"window against the whole, {precision}", difference, law=limit is not None, told=bool(limit),
            note=f"another class at {100 * other:.2g} % of the pixels", **expected,
        )  # fmt: skip
