"""Losses: the weighted sum of the recipe's terms, as each replica's share (law 2, *equivalence*).

The shares of all replicas add up to the loss of the global batch. Ignored pixels (`labels.IGNORE`) count in
no term. With ℓ the loss of a pixel, y its class, w the class weights, V_i the valid pixels of image i, and n
images in the global batch:

- `per_image`: 1/n · Σ_i ( Σ_{V_i} w[y]·ℓ / |V_i| ). Each image counts equally, however few of its pixels are
  labelled; an image without labels counts as 0. Weights multiply but do not normalise: otherwise they would
  have no effect on an image of one class.
- `per_pixel`: Σ w[y]·ℓ / Σ w[y], both sums over the valid pixels of all images. Each labelled pixel counts
  equally; the denominator is that of the global batch, not the replica's.

With `ohem`, V_i are the pixels kept; with `boundary`, w also depends on the distance to a border.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import LossConfig
from segmenter.grid.labels import IGNORE

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
    highest = _dilate(tf.where(valid > 0, ids, beyond))
    lowest = -_dilate(tf.where(valid > 0, -ids, beyond))
    near = valid * tf.cast((highest != ids) | (lowest != ids), tf.float32)
    # Each dilation adds what is one pixel further: from the nearest on, the Gaussian's differences add up.
    falls = [math.exp(-(d**2) / (2 * width**2)) for d in range(math.ceil(_REACH * width) + 1)]
    weight = tf.zeros_like(ids)
    for fall, further in zip(falls, [*falls[1:], 0.0], strict=True):
        weight += (fall - further) * near
        near = _dilate(near)
    return tf.cast(1 + boundary * weight, valid_BHW.dtype)


def _dilate(map_BHW: Any) -> Any:
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
    falling, truth = _sort_by_error(error, y)
    loss_BK = tf.reduce_sum(tf.nn.relu(falling) * _jaccard_steps(truth), axis=-1)
    present = tf.cast(tf.reduce_sum(y, axis=-1) > 0, y.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(loss_BK * present, axis=-1), tf.reduce_sum(present, axis=-1))


def _sort_by_error(error_BKN: Any, truth_BKN: Any) -> tuple[Any, Any]:
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


TERMS: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda config, ids, logits: cross_entropy(ids, logits, config.label_smoothing),
    "focal": lambda config, ids, logits: focal(ids, logits, config.focal_gamma, config.label_smoothing),
    "lovasz": lambda config, labels, logits: lovasz_per_image(labels, logits),
    "dice": lambda config, overlaps: tversky_loss(overlaps, *DICE),
    "jaccard": lambda config, overlaps: tversky_loss(overlaps, *JACCARD),
    "tversky": lambda config, overlaps: tversky_loss(overlaps, config.tversky_alpha, config.tversky_beta),
}
"""Name of a weight in `LossConfig` → its term, of the kind that it is marked as there (`Term.of`).

pixels: from class ids and logits, a loss of each pixel (b, H, W); images: from labels and logits, one of each
image (b,); batch: from the overlaps (3, K) of the global batch, a scalar.
"""


def _weighted_terms(config: LossConfig, of: str) -> list[tuple[float, Callable[..., Any]]]:
    """Return weight and function of the terms of kind `of` with a weight above 0."""
    return [(getattr(config, name), TERMS[name]) for name in config.terms(of) if getattr(config, name)]


@dataclass(frozen=True)
class ReplicaLoss:
    """(labels (b, H, W) uint8, logits (b, H, W, K)) → this replica's share of the global loss, a scalar.

    Call it in a replica with any number of images, also none: the shares add up to the loss of all images,
    and their gradients to its gradient.

    Attributes:
        class_weights: (K,) weights in cross-entropy and focal loss; None: all 1.
        global_batch: images of a step over all replicas, if constant; None: counted in each step by an
            all-reduce, for batches that may be short.
        log_priors: (K,) added to the logits in cross-entropy and focal loss; None: no adjustment.
    """

    config: LossConfig
    class_weights: tuple[float, ...] | None
    global_batch: int | None
    log_priors: tuple[float, ...] | None = None

    def __call__(self, labels_BHW: Any, logits_BHWK: Any, valid_weight: Any = None) -> Any:
        """Return the share; for parts of a replica's images, `valid_weight` comes from that method."""
        config, dtype = self.config, logits_BHWK.dtype
        pixels, images, overlaps = (_weighted_terms(config, of) for of in ("pixels", "images", "batch"))
        # Each term takes the logits for itself, but for those of overlaps, which share one all-reduce.
        logits = iter(in_order(logits_BHWK, len(pixels) + len(images) + bool(overlaps)))
        total = tf.zeros((), dtype)
        if pixels:
            targets = self._kept_targets(self._targets(labels_BHW, dtype), logits_BHWK)
            pixel = tf.zeros_like(targets.weight_BHW)
            for weight, term in pixels:
                pixel += weight * term(config, targets.ids_BHW, self._adjust(next(logits)))
            total += self._over_pixels(pixel, targets, valid_weight)
        for weight, term in images:
            image_B = term(config, labels_BHW, next(logits))
            total += weight * _mean_over_images(image_B, self.global_batch)
        if overlaps:
            sums = in_order(global_sum(soft_overlaps(labels_BHW, next(logits))), len(overlaps))
            parts = zip(overlaps, sums, strict=True)
            total += share_of(sum(weight * term(config, own) for (weight, term), own in parts))
        return total

    def _over_pixels(self, pixel_BHW: Any, targets: Targets, valid_weight: Any) -> Any:
        """Return this replica's share of the mean over images or pixels, by `normalisation`."""
        if self.config.normalisation == "per_image":
            return _mean_over_images(per_image(pixel_BHW, targets), self.global_batch)
        weight = _global_weight(targets) if valid_weight is None else valid_weight
        return per_pixel_share(pixel_BHW, targets, weight)

    def _targets(self, labels_BHW: Any, dtype: Any) -> Targets:
        config = self.config
        borders = (config.boundary, config.boundary_width) if config.boundary else None
        return targets_of(labels_BHW, dtype, self.class_weights, borders)

    def _kept_targets(self, targets: Targets, logits_BHWK: Any) -> Targets:
        """Return the targets, reduced to hard pixels if the recipe requests that."""
        share, threshold = self.config.ohem, self.config.ohem_threshold
        if not share:
            return targets
        valid = targets.valid_BHW
        hard = hardest(targets.ids_BHW, valid, self._adjust(logits_BHWK), share, threshold)
        return replace(targets, valid_BHW=hard, weight_BHW=targets.weight_BHW * hard)

    def _adjust(self, logits_BHWK: Any) -> Any:
        if self.log_priors is None:
            return logits_BHWK
        return logits_BHWK + tf.constant(self.log_priors, logits_BHWK.dtype)

    @property
    def needs_valid_weight(self) -> bool:
        """True if parts of a global batch need the weight of all its valid pixels in advance."""
        return self.config.normalisation == "per_pixel" and bool(_weighted_terms(self.config, "pixels"))

    def valid_weight(self, labels_BHW: Any, dtype: Any) -> Any:
        """Return Σ w[y] over the valid pixels of the global batch, from the labels alone; one all-reduce.

        Not for `ohem`, whose pixels depend on the logits.
        """
        return _global_weight(self._targets(labels_BHW, dtype))


