"""Losses of regions: overlaps over the global batch (Dice, Jaccard, Tversky); Lovász-softmax per image."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from segmenter.grid.labels import IGNORE

DICE, JACCARD = (0.5, 0.5), (1.0, 1.0)
"""(α, β) for which the Tversky index is the Dice coefficient and the Jaccard index."""


def soft_overlaps(labels_BHW: Any, logits_BHWK: Any) -> Any:
    """Return (3, K): Σ p·y, Σ p and Σ y of each class over the valid pixels, p being the softmax."""
    classes = logits_BHWK.shape[-1]
    valid = tf.cast(tf.not_equal(labels_BHW, IGNORE), logits_BHWK.dtype)[..., tf.newaxis]
    p = tf.nn.softmax(logits_BHWK) * valid
    y = tf.one_hot(labels_BHW, classes, dtype=logits_BHWK.dtype)  # IGNORE is beyond K: all zeros
    return tf.stack([tf.reduce_sum(t, axis=(0, 1, 2)) for t in (p * y, p, y)])


def tversky_loss(overlaps_3K: Any, alpha: float, beta: float) -> Any:
    """Return 1 − mean soft Tversky index over the classes that the labels hold; 1 if they hold none.

    TP / (TP + α·FP + β·FN) with TP = Σ p·y, FP = Σ p·(1 − y), FN = Σ (1 − p)·y (Salehi et al. 2017,
    arXiv:1706.05721, eq. 4). α = β = ½ is soft Dice (Milletari et al. 2016, arXiv:1606.04797, without
    squares), α = β = 1 soft Jaccard (Rahman & Wang 2016, doi:10.1007/978-3-319-50835-1_22).

    The overlaps are those of the global batch, summed before the ratio: a mean of the replicas' indices would
    be another, noisier quantity over other sets of classes.
    """
    both, predicted, true = tf.unstack(overlaps_3K)
    present = tf.cast(true > 0, overlaps_3K.dtype)
    # TP + α·FP + β·FN in the form in which `both` is read once: its gradient is then a sum of two, whose bits
    # do not depend on the order (docs/internals.md).
    sizes = alpha * predicted + beta * true + (1 - alpha - beta) * both
    index = tf.math.divide_no_nan(both, sizes)
    return 1 - tf.math.divide_no_nan(tf.reduce_sum(index * present), tf.reduce_sum(present))


def lovasz_per_image(labels_BHW: Any, logits_BHWK: Any) -> Any:
    """Return Lovász-softmax of each image, (b,): mean over its classes, 0 for an image without a valid pixel.

    The convex extension of 1 − IoU to the errors m = |y − p| (Berman et al. 2018, arXiv:1705.08790, algorithm
    1): with m sorted downwards, Σ m_i·(J_i − J_{i−1}), J_i being the Jaccard loss of a prediction that errs
    on the first i pixels. An image lies on one replica, so no replica needs another's pixels.

    Sorts H·W errors for each class and image: by far the most expensive loss.
    """
    classes = logits_BHWK.shape[-1]
    y = tf.one_hot(labels_BHW, classes, dtype=logits_BHWK.dtype)
    valid = tf.not_equal(labels_BHW, IGNORE)[..., tf.newaxis]
    # An ignored pixel sorts behind all others, and then counts 0.
    error = tf.where(valid, tf.abs(y - tf.nn.softmax(logits_BHWK)), -1)
    error, y = (_pixels_last(t) for t in (error, y))
    falling, truth = _sorted_by(error, y)
    loss_BK = tf.reduce_sum(tf.nn.relu(falling) * _jaccard_steps(truth), axis=-1)
    present = tf.cast(tf.reduce_sum(y, axis=-1) > 0, y.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(loss_BK * present, axis=-1), tf.reduce_sum(present, axis=-1))


def _sorted_by(error_BKN: Any, truth_BKN: Any) -> tuple[Any, Any]:
    """Return both in decreasing order of the first, which is differentiable.

    Uses 64-bit indices: top_k's gradient sums int32 maps, which a GPU leaves to its host.
    """
    order = tf.math.top_k(tf.stop_gradient(error_BKN), k=tf.shape(error_BKN)[-1]).indices
    order = tf.cast(order, tf.int64)
    truth = tf.stop_gradient(tf.gather(truth_BKN, order, axis=-1, batch_dims=2))
    return tf.gather(error_BKN, order, axis=-1, batch_dims=2), truth


def _pixels_last(map_BHWK: Any) -> Any:
    """Reshape (b, H, W, K) to (b, K, H·W)."""
    shape = tf.shape(map_BHWK)
    flat = tf.reshape(map_BHWK, (shape[0], shape[1] * shape[2], map_BHWK.shape[-1]))
    return tf.transpose(flat, (0, 2, 1))


def _jaccard_steps(truth_BKN: Any) -> Any:
    """Return J_i − J_{i−1} along the sorted pixels, J_i = 1 − (T − Σ_{≤i} y) / (T + Σ_{≤i} (1 − y))."""
    total = tf.reduce_sum(truth_BKN, axis=-1, keepdims=True)
    overlap = total - tf.cumsum(truth_BKN, axis=-1)
    union = total + tf.cumsum(1 - truth_BKN, axis=-1)
    jaccard = 1 - overlap / union  # a union is at least one pixel: the first is of the class, or is not
    return jaccard - tf.pad(jaccard, ((0, 0), (0, 0), (1, 0)))[..., :-1]
