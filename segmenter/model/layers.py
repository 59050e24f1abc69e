"""Layers of encoders and decoders, with one precision and one kind of normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from segmenter.model.batchnorm import SyncBatchNorm
from segmenter.model.dropout import DropPath


@dataclass(frozen=True)
class Layers:
    """Maker of layers, all of the same precision."""

    policy: keras.DTypePolicy
    synchronised: bool

    @property
    def batch_norm(self) -> type[keras.layers.BatchNormalization]:
        """Class of BatchNorm; both choices have the same weights and the same bits at inference."""
        return SyncBatchNorm if self.synchronised else keras.layers.BatchNormalization

    def conv(self, x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
        """Add a convolution, by default same-padded and without bias."""
        options = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal", **options}
        return keras.layers.Conv2D(filters, kernel, dtype=self.policy, name=name, **options)(x)

    def depthwise(self, x: Any, kernel: int, name: str, **options: Any) -> Any:
        """Add a depthwise convolution, by default same-padded and without bias."""
        options = {"padding": "same", "use_bias": False, "depthwise_initializer": "he_normal", **options}
        return keras.layers.DepthwiseConv2D(kernel, dtype=self.policy, name=name, **options)(x)

    def norm(self, x: Any, name: str, **options: Any) -> Any:
        """Add BatchNorm."""
        # Short trainings validate early: Keras' momentum of 0.99 would lag hundreds of steps behind.
        options = {"momentum": 0.9, **options}
        return self.batch_norm(dtype=self.policy, name=name, **options)(x)

    def relu(self, x: Any, name: str, most: float | None = None) -> Any:
        """Add a rectifier, clipped at `most` (ReLU6: 6)."""
        return keras.layers.ReLU(max_value=most, dtype=self.policy, name=name)(x)

    def add(self, parts: list[Any], name: str) -> Any:
        """Add tensors."""
        return keras.layers.Add(dtype=self.policy, name=name)(parts)

    def concatenate(self, parts: list[Any], name: str) -> Any:
        """Join tensors along channels."""
        return keras.layers.Concatenate(dtype=self.policy, name=name)(parts)

    def drop_path(self, x: Any, rate: float, name: str) -> Any:
        """Add `DropPath` at the end of a residual branch; nothing at rate 0."""
        return DropPath(rate, dtype=self.policy, name=name)(x) if rate else x

    def enlarge(self, x: Any, factor: int, name: str, *, smooth: bool = False) -> Any:
        """Enlarge height and width by a factor, bilinearly if `smooth`, else by nearest neighbour."""
        if factor == 1:
            return x
        if smooth:
            return BilinearUpSampling(factor, dtype=self.policy, name=name)(x)
        return keras.layers.UpSampling2D(factor, interpolation="nearest", dtype=self.policy, name=name)(x)

    def share(self, x: Any, users: int, name: str) -> list[Any]:
        """Return a copy of a tensor for each user: none has over two, so gradients have one order of sums."""
        copies, rest = [], users
        while rest > 2:
            copies.append(x)
            rest -= 1
            x = Share(dtype=self.policy, name=f"{name}_share{rest}")(x)
        return copies + [x] * rest

    def block(self, x: Any, filters: int, name: str, kernel: int = 3, **options: Any) -> Any:
        """Add convolution, BatchNorm, rectifier."""
        x = self.conv(x, filters, kernel, f"{name}_conv", **options)
        return self.relu(self.norm(x, f"{name}_norm"), f"{name}_relu")

    def separable_block(self, x: Any, filters: int, name: str, dilation: int = 1) -> Any:
        """Add depthwise 3×3 and 1×1 convolution, each with BatchNorm and rectifier (Chen et al. 2018)."""
        x = self.depthwise(x, 3, f"{name}_depthwise", dilation_rate=dilation)
        x = self.relu(self.norm(x, f"{name}_depthwise_norm"), f"{name}_depthwise_relu")
        return self.block(x, filters, name, kernel=1)


@keras.saving.register_keras_serializable("segmenter")
class Share(keras.layers.Layer):
    """Identity that gives two more users of a tensor their own copy.

    TensorFlow sums the gradients of three users in any order (docs/internals.md), and merges nested sums into
    one; copying the gradient keeps the sums separate.
    """

    def call(self, inputs: Any) -> Any:
        return _share(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return Keras' configuration; its automatic one cannot contain a dtype policy."""
        return dict(super().get_config())