def segmentation_loss(
    config: LossConfig,
    class_weights: Sequence[float] | None,
    global_batch: int | None,
    class_shares: Sequence[float] | None = None,
) -> ReplicaLoss:
    """Return the recipe's loss; see `ReplicaLoss`.

    Args:
        class_shares: (K,) share of each class in the training pixels, only for `loss.logit_adjustment`.

    Raises:
        ConfigError: the shares are missing.
    """
    priors = None
    if config.logit_adjustment:
        if class_shares is None:
            raise ConfigError(
                "loss.logit_adjustment", expected="the classes' shares of the pixels", got="none"
            )
        priors = log_priors(class_shares, config.logit_adjustment)
    weights = None if class_weights is None else tuple(class_weights)
    return ReplicaLoss(config, weights, global_batch, priors)


def in_order(value: Any, users: int) -> list[Any]:
    """Return the value once for each user, such that gradients are summed in the users' order.

    TensorFlow's sum of three or more tensors starts with any buffer that is free, so its last bits differ
    from step to step (docs/internals.md). It also merges a chain of additions into one such sum, unless a
    copy separates them.
    """

    @tf.custom_gradient
    def fork(x: Any) -> tuple[list[Any], Callable[..., Any]]:
        def backward(*gradients: Any) -> Any:
            return functools.reduce(lambda total, g: tf.raw_ops.Snapshot(input=total) + g, gradients)

        return [tf.identity(x) for _ in range(users)], backward

    return list(fork(value)) if users > 2 else [value] * users


def replicas() -> int:
    """Return the number of replicas that compute together; 1 outside a strategy."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def global_sum(own: Any) -> Any:
    """Sum a tensor over the replicas by one all-reduce; gradients flow only to this replica's summand.

    The others' summands are constants here, so the backward pass needs no second all-reduce: each replica
    differentiates the same function of the sum by its own summand, and the gradients are summed later.
    """
    if replicas() == 1:
        return own
    context = tf.distribute.get_replica_context()
    everyone = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(own))
    return tf.stop_gradient(everyone - own) + own


def share_of(loss: Any) -> Any:
    """Return this replica's share, loss / R with its full gradient, of a loss that all have computed.

    The values of the shares add up to the loss. The gradients are of this replica's summands only
    (`global_sum`), and add up to the loss's gradient without rescaling.
    """
    count = replicas()
    return loss - tf.stop_gradient(loss) * (count - 1) / count


def _global_weight(targets: Targets) -> Any:
    return tf.stop_gradient(global_sum(tf.reduce_sum(targets.weight_BHW)))


def _mean_over_images(image_B: Any, global_batch: int | None) -> Any:
    """Return this replica's share of the mean over the images of the global batch."""
    if global_batch is not None:
        return tf.nn.compute_average_loss(image_B, global_batch_size=global_batch)
    # As a float: NCCL would have to fetch an int32 from the host.
    images = global_sum(tf.cast(tf.shape(image_B)[0], image_B.dtype))
    return tf.math.divide_no_nan(tf.reduce_sum(image_B), images)
