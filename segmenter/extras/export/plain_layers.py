"""A model of operations that every runtime has.

Keras computes two of its layers by operations of TensorFlow alone: convolutions in groups of one channel as a
call of an XLA program, and GELU by the complementary error function. Both have twins that compute the same.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class ErfGelu(keras.layers.Layer):
    """x Φ(x) (Hendrycks & Gimpel, arXiv:1606.08415) by the error function."""

    def call(self, inputs: Any) -> Any:
        """The activation, in the inputs' precision."""
        half = tf.constant(0.5, inputs.dtype)
        scaled = inputs * tf.constant(math.sqrt(0.5), inputs.dtype)
        return half * inputs * (tf.constant(1.0, inputs.dtype) + tf.math.erf(scaled))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output: that of the input."""
        return input_shape


def plain(model: keras.Model) -> keras.Model:
    """The model itself, or one of the same function and weights with twins of what other runtimes lack."""
    if not any(_is_depthwise(layer) or _is_gelu(layer) for layer in model.layers):
        return model
    copy = keras.models.clone_model(model, clone_function=_plain_layer)
    for layer in filter(_is_depthwise, model.layers):
        kernel, *bias = layer.get_weights()
        # (k, k, 1, C) → (k, k, C, 1)
        copy.get_layer(layer.name).set_weights([np.transpose(kernel, (0, 1, 3, 2)), *bias])
    return copy


def _plain_layer(layer: Any) -> Any:
    """The layer, or one that computes the same by other operations."""
    if _is_depthwise(layer):
        config = layer.get_config()
        kept = ("name", "kernel_size", "strides", "padding", "dilation_rate", "use_bias")
        options = {key: config[key] for key in kept}
        return keras.layers.DepthwiseConv2D(**options, dtype=layer.dtype_policy, activation=layer.activation)
    return ErfGelu(name=layer.name, dtype=layer.dtype_policy) if _is_gelu(layer) else layer


def _is_depthwise(layer: Any) -> bool:
    """Whether a layer is a general convolution that sees each channel by itself."""
    return type(layer) is keras.layers.Conv2D and 1 < layer.groups == layer.filters


def _is_gelu(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.gelu
