"""Losses against formulas written out in NumPy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.reading import recipe_from
from segmenter.config.recipe import LossConfig
from segmenter.grid.labels import IGNORE
from segmenter.training.prepare import class_weights

WEIGHTS = (0.5, 2.0, 1.0)


def made(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels (4, 5, 7) of three classes with ignored pixels, the last image all ignored; logits."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, (4, 5, 7)).astype(np.uint8)
    label[rng.random(label.shape) < 0.3] = IGNORE
    label[3] = IGNORE
    return label, rng.normal(size=(4, 5, 7, 3))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def computed(label: np.ndarray, logits: np.ndarray, weights: Any = None, **terms: Any) -> float:
    """The loss of the recipe's section, cross-entropy off unless named."""
    import tensorflow as tf

    from segmenter.training.losses import segmentation_loss

    config = LossConfig(**{"cross_entropy": 0, **terms})
    return float(segmentation_loss(config, weights, None)(tf.constant(label), tf.constant(logits)))


def pixel_loss(label: np.ndarray, logits: np.ndarray, gamma: float, smoothing: float) -> np.ndarray:
    """Of each pixel, by the formula; 0 where ignored."""
    log_p = log_softmax(logits)
    target = np.eye(256)[label][..., :3] * (1 - smoothing) + smoothing / 3
    return -(target * (1 - np.exp(log_p)) ** gamma * log_p).sum(-1) * (label != IGNORE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("term", "gamma"), [("cross_entropy", 0.0), ("focal", 2.0), ("focal", 0.5)])
def test_the_two_normalisations(tensorflow: ModuleType, term: str, gamma: float, smoothing: float) -> None:
    label, logits = made()
    valid = label != IGNORE
    weight = np.array([*WEIGHTS, *[0.0] * 253])[label]
    weighted = pixel_loss(label, logits, gamma, smoothing) * weight
    terms = {term: 1, "label_smoothing": smoothing}
    if term == "focal":
        terms["focal_gamma"] = gamma
    images = weighted.sum((1, 2)) / np.maximum(1, valid.sum((1, 2)))
    assert images[3] == 0  # an image of ignored pixels only: no NaN
    assert computed(label, logits, WEIGHTS, **terms) == pytest.approx(images.mean(), rel=1e-12)
    got = computed(label, logits, WEIGHTS, normalisation="per_pixel", **terms)
    assert got == pytest.approx(weighted.sum() / weight.sum(), rel=1e-12)


def test_focal_loss_without_its_exponent_is_cross_entropy(tensorflow: ModuleType) -> None:
    label, logits = made(3)
    assert computed(label, logits, focal=1, focal_gamma=0) == computed(label, logits, cross_entropy=1)


def test_region_losses_are_over_the_whole_batch_and_its_classes(tensorflow: ModuleType) -> None:
    label, logits = made(1)
    label[label == 2] = 1  # class 2 is absent: it must not count
    ok = label != IGNORE
    p, y = np.exp(log_softmax(logits))[ok], label[ok]

    def mean(index: Any) -> float:
        parts = [(p[y == c, c].sum(), p[y != c, c].sum(), (1 - p[y == c, c]).sum()) for c in (0, 1)]
        return 1 - float(np.mean([index(*part) for part in parts]))

    dice = mean(lambda tp, fp, fn: 2 * tp / (2 * tp + fp + fn))
    jaccard = mean(lambda tp, fp, fn: tp / (tp + fp + fn))
    tversky = mean(lambda tp, fp, fn: tp / (tp + 0.2 * fp + 0.9 * fn))
    options = {"tversky_alpha": 0.2, "tversky_beta": 0.9}
    assert computed(label, logits, dice=1) == pytest.approx(dice, rel=1e-12)
    assert computed(label, logits, jaccard=1) == pytest.approx(jaccard, rel=1e-12)
    assert computed(label, logits, tversky=1, **options) == pytest.approx(tversky, rel=1e-12)
    total = computed(label, logits, dice=1, jaccard=2, tversky=3, cross_entropy=0.5, **options)
    expected = dice + 2 * jaccard + 3 * tversky + 0.5 * computed(label, logits, cross_entropy=1)
    assert total == pytest.approx(expected, rel=1e-12)


