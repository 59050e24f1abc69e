"""Total loss of the recipe: the weighted sum of its terms, as each replica's share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import LossConfig
from segmenter.training.losses.emphasis import hardest, log_priors
from segmenter.training.losses.pixel import (
    Targets,
    cross_entropy,
    focal,
    per_image,
    per_pixel_share,
    targets_of,
)
from segmenter.training.losses.region import DICE, JACCARD, lovasz_per_image, soft_overlaps, tversky_loss

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


def _weighted(config: LossConfig, of: str) -> list[tuple[float, Callable[..., Any]]]:
    """Return weight and function of the terms of kind `of` with a weight above 0."""
    return [(getattr(config, name), TERMS[name]) for name in config.terms(of) if getattr(config, name)]


@dataclass(frozen=True)
class ReplicaLoss:
    """(labels (b, H, W) uint8, logits (b, H, W, K)) → this replica's share of the global loss, a scalar.

    Call it in a replica with any number of images, also none: the shares add up to the loss of all images,
    and their gradients to its gradient.

    Attributes:
        config: section `loss` of the recipe.
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
        pixels, images, overlaps = (_weighted(config, of) for of in ("pixels", "images", "batch"))
        # Each term takes the logits for itself, but for those of overlaps, which share one all-reduce.
        logits = iter(in_order(logits_BHWK, len(pixels) + len(images) + bool(overlaps)))
        total = tf.zeros((), dtype)
        if pixels:
            targets = self._kept(self._targets(labels_BHW, dtype), logits_BHWK)
            pixel = tf.zeros_like(targets.weight_BHW)
            for weight, term in pixels:
                pixel += weight * term(config, targets.ids_BHW, self._adjusted(next(logits)))
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

    def _kept(self, targets: Targets, logits_BHWK: Any) -> Targets:
        """Return the targets, reduced to hard pixels if the recipe requests that."""
        share, threshold = self.config.ohem, self.config.ohem_threshold
        if not share:
            return targets
        valid = targets.valid_BHW
        hard = hardest(targets.ids_BHW, valid, self._adjusted(logits_BHWK), share, threshold)
        return replace(targets, valid_BHW=hard, weight_BHW=targets.weight_BHW * hard)

    def _adjusted(self, logits_BHWK: Any) -> Any:
        if self.log_priors is None:
            return logits_BHWK
        return logits_BHWK + tf.constant(self.log_priors, logits_BHWK.dtype)

    @property
    def needs_valid_weight(self) -> bool:
        """True if parts of a global batch need the weight of all its valid pixels in advance."""
        return self.config.normalisation == "per_pixel" and bool(_weighted(self.config, "pixels"))

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
