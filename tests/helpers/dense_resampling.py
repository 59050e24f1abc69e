"""Resampling written down as dense matrices, in float64: what the program's is compared with."""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.resampling import count_of


def dense(length: int, step: Fraction) -> NDArray[np.float64]:
    """(N, length) weights, from pieces that lie in one pixel each, and from distances."""
    count, q = count_of(length, step), step.denominator
    weights = np.zeros((count, length))
    for target in range(count):
        if step >= 1:
            for piece in range(target * step.numerator, (target + 1) * step.numerator):
                if piece // q < length:
                    weights[target, piece // q] += 1
        else:
            centre = float((target + Fraction(1, 2)) * step)
            weights[target] = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centre))
    return weights / weights.sum(axis=1, keepdims=True)


def dense_resampled(image: Any, valid: Any, rows: Fraction, cols: Fraction) -> tuple[Any, Any]:
    high, wide = dense(image.shape[0], rows), dense(image.shape[1], cols)
    known = np.where(valid[..., None], image, 0).astype(float)
    share = high @ valid.astype(float) @ wide.T
    total = np.stack([high @ band @ wide.T for band in np.moveaxis(known, 2, 0)], axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(share[..., None] > 0, total / share[..., None], 0), share > 0
