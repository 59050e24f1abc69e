"""Losses per pixel, cross-entropy and focal, with two ways to average over a global batch.

With ℓ the loss of a pixel, y its class, w the class weights, V_i the valid pixels of image i, and n images in
the global batch:

- `per_image`: 1/n · Σ_i ( Σ_{V_i} w[y]·ℓ / |V_i| ). Each image counts equally, however few of its pixels are
  labelled; an image without labels counts as 0. Weights multiply but do not normalise: otherwise they would
  have no effect on an image of one class.
- `per_pixel`: Σ w[y]·ℓ / Σ w[y], both sums over the valid pixels of all images. Each labelled pixel counts
  equally; the denominator is that of the global batch, not the replica's.

With `ohem`, V_i are the pixels kept; with `boundary`, w also depends on the distance to a border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from segmenter.grid.labels import IGNORE
from segmenter.training.losses.emphasis import border_weight, of_class


@dataclass(frozen=True)
class Targets:
    """Targets of a batch, made from its labels.

    Attributes:
        ids_BHW: int64 class ids, 0 where ignored: TensorFlow computes with int32 on a GPU's host.
        valid_BHW: 1 if a pixel counts, else 0; between for ties of hard pixels (`emphasis.hardest`).
        weight_BHW: weight of the pixel by class and border distance; 0 if ignored.
    """

    ids_BHW: Any
    valid_BHW: Any
    weight_BHW: Any


def targets_of(
    labels_BHW: Any,
    dtype: Any,
    class_weights: Sequence[float] | None = None,
    borders: tuple[float, float] | None = None,
) -> Targets:
    """Return the targets of uint8 labels (b, H, W); `borders`: (boundary, width); default weights: 1."""
    valid = tf.not_equal(labels_BHW, IGNORE)
    ids = tf.where(valid, tf.cast(labels_BHW, tf.int64), 0)
    valid = weight = tf.cast(valid, dtype)
    if class_weights is not None:
        weight = valid * tf.gather(tf.constant(class_weights, dtype), ids)
    if borders is not None:
        weight *= border_weight(ids, valid, *borders)
    return Targets(ids, valid, weight)


def cross_entropy(ids_BHW: Any, logits_BHWK: Any, smoothing: float = 0.0) -> Any:
    """Return −Σ_k q_k · log p_k of each pixel, (b, H, W), q = (1 − s)·[k = y] + s/K (Szegedy et al. 2016)."""
    return _against_smoothed(-tf.nn.log_softmax(logits_BHWK), ids_BHW, smoothing)


def focal(ids_BHW: Any, logits_BHWK: Any, gamma: float, smoothing: float = 0.0) -> Any:
    """Return −Σ_k q_k · (1 − p_k)^γ · log p_k of each pixel, (b, H, W); γ = 0 is cross-entropy.

    Without smoothing this is (1 − p_y)^γ · −log p_y (Lin et al. 2017, arXiv:1708.02002, eq. 4); the paper's
    α are the class weights.
    """
    log_p = tf.nn.log_softmax(logits_BHWK)
    if not gamma:
        return _against_smoothed(-log_p, ids_BHW, smoothing)
    # expm1 keeps 1 − p where p is nearly 1; the floor keeps the slope of x^γ at 0 finite for γ < 1.
    other = tf.maximum(-tf.math.expm1(log_p), np.finfo(log_p.dtype.as_numpy_dtype).tiny)
    return _against_smoothed(-(other**gamma) * log_p, ids_BHW, smoothing)


def _against_smoothed(cost_BHWK: Any, ids_BHW: Any, smoothing: float) -> Any:
    """Return Σ_k q_k · cost_k, (b, H, W): the cost of each class under the smoothed target q."""
    own = of_class(cost_BHWK, ids_BHW)
    if not smoothing:
        return own
    return (1 - smoothing) * own + smoothing * tf.reduce_mean(cost_BHWK, axis=-1)


def per_image(pixel_BHW: Any, targets: Targets) -> Any:
    """Return (b,): Σ w·ℓ / valid pixels of each image; 0 for an image without any.

    One value per image, because `tf.nn.compute_average_loss` divides only by the number of images.
    """
    total = tf.reduce_sum(pixel_BHW * targets.weight_BHW, axis=(1, 2))
    return total / tf.maximum(tf.reduce_sum(targets.valid_BHW, axis=(1, 2)), 1)


def per_pixel_share(pixel_BHW: Any, targets: Targets, global_weight: Any) -> Any:
    """Return this replica's Σ w·ℓ, divided by the total weight of the global batch; 0 if that is 0."""
    return tf.math.divide_no_nan(tf.reduce_sum(pixel_BHW * targets.weight_BHW), global_weight)
