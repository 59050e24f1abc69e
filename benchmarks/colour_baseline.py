"""How far does colour alone go? Gradient boosting on each pixel's local colour mean and deviation.

    python -m benchmarks.colour_baseline CONFIG.yaml [--set key=value …] [--split test]

prints one JSON line: mIoU and the IoU of each class, pixel by pixel, on the scenes of one split. It sees
no shapes: what a network scores above this it has learnt from arrangement. Works with any dataset that a
recipe describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from segmenter.labels import IGNORE

WINDOWS = (1, 5, 15)
"""Sides, in pixels, of the squares whose mean and deviation a pixel is judged by; 1: its own colour."""
SAMPLES = 200_000
"""Training pixels; twice as many change the second decimal of mIoU no more."""
_STRIP = 256


def colour_features(image_HWC: NDArray[np.generic], windows: Sequence[int] = WINDOWS) -> NDArray[np.float32]:
    """Local mean and deviation of every band.

    Args:
        image_HWC: (H, W, C) of any number type.
        windows: odd sides in pixels; a window of 1 gives the colour itself and no deviation.

    Returns:
        (H, W, F) float32, F = C × (2 × windows, less one for a window of 1).
    """
    pixels = np.ascontiguousarray(image_HWC, dtype=np.float32)
    features = []
    for side in windows:
        mean = cv2.blur(pixels, (side, side)).reshape(pixels.shape)
        features.append(mean)
        if side > 1:
            square = cv2.blur(pixels**2, (side, side)).reshape(pixels.shape)
            features.append(np.sqrt(np.maximum(square - mean**2, 0)))
    return np.concatenate(features, axis=2)


@dataclass(frozen=True)
class Sample:
    """Pixels to learn from: (N, F) features and (N,) class ids."""

    features_NF: NDArray[np.float32]
    ids_N: NDArray[np.uint8]

    @classmethod
    def join(cls, samples: Iterable[Sample]) -> Sample:
        """All pixels of several scenes."""
        kept = list(samples)
        return cls(np.concatenate([s.features_NF for s in kept]), np.concatenate([s.ids_N for s in kept]))


def sample_pixels(
    image_HWC: NDArray[np.generic],
    label_HW: NDArray[np.uint8],
    count: int,
    rng: np.random.Generator,
    windows: Sequence[int] = WINDOWS,
) -> Sample:
    """About `count` labelled pixels of one scene, rare classes more often than they occur.

    A pixel is drawn with a probability inverse to the square root of its class's share: between the natural
    shares, which serve large classes, and equal ones, which serve the mean over classes.
    """
    ids = label_HW.reshape(-1)
    shares = np.bincount(ids, minlength=256).astype(np.float64)
    shares[IGNORE] = 0
    weights = np.divide(1, np.sqrt(shares), out=np.zeros_like(shares), where=shares > 0)
    expected = weights * shares
    wanted = np.divide(count * weights, expected.sum() or 1)
    chosen = np.flatnonzero(rng.random(ids.size, np.float32) < wanted[ids])
    features = colour_features(image_HWC, windows)
    return Sample(features.reshape(ids.size, -1)[chosen], ids[chosen])


def fit(sample: Sample, seed: int = 0) -> HistGradientBoostingClassifier:
    """The boosted trees."""
    trees = HistGradientBoostingClassifier(
        max_iter=100, learning_rate=0.15, max_leaf_nodes=31, early_stopping=False, random_state=seed
    )
    return trees.fit(sample.features_NF, sample.ids_N)


def confusion(
    trees: HistGradientBoostingClassifier,
    image_HWC: NDArray[np.generic],
    label_HW: NDArray[np.uint8],
    classes: int,
    windows: Sequence[int] = WINDOWS,
) -> NDArray[np.int64]:
    """(K, K) pixels of a scene by true (row) and predicted (column) class; ignored pixels are left out."""
    features = colour_features(image_HWC, windows)
    counts = np.zeros((classes, classes), np.int64)
    for top in range(0, len(label_HW), _STRIP):
        ids = label_HW[top : top + _STRIP].reshape(-1)
        valid = ids != IGNORE
        if valid.any():
            strip = features[top : top + _STRIP].reshape(ids.size, -1)[valid]
            pairs = ids[valid].astype(np.int64) * classes + trees.predict(strip)
            counts += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return counts


def iou_per_class(confusion_KK: NDArray[np.int64]) -> NDArray[np.float64]:
    """(K,) intersection over union; NaN for a class that is neither there nor predicted."""
    hits = np.diag(confusion_KK).astype(np.float64)
    union = confusion_KK.sum(0) + confusion_KK.sum(1) - hits
    return np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0)
