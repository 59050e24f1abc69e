"""Means over parts of the whole window, for decoders that use the whole window."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from segmenter.model.layers import Layers


def pool(x: Any, bins: int, width: int, layers: Layers, name: str) -> Any:
    """Average x over bins² parts, apply a 1×1 convolution, and enlarge bilinearly to x's size."""
    means = PartMeans(bins, dtype=layers.policy, name=f"{name}_means")(x)
    means = layers.block(means, width, name, kernel=1)
    return SpreadParts(bins, dtype=layers.policy, name=f"{name}_spread")([means, x])


class _Parts(keras.layers.Layer):
    """Layer of bins² parts."""

    def __init__(self, bins: int, **options: Any) -> None:
        super().__init__(**options)
        self.bins = bins

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bins": self.bins}


@keras.saving.register_keras_serializable("segmenter")
class PartMeans(_Parts):
    """(B, H, W, C) → (B, bins, bins, C): means over parts of nearly equal size.

    Part i of n pixels is from ⌊i n / bins⌋ to ⌈(i + 1) n / bins⌉ (PyTorch's adaptive average pooling). Any
    size is allowed; with fewer pixels than parts, parts share pixels.
    """

    def call(self, inputs: Any) -> Any:
        """Return the mean of each part of the features, computed in the data type of the weights."""
        exact = tf.cast(inputs, self.variable_dtype)  # a sum of many 16-bit values loses its last ones
        rows, columns = (self._means(tf.shape(inputs)[axis]) for axis in (1, 2))
        means = tf.einsum("ph,bhwc,qw->bpqc", rows, exact, columns)
        return tf.cast(means, inputs.dtype)

    def _means(self, size: Any) -> Any:
        """Return (bins, size) weights; each row has a part's pixels and sums to 1."""
        part, pixel = tf.range(self.bins), tf.range(size)
        # Rounded up without negative numbers: other runtimes round those towards zero.
        first, last = part * size // self.bins, ((part + 1) * size + self.bins - 1) // self.bins
        inside = (pixel >= first[:, None]) & (pixel < last[:, None])
        return tf.cast(inside, self.variable_dtype) / tf.cast(last - first, self.variable_dtype)[:, None]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], self.bins, self.bins, input_shape[3])


@keras.saving.register_keras_serializable("segmenter")
class SpreadParts(_Parts):
    """[(B, bins, bins, C), (B, H, W, …)] → (B, H, W, C): the first, enlarged to the size of the second."""

    def call(self, inputs: list[Any]) -> Any:
        """Enlarge the means bilinearly."""
        means, like = inputs
        rows, columns = (self._weights(tf.shape(like)[axis], means.dtype) for axis in (1, 2))
        return tf.einsum("hp,bpqc,wq->bhwc", rows, means, columns)

    def _weights(self, size: Any, dtype: Any) -> Any:
        """Return (size, bins) weights of the two nearest parts at each pixel's centre."""
        scale = tf.cast(self.bins, self.variable_dtype) / tf.cast(size, self.variable_dtype)
        centre = (tf.range(size, dtype=self.variable_dtype) + 0.5) * scale - 0.5
        centre = tf.clip_by_value(centre, 0, self.bins - 1)
        away = tf.abs(centre[:, None] - tf.range(self.bins, dtype=self.variable_dtype))
        return tf.cast(tf.maximum(1 - away, 0), dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        means, like = input_shape
        return (*like[:3], means[3])
