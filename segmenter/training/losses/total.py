"""Total loss of the recipe: the weighted sum of its terms, as each replica's share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
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
from segmenter.training.losses.replicas import global_sum, share_of


@dataclass(frozen=True)
class ReplicaLoss:
    """(labels (b, H, W) uint8, logits (b, H, W, K)) → this replica's share of the global loss, a scalar.

    To be called in a replica, with as many or as few images as it has, none included: the shares add up to
    the loss of all images, and the gradients to its gradient.

    Attributes:
        config: the recipe's section.
        class_weights: (K,) weights in cross-entropy and focal loss; None: all 1.
        global_batch: images of a step over all replicas, where that is the same in each step; None: counted
            in the step, in an all-reduce, for batches that may be short.
        log_priors: (K,) added to the logits in cross-entropy and focal loss; None: nothing is.
    """

    config: LossConfig
    class_weights: tuple[float, ...] | None
    global_batch: int | None
    log_priors: tuple[float, ...] | None = None

    def __call__(self, labels_BHW: Any, logits_BHWK: Any, valid_weight: Any = None) -> Any:
        """The share; `valid_weight` where these are a part of the replica's images, see there."""
        config, dtype = self.config, logits_BHWK.dtype
        total = tf.zeros((), dtype)
        logits = iter(in_order(logits_BHWK, len(_users(config))))
        if config.cross_entropy or config.focal:
            targets = self._kept(self._targets(labels_BHW, dtype), logits_BHWK)
            pixel = _pixel_loss(config, targets, (self._adjusted(x) for x in logits))
            if config.normalisation == "per_pixel":
                weight = _global_weight(targets) if valid_weight is None else valid_weight
                total += per_pixel_share(pixel, targets, weight)
            else:
                total += _mean_over_images(per_image(pixel, targets), self.global_batch)
        if config.lovasz:
            images = lovasz_per_image(labels_BHW, next(logits))
            total += config.lovasz * _mean_over_images(images, self.global_batch)
        if terms := _overlap_terms(config):
            overlaps = in_order(global_sum(soft_overlaps(labels_BHW, next(logits))), len(terms))
            parts = zip(terms, overlaps, strict=True)
            total += share_of(sum(w * tversky_loss(sums, *alpha_beta) for (w, alpha_beta), sums in parts))
        return total

    def _targets(self, labels_BHW: Any, dtype: Any) -> Targets:
        config = self.config
        borders = (config.boundary, config.boundary_width) if config.boundary else None
        return targets_of(labels_BHW, dtype, self.class_weights, borders)

    def _kept(self, targets: Targets, logits_BHWK: Any) -> Targets:
        """The targets of the hard pixels alone, where the recipe asks for these."""
        share, threshold = self.config.ohem, self.config.ohem_threshold
        if not share:
            return targets
        known = targets.valid_BHW
        kept = hardest(targets.ids_BHW, known, self._adjusted(logits_BHWK), share, threshold)
        return replace(targets, valid_BHW=kept, weight_BHW=targets.weight_BHW * kept)

    def _adjusted(self, logits_BHWK: Any) -> Any:
        if self.log_priors is None:
            return logits_BHWK
        return logits_BHWK + tf.constant(self.log_priors, logits_BHWK.dtype)

    @property
    def needs_valid_weight(self) -> bool:
        """Whether parts of a global batch have to know the weight of all its valid pixels beforehand."""
        return self.config.normalisation == "per_pixel" and bool(
            self.config.cross_entropy or self.config.focal
        )

    def valid_weight(self, labels_BHW: Any, dtype: Any) -> Any:
        """Σ w[y] over the valid pixels of the global batch, from the labels alone; one all-reduce.

        Not with `ohem`, whose pixels only the logits tell.
        """
        return _global_weight(self._targets(labels_BHW, dtype))


def segmentation_loss(
    config: LossConfig,
    class_weights: Sequence[float] | None,
    global_batch: int | None,
    class_shares: Sequence[float] | None = None,
) -> ReplicaLoss:
    """The recipe's loss, see `ReplicaLoss`.

    Args:
        class_shares: (K,) share of each class in the training pixels, for `loss.logit_adjustment` alone.

    Raises:
        ConfigError: these are missing.
    """
    priors = None
    if config.logit_adjustment:
        if class_shares is None:
            raise ConfigError("loss.logit_adjustment: expected the classes' shares of the pixels, got none")
        priors = log_priors(class_shares, config.logit_adjustment)
    weights = None if class_weights is None else tuple(class_weights)
    return ReplicaLoss(config, weights, global_batch, priors)


def in_order(value: Any, users: int) -> list[Any]:
    """The value for each of its users, whose gradients are added up in their order.

    TensorFlow's own sum of three or more starts with whichever happens to be free to be written over, so that
    its last bits differ from step to step (docs/internals.md). It also makes one such sum of a chain of
    additions, unless a copy keeps them apart.
    """

    @tf.custom_gradient
    def fork(x: Any) -> tuple[list[Any], Callable[..., Any]]:
        def backward(*gradients: Any) -> Any:
            return functools.reduce(lambda total, g: tf.raw_ops.Snapshot(input=total) + g, gradients)

        return [tf.identity(x) for _ in range(users)], backward

    return list(fork(value)) if users > 2 else [value] * users


def _users(config: LossConfig) -> list[Any]:
    """The terms that each take the logits for themselves."""
    terms = (config.cross_entropy, config.focal, config.lovasz, _overlap_terms(config))
    return [term for term in terms if term]


def _pixel_loss(config: LossConfig, targets: Targets, logits: Iterator[Any]) -> Any:
    """(b, H, W): the weighted sum of cross-entropy and focal loss, each of the next of the logits."""
    pixel, smoothing = tf.zeros_like(targets.weight_BHW), config.label_smoothing
    if config.cross_entropy:
        pixel += config.cross_entropy * cross_entropy(targets.ids_BHW, next(logits), smoothing)
    if config.focal:
        pixel += config.focal * focal(targets.ids_BHW, next(logits), config.focal_gamma, smoothing)
    return pixel


def _global_weight(targets: Targets) -> Any:
    return tf.stop_gradient(global_sum(tf.reduce_sum(targets.weight_BHW)))


def _mean_over_images(image_B: Any, global_batch: int | None) -> Any:
    """This replica's share of the mean over the images of the global batch."""
    if global_batch is not None:
        return tf.nn.compute_average_loss(image_B, global_batch_size=global_batch)
    # As a float: NCCL would have to fetch an int32 from the host.
    images = global_sum(tf.cast(tf.shape(image_B)[0], image_B.dtype))
    return tf.math.divide_no_nan(tf.reduce_sum(image_B), images)


def _overlap_terms(config: LossConfig) -> list[tuple[float, tuple[float, float]]]:
    """(weight, (α, β)) of the terms that are ratios of overlaps: they share one all-reduce."""
    terms = [
        (config.dice, DICE),
        (config.jaccard, JACCARD),
        (config.tversky, (config.tversky_alpha, config.tversky_beta)),
    ]
    return [term for term in terms if term[0]]
