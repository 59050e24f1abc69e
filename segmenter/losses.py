"""Losses whose sum over the replicas is the loss of the global batch, exactly: law 2, *equivalence*.

A term gives each replica its share. Ignored pixels (`labels.IGNORE`) count in no term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from segmenter.labels import IGNORE
from segmenter.schema import LossConfig

ReplicaLoss = Callable[[Any, Any], Any]


def segmentation_loss(
    config: LossConfig, class_weights: Sequence[float] | None, global_batch: int
) -> ReplicaLoss:
    """(labels (b, H, W) uint8, logits (b, H, W, K)) → this replica's share of the global loss, a scalar."""

    def loss(labels_BHW: Any, logits_BHWK: Any) -> Any:
        total = tf.zeros((), logits_BHWK.dtype)
        if config.cross_entropy:
            per_image = cross_entropy_per_image(
                labels_BHW, logits_BHWK, class_weights=class_weights, smoothing=config.label_smoothing
            )
            share = tf.nn.compute_average_loss(per_image, global_batch_size=global_batch)
            total += config.cross_entropy * share
        if config.dice:
            total += config.dice * dice_share(labels_BHW, logits_BHWK)
        return total

    return loss


def cross_entropy_per_image(
    labels_BHW: Any, logits_BHWK: Any, *, class_weights: Sequence[float] | None = None, smoothing: float = 0.0
) -> Any:
    """Cross-entropy of each image, (b,): Σ w[y]·CE / valid pixels, over the image's own valid pixels.

    An image without a valid pixel gives 0. The weights multiply and do not normalise: an image of one
    class would otherwise not feel them. One value per image first, because `compute_average_loss`
    divides by the global batch alone.
    """
    valid = tf.not_equal(labels_BHW, IGNORE)
    classes = logits_BHWK.shape[-1]
    ids = tf.where(valid, tf.cast(labels_BHW, tf.int32), 0)
    log_p = tf.nn.log_softmax(logits_BHWK)
    picked = -tf.gather(log_p, ids, axis=-1, batch_dims=3)
    pixel = (1 - smoothing) * picked - (smoothing / classes) * tf.reduce_sum(log_p, axis=-1)
    weight = tf.cast(valid, pixel.dtype)
    count = tf.reduce_sum(weight, axis=(1, 2))
    if class_weights is not None:
        weight *= tf.gather(tf.constant(class_weights, pixel.dtype), ids)
    return tf.reduce_sum(pixel * weight, axis=(1, 2)) / tf.maximum(count, 1)


def dice_share(labels_BHW: Any, logits_BHWK: Any) -> Any:
    """This replica's share of 1 − mean soft Dice over the classes that the global batch holds.

    Soft Dice of class c over the valid pixels of all replicas: 2·Σ p·y / (Σ p + Σ y)
    (Milletari et al. 2016, arXiv:1606.04797, without squares). The sums are taken over all replicas before
    the ratio: a mean of the replicas' own Dice values is another, noisier quantity.

    The loss depends on this replica's logits through its own summands alone, so the gradient needs no
    second all-reduce: the others' summands are constants here. The value is divided by the number of
    replicas, since each has the same; the gradient is not.
    """
    classes = logits_BHWK.shape[-1]
    valid = tf.cast(tf.not_equal(labels_BHW, IGNORE), logits_BHWK.dtype)[..., tf.newaxis]
    p = tf.nn.softmax(logits_BHWK) * valid
    y = tf.one_hot(labels_BHW, classes, dtype=logits_BHWK.dtype)  # IGNORE is beyond K: all zeros
    own = tf.stack([tf.reduce_sum(t, axis=(0, 1, 2)) for t in (p * y, p, y)])
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync
    sums = own
    if replicas > 1:
        everyone = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(own))
        sums = tf.stop_gradient(everyone - own) + own
    both, predicted, true = tf.unstack(sums)
    present = tf.cast(true > 0, sums.dtype)
    dice = tf.math.divide_no_nan(2 * both, predicted + true)
    mean = tf.math.divide_no_nan(tf.reduce_sum(dice * present), tf.reduce_sum(present))
    loss = 1 - mean
    return loss - tf.stop_gradient(loss) * (replicas - 1) / replicas