def test_lovasz_is_the_extension_of_one_minus_iou(tensorflow: ModuleType) -> None:
    label, logits = made(4)
    expected = [_lovasz_of_image(y, p) for y, p in zip(label, np.exp(log_softmax(logits)), strict=True)]
    assert computed(label, logits, lovasz=1) == pytest.approx(np.mean(expected), rel=1e-12)
    assert expected[3] == 0
    # Of a hard prediction it is 1 − IoU itself: here class 0 has 3 of 5 pixels, class 1 has 1 of 3.
    label = np.array([[[0, 0, 0, 0, 1, 1, IGNORE, IGNORE]]], np.uint8)
    hard = np.array([0, 0, 0, 1, 1, 0, 2, 0])
    sharp = 50.0 * np.eye(3)[hard][None, None]
    assert computed(label, sharp, lovasz=1) == pytest.approx(1 - (3 / 5 + 1 / 3) / 2, rel=1e-9)


def _lovasz_of_image(label: np.ndarray, p: np.ndarray) -> float:
    """∫ of the Jaccard loss of {m ≥ t} over the threshold t: another form of the extension."""
    ok = label != IGNORE
    losses = []
    for c in np.unique(label[ok]):
        truth = label[ok] == c
        error = np.abs(truth - p[ok][:, c])
        edges = np.unique([0.0, *error])
        wrong = [error >= t for t in edges[1:]]  # on (edges[i], edges[i + 1]]
        jaccard = [w.sum() / (truth | w).sum() for w in wrong]
        losses.append(float(np.dot(jaccard, np.diff(edges))))
    return float(np.mean(losses)) if losses else 0.0


ALL_TERMS = {"cross_entropy": 1, "focal": 1, "dice": 1, "jaccard": 1, "tversky": 1, "lovasz": 1}


@pytest.mark.parametrize("normalisation", ["per_image", "per_pixel"])
def test_ignored_pixels_have_no_gradient(tensorflow: ModuleType, normalisation: Any) -> None:
    from segmenter.training.losses import segmentation_loss

    tf = tensorflow
    label, logits = made(2)
    config = LossConfig(**ALL_TERMS, label_smoothing=0.1, normalisation=normalisation)
    x = tf.Variable(logits)
    with tf.GradientTape() as tape:
        value = segmentation_loss(config, (1.0, 2.0, 3.0), 4)(tf.constant(label), x)
    gradient = tape.gradient(value, x).numpy()
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[label == IGNORE]).max() == 0
    assert np.abs(gradient[label != IGNORE]).min() > 0


@pytest.mark.parametrize("shown", [[1, 16, 0, 47], [8, 24, 0, 32]])
def test_weights_by_inverse_root_have_the_mean_one_over_the_pixels(shown: list[int]) -> None:
    """√share / shown, by hand: of 1, 16 and 47 of 64 pixels, and of a class that no pixel has."""
    recipe = recipe_from(
        {"name": "t", "dataset": {"kind": "potsdam", "root": "r"}, "loss": {"class_weights": "inverse_sqrt"}},
        "test",
    )
    shares, shown_K = np.array([1, 16, 0, 47]) / 64, np.array(shown) / 64
    weights = np.array(class_weights(recipe.loss, shares, shown_K))
    total = 1 + 4 + 47**0.5
    by_hand = [64 / shown[0] / total, 4 * 64 / shown[1] / total, 1, 47**0.5 * 64 / shown[3] / total]
    np.testing.assert_allclose(weights, by_hand, rtol=1e-12)
    assert (weights * shown_K).sum() == pytest.approx(1, rel=1e-12)
