"""Losses against formulas written out in NumPy."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from segmenter.labels import IGNORE
from segmenter.schema import LossConfig


def made(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, (4, 5, 7)).astype(np.uint8)
    label[rng.random(label.shape) < 0.3] = IGNORE
    label[3] = IGNORE
    return label, rng.normal(size=(4, 5, 7, 3))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_cross_entropy_is_the_mean_over_an_images_valid_pixels(tensorflow: ModuleType) -> None:
    from segmenter.losses import cross_entropy_per_image

    label, logits = made()
    weights, smoothing = (0.5, 2.0, 1.0), 0.1
    expected = []
    for y, lp in zip(label, log_softmax(logits), strict=True):
        ok = y != IGNORE
        target = np.full((ok.sum(), 3), smoothing / 3)
        target[np.arange(ok.sum()), y[ok]] += 1 - smoothing
        ce = -(target * lp[ok]).sum(-1) * np.array(weights)[y[ok]]
        expected.append(ce.sum() / max(1, ok.sum()))
    got = cross_entropy_per_image(
        label, tensorflow.constant(logits), class_weights=weights, smoothing=smoothing
    )
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
    assert got.numpy()[3] == 0  # an image of ignored pixels only: no NaN


def test_dice_is_over_the_whole_batch_and_its_classes(tensorflow: ModuleType) -> None:
    from segmenter.losses import dice_share

    label, logits = made(1)
    label[label == 2] = 1  # class 2 is absent: it must not count
    p = np.exp(log_softmax(logits))
    ok = label != IGNORE
    dice = [
        2 * p[ok][:, c][label[ok] == c].sum() / (p[ok][:, c].sum() + (label[ok] == c).sum()) for c in (0, 1)
    ]
    got = dice_share(tensorflow.constant(label), tensorflow.constant(logits))
    assert float(got) == pytest.approx(1 - np.mean(dice), rel=1e-12)


def test_ignored_pixels_have_no_gradient(tensorflow: ModuleType) -> None:
    from segmenter.losses import segmentation_loss

    tf = tensorflow
    label, logits = made(2)
    loss = segmentation_loss(LossConfig(dice=1.0, label_smoothing=0.1), (1.0, 2.0, 3.0), 4)
    x = tf.Variable(logits)
    with tf.GradientTape() as tape:
        value = loss(tf.constant(label), x)
    gradient = tape.gradient(value, x).numpy()
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[label == IGNORE]).max() == 0
    assert np.abs(gradient[label != IGNORE]).min() > 0
