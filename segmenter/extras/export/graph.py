"""Exported function: from pixels to probabilities, including predict.py's steps around the model.

Keras computes two layers by operations that only TensorFlow has: convolutions in groups of one channel by an
XLA program, and GELU by the complementary error function. Both have equivalents here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from segmenter.base.errors import OutputError
from segmenter.grid.labels import IGNORE
from segmenter.inference.function import Member
from segmenter.raster.validity import NO_MEASUREMENT


@dataclass(frozen=True)
class Shape:
    """Input and output of a model.

    Attributes:
        stride: stride of the model; the function pads height and width to multiples of it.
        size: fixed height and width; None: any.
        batch: fixed number of windows; None: any.
        channels_first: (B, C, H, W) and (B, K, H, W); else (B, H, W, C) and (B, H, W, K).
        standardised: True: the caller normalises, every pixel has data, and only probabilities are returned.
    """

    bands: int
    stride: int
    size: int | None = None
    batch: int | None = None
    channels_first: bool = False
    standardised: bool = False

    @property
    def image(self) -> tuple[int | None, ...]:
        """Shape of the input; None for variable sizes."""
        rows = (self.size, self.size)
        first = self.channels_first
        return (self.batch, self.bands, *rows) if first else (self.batch, *rows, self.bands)


@dataclass(frozen=True, eq=False)
class Exported:
    """A function to export.

    Attributes:
        function: compiled function from `image` to a dict of `classes` and `probabilities`, or the latter.
        variables: variables that it reads.
        channels_first: see `Shape`.
    """

    function: Any
    signature: list[Any]
    variables: list[Any]
    channels_first: bool = False


def exported_function(member: Member, shape: Shape) -> Exported:
    """Return a run's model as the function to export.

    Image values are float32 in the data's units. A pixel with a band that is NaN, infinite or beyond ±1e30
    has no data, as in predict.py: the model sees the mean of the training scenes there, its class is 255 and
    its probabilities are 0.
    """
    model = plain(member.model)
    compute: Callable[[Any], dict[str, Any]] = (
        _standardised_model(model) if shape.standardised else _full_model(member, model, shape)
    )

    def serve(image: Any) -> dict[str, Any]:
        if not shape.channels_first:
            return compute(image)
        results = compute(tf.transpose(image, [0, 2, 3, 1]))
        if (probabilities := results.get("probabilities")) is not None:
            results["probabilities"] = tf.transpose(probabilities, [0, 3, 1, 2])
        return results

    signature = [tf.TensorSpec(shape.image, tf.float32, name="image")]
    return Exported(
        tf.function(serve, input_signature=signature), signature, list(model.variables), shape.channels_first
    )


def _standardised_model(model: Any) -> Callable[[Any], dict[str, Any]]:
    def compute(image_BHWC: Any) -> dict[str, Any]:
        return {"probabilities": tf.nn.softmax(tf.cast(model(image_BHWC, training=False), tf.float32))}

    return compute


def _full_model(member: Member, model: Any, shape: Shape) -> Callable[[Any], dict[str, Any]]:
    def compute(image_BHWC: Any) -> dict[str, Any]:
        valid_BHW = tf.reduce_all(tf.abs(image_BHWC) < NO_MEASUREMENT, axis=-1)  # false for NaN, too
        pixels = member.normalisation.apply(image_BHWC, valid_BHW, by_rows=False)
        logits = _logits(model, pixels, shape)
        probabilities = tf.nn.softmax(logits)
        classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {
            "classes": tf.cast(tf.where(valid_BHW, classes, IGNORE), tf.uint8),
            "probabilities": tf.where(valid_BHW[..., tf.newaxis], probabilities, tf.zeros((), tf.float32)),
        }

    return compute


def _logits(model: Any, pixels_BHWC: Any, shape: Shape) -> Any:
    """Return logits for any height and width: pixels without data pad both, below and on the right."""
    if shape.size is not None:
        return tf.cast(model(pixels_BHWC, training=False), tf.float32)
    height, width = tf.shape(pixels_BHWC)[1], tf.shape(pixels_BHWC)[2]
    below, right = ((shape.stride - length % shape.stride) % shape.stride for length in (height, width))
    filled = tf.pad(pixels_BHWC, [[0, 0], [0, below], [0, right], [0, 0]])
    filled = tf.ensure_shape(filled, [None, None, None, shape.bands])
    return tf.cast(model(filled, training=False), tf.float32)[:, :height, :width]


# ----------------------------------------------------------------------------------------------------- layers


class ErfGelu(keras.layers.Layer):
    """Activation x Φ(x) (Hendrycks & Gimpel, arXiv:1606.08415), computed by the error function."""

    def call(self, inputs: Any) -> Any:
        """Apply the activation in the inputs' precision."""
        half = tf.constant(0.5, inputs.dtype)
        scaled = inputs * tf.constant(math.sqrt(0.5), inputs.dtype)
        return half * inputs * (tf.constant(1.0, inputs.dtype) + tf.math.erf(scaled))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def plain(model: keras.Model) -> keras.Model:
    """Return the model, or an equivalent one without layers that runtimes lack."""
    if not any(_is_depthwise(layer) or _is_gelu(layer) for layer in model.layers):
        return model
    copy = keras.models.clone_model(model, clone_function=_plain_layer)
    for layer in filter(_is_depthwise, model.layers):
        kernel, *bias = layer.get_weights()
        # (k, k, 1, C) → (k, k, C, 1)
        copy.get_layer(layer.name).set_weights([np.transpose(kernel, (0, 1, 3, 2)), *bias])
    return copy


def _plain_layer(layer: Any) -> Any:
    """Return the layer, or an equivalent of other operations."""
    if _is_depthwise(layer):
        config = layer.get_config()
        settings = ("name", "kernel_size", "strides", "padding", "dilation_rate", "use_bias")
        options = {key: config[key] for key in settings}
        return keras.layers.DepthwiseConv2D(**options, dtype=layer.dtype_policy, activation=layer.activation)
    return ErfGelu(name=layer.name, dtype=layer.dtype_policy) if _is_gelu(layer) else layer


def _is_depthwise(layer: Any) -> bool:
    """Return True if a layer is a general convolution that processes each channel separately."""
    return type(layer) is keras.layers.Conv2D and 1 < layer.groups == layer.filters


def _is_gelu(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.gelu


# ------------------------------------------------------------------------------------------------- SavedModel


def write_savedmodel(exported: Exported, path: Path) -> None:
    """Write the SavedModel folder.

    Raises:
        OutputError: the folder cannot be written.
    """
    module = _module(exported)
    module.serve = exported.function
    # Gradients are ours alone; they are no part of a model that predicts.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    concrete = exported.function.get_concrete_function()
    try:
        tf.saved_model.save(module, str(path), signatures=concrete, options=options)
    except tf.errors.OpError as error:
        raise OutputError(
            path.parent.parent, f"cannot write it: {error.message}", remedy="is the disk full?"
        ) from None


def read_savedmodel(path: Path) -> Callable[[Any], dict[str, Any]]:
    """Load the folder; return the function from image to named outputs."""
    loaded = tf.saved_model.load(str(path))
    serve = loaded.signatures["serving_default"]

    def run(image: Any, loaded: Any = loaded) -> dict[str, Any]:  # what was loaded holds the weights
        return {name: tensor.numpy() for name, tensor in serve(image=tf.constant(image)).items()}

    return run


def _module(exported: Exported) -> Any:
    """Return a module that holds the variables, so that they are saved."""
    module = tf.Module()
    module.weights = [variable.value for variable in exported.variables]
    return module