@tf.custom_gradient
def _share(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    def backward(gradient: Any) -> Any:
        return tf.raw_ops.Snapshot(input=gradient)

    return tf.identity(x), backward


@keras.saving.register_keras_serializable("segmenter")
class ChannelNorm(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the channels, with gradients added in pairs.

    Keras' layer uses its input more than twice (see `Share`); this one counts as a single user. Inference is
    Keras' own, to the bit.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Normalise each pixel's channels to mean 0 and variance 1, then scale and shift."""
        if not training:
            return super().call(inputs)
        x = tf.identity(tf.cast(inputs, self.variable_dtype))
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        scaled = centred * tf.math.rsqrt(variance + self.epsilon)
        return tf.cast(scaled * self.gamma + self.beta, self.compute_dtype)


@keras.saving.register_keras_serializable("segmenter")
class LayerScale(keras.layers.Layer):
    """Scaling of channels by learned, initially small factors (Touvron et al. 2021, arXiv:2103.17239)."""

    def __init__(self, init_values: float, **options: Any) -> None:
        super().__init__(**options)
        self.init_values = init_values

    def build(self, input_shape: Any) -> None:
        """Create the factors."""
        first = keras.initializers.Constant(self.init_values)
        self.gamma = self.add_weight(shape=(input_shape[-1],), initializer=first, name="gamma")

    def call(self, inputs: Any) -> Any:
        """Scale the input."""
        return inputs * self.gamma

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "init_values": self.init_values}


@keras.saving.register_keras_serializable("segmenter")
class BilinearUpSampling(keras.layers.UpSampling2D):
    """Bilinear enlargement by an even factor, in the layer's own precision.

    TensorFlow's operation, and so Keras' layer, always computes and returns float32. Here 16-bit inputs give
    16-bit outputs, and 64-bit inputs are interpolated in 64 bits.
    """

    def __init__(self, size: int, **options: Any) -> None:
        options.pop("interpolation", None)
        super().__init__(size, interpolation="bilinear", **options)
        if self.size[0] != self.size[1] or self.size[0] % 2:
            raise ValueError(f"BilinearUpSampling: expected one even factor, got {self.size}")

    def call(self, inputs: Any) -> Any:
        """Enlarge (B, H, W, C) to (B, factor H, factor W, C)."""
        factor = self.size[0]
        if inputs.dtype == tf.float64:
            return _linear(_linear(inputs, 1, factor), 2, factor)
        shape = tf.shape(inputs)[1:3] * factor
        return tf.cast(tf.image.resize(inputs, shape, "bilinear"), inputs.dtype)


def _linear(x: Any, axis: int, factor: int) -> Any:
    """Interpolate linearly along an axis, at the centres of `factor` parts of each pixel."""
    padded = tf.pad(x, [[int(a == axis)] * 2 for a in range(4)], "SYMMETRIC")
    low, high = (
        tf.expand_dims(padded[tuple(part if a == axis else slice(None) for a in range(4))], axis + 1)
        for part in (slice(None, -1), slice(1, None))
    )
    way = np.reshape((np.arange(factor) + 0.5) / factor, [factor] + [1] * (3 - axis))
    between = low * tf.constant(1 - way, x.dtype) + high * tf.constant(way, x.dtype)
    sizes = [x.shape[3] if a == 3 else tf.shape(x)[a] for a in range(4)]
    sizes[axis] = (sizes[axis] + 1) * factor
    half = factor // 2
    inner = tuple(slice(half, -half) if a == axis else slice(None) for a in range(4))
    return tf.reshape(between, sizes)[inner]
