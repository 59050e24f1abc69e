"""The function that is exported: from pixels to probabilities, with what predict.py does around its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from segmenter.extras.export.plain_layers import plain
from segmenter.grid.labels import IGNORE
from segmenter.inference.function import Member
from segmenter.raster.validity import NO_MEASUREMENT


@dataclass(frozen=True)
class Shape:
    """What a model takes and gives.

    Attributes:
        bands: C.
        stride: the model's; any height and width are filled up to multiples of it, inside.
        size: fixed height and width; None: any.
        batch: fixed number of windows; None: any.
        channels_first: (B, C, H, W) and (B, K, H, W); else (B, H, W, C) and (B, H, W, K).
        standardised: the caller normalises, every pixel has data, and probabilities alone come out.
    """

    bands: int
    stride: int
    size: int | None = None
    batch: int | None = None
    channels_first: bool = False
    standardised: bool = False

    @property
    def image(self) -> tuple[int | None, ...]:
        """Of the input, None where any number will do."""
        rows = (self.size, self.size)
        first = self.channels_first
        return (self.batch, self.bands, *rows) if first else (self.batch, *rows, self.bands)


@dataclass(frozen=True, eq=False)
class Exported:
    """Attributes:
    function: compiled; takes `image`, gives a dict of `classes` and `probabilities`, or the latter alone.
    signature: of it.
    variables: that it reads.
    channels_first: see `Shape`.
    """

    function: Any
    signature: list[Any]
    variables: list[Any]
    channels_first: bool = False


def exported_function(member: Member, shape: Shape) -> Exported:
    """A run's model as the function that other runtimes get.

    Image values are float32 in the data's units. A pixel with a band that is NaN, infinite or beyond ±1e30
    has no data, as in predict.py: the model sees the mean of the training scenes there, its class is 255 and
    its probabilities are 0.
    """
    model = plain(member.model)
    compute: Callable[[Any], dict[str, Any]] = (
        _standardised(model) if shape.standardised else _whole(member, model, shape)
    )

    def serve(image: Any) -> dict[str, Any]:
        if not shape.channels_first:
            return compute(image)
        found = compute(tf.transpose(image, [0, 2, 3, 1]))
        if (probabilities := found.get("probabilities")) is not None:
            found["probabilities"] = tf.transpose(probabilities, [0, 3, 1, 2])
        return found

    signature = [tf.TensorSpec(shape.image, tf.float32, name="image")]
    return Exported(
        tf.function(serve, input_signature=signature), signature, list(model.variables), shape.channels_first
    )


def _standardised(model: Any) -> Callable[[Any], dict[str, Any]]:
    def compute(image_BHWC: Any) -> dict[str, Any]:
        return {"probabilities": tf.nn.softmax(tf.cast(model(image_BHWC, training=False), tf.float32))}

    return compute


def _whole(member: Member, model: Any, shape: Shape) -> Callable[[Any], dict[str, Any]]:
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
    """Logits of any height and width: pixels without data fill both up, below and on the right."""
    if shape.size is not None:
        return tf.cast(model(pixels_BHWC, training=False), tf.float32)
    height, width = tf.shape(pixels_BHWC)[1], tf.shape(pixels_BHWC)[2]
    below, right = ((shape.stride - length % shape.stride) % shape.stride for length in (height, width))
    filled = tf.pad(pixels_BHWC, [[0, 0], [0, below], [0, right], [0, 0]])
    filled = tf.ensure_shape(filled, [None, None, None, shape.bands])
    return tf.cast(model(filled, training=False), tf.float32)[:, :height, :width]
