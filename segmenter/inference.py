"""A model as a compiled function from pixels to class ids: one byte a pixel leaves the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.hardware import memory_errors
from segmenter.normalisation import Normalisation


def predict_function(model: Any, normalisation: Normalisation) -> Any:
    """(image (B, H, W, C) of any dtype, valid (B, H, W) bool) → class ids (B, H, W) uint8.

    Height and width are multiples of the model's stride. Normalisation and the choice of the class are
    part of the compiled graph. The function raises a DeviceError where a batch does not fit into memory.
    """

    @tf.function(reduce_retracing=True)
    def compiled(image_BHWC: Any, valid_BHW: Any) -> Any:
        logits = model(normalisation.apply(image_BHWC, valid_BHW), training=False)
        return tf.cast(tf.argmax(logits, axis=-1), tf.uint8)

    def predict(image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> NDArray[np.uint8]:
        batch, height, width = valid_BHW.shape
        doing = f"at {batch} windows of {height}×{width} pixels"
        with memory_errors(doing, "lower prediction.batch or prediction.window (--batch, --tile)"):
            ids: NDArray[np.uint8] = compiled(tf.constant(image_BHWC), tf.constant(valid_BHW)).numpy()
        return ids

    return predict
