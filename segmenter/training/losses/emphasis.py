"""Pixel weighting for losses per pixel: class borders, hard pixels; logit adjustment.

The choice of pixels depends only on the image, so it is the same for any number of replicas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_REACH = 3
"""Standard deviations beyond which a border is not felt: exp(−4.5) is a hundredth."""


def border_weight(ids_BHW: Any, valid_BHW: Any, boundary: float, width: float) -> Any:
    """Return 1 + boundary · exp(−d² / 2·width²) of each pixel, (b, H, W) in the type of `valid_BHW`.

    d is the distance in pixels, along the longer axis, to the nearest pixel that touches one of another class
    (also at a corner): 0 there. Ignored pixels have no class, so neither their outlines nor the tile's edges
    are borders. After U-Net's weight map (Ronneberger et al. 2015, arXiv:1505.04597, eq. 2, w₀ = 10, σ = 5),
    but simpler: there d is the sum of the distances to the two nearest cells, and classes are balanced, as by
    `class_weights` here.
    """
    valid = tf.cast(valid_BHW, tf.float32)
    ids = tf.cast(ids_BHW, tf.float32)
    beyond = tf.fill(tf.shape(ids), -256.0)  # below any class id and its negative
    highest = _dilated(tf.where(valid > 0, ids, beyond))
    lowest = -_dilated(tf.where(valid > 0, -ids, beyond))
    near = valid * tf.cast((highest != ids) | (lowest != ids), tf.float32)
    # Each dilation adds what is one pixel further: from the nearest on, the Gaussian's differences add up.
    falls = [math.exp(-(d**2) / (2 * width**2)) for d in range(math.ceil(_REACH * width) + 1)]
    weight = tf.zeros_like(ids)
    for fall, further in zip(falls, [*falls[1:], 0.0], strict=True):
        weight += (fall - further) * near
        near = _dilated(near)
    return tf.cast(1 + boundary * weight, valid_BHW.dtype)


def _dilated(map_BHW: Any) -> Any:
    """Return the largest value of each 3 × 3 neighbourhood."""
    return tf.nn.max_pool2d(map_BHW[..., tf.newaxis], 3, 1, "SAME")[..., 0]


def of_class(values_BHWK: Any, ids_BHW: Any) -> Any:
    """Return the value of each pixel's own class, (b, H, W); exact for finite values.

    A product and a sum: the gradient of `tf.gather` sums maps of indices, and XLA cannot fuse it.
    """
    own = tf.one_hot(ids_BHW, values_BHWK.shape[-1], dtype=values_BHWK.dtype)
    return tf.reduce_sum(own * values_BHWK, axis=-1)


def hardest(ids_BHW: Any, valid_BHW: Any, logits_BHWK: Any, share: float, threshold: float) -> Any:
    """Return (b, H, W): 1 for an image's hardest `share` of valid pixels and those with p_y < `threshold`.

    Hard is a low probability of the true class, p_y. The share is rounded up; pixels that tie with the last
    one kept count in part, so that their order does not matter. No gradient.
    Online hard example mining (Shrivastava et al. 2016, arXiv:1604.03540) for pixels: top-k as in
    Wu et al. 2016 (arXiv:1605.06885, there called bootstrapping), with the threshold as widely used since:
    0.7 and a least number of pixels. Others take the hardest pixels of a device's batch; here, of each image.
    """
    log_p = tf.nn.log_softmax(tf.stop_gradient(logits_BHWK))
    cost = -of_class(log_p, ids_BHW)
    shape = tf.shape(cost)
    flat_BN = tf.reshape(tf.where(valid_BHW > 0, cost, -1), (shape[0], shape[1] * shape[2]))
    falling_BN = tf.math.top_k(flat_BN, k=shape[1] * shape[2]).values
    # A thousandth of a pixel is rounding: 0.1 · 100 is more than 10 in float32.
    valid_B = tf.reduce_sum(valid_BHW, axis=(1, 2))
    keep_B = tf.maximum(tf.math.ceil(share * valid_B - 1e-3), tf.minimum(valid_B, 1))
    last = tf.maximum(tf.cast(keep_B, tf.int64) - 1, 0)
    limit_B1 = tf.gather(falling_BN, last, batch_dims=1)[:, tf.newaxis]
    above, equal = (tf.cast(c, flat_BN.dtype) for c in (flat_BN > limit_B1, tf.equal(flat_BN, limit_B1)))
    left_B1 = keep_B[:, tf.newaxis] - tf.reduce_sum(above, axis=1, keepdims=True)
    part_B1 = tf.math.divide_no_nan(left_B1, tf.reduce_sum(equal, axis=1, keepdims=True))
    weight = tf.reshape(above + equal * part_B1, shape)
    if threshold:
        weight = tf.where(cost > -math.log(threshold), tf.ones_like(weight), weight)
    return tf.stop_gradient(weight * valid_BHW)


def log_priors(shares_K: Sequence[float], tau: float) -> tuple[float, ...]:
    """Return τ · log π_k with each class's share π_k of the pixels, added to the logits in training.

    Menon et al. 2021 (arXiv:2007.07314, eq. 10): a model trained with it gives balanced scores when used
    without. A class without training pixels gets 0: the loss pushes its logit down, as without adjustment.
    """
    share_K = np.asarray(shares_K, np.float64)
    log_K = np.log(np.where(share_K > 0, share_K, 1.0))
    return tuple(float(value) for value in tau * log_K)
