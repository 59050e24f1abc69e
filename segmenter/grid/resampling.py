"""Resampling between two pixel grids with a common corner: exact positions, no seams.

A step is the number of source pixels per target pixel along an axis, as a fraction. For coarser grids (steps
above 1) the mean over the target pixel's area is taken; for finer ones, linear interpolation between centres.
Positions are computed in whole numbers, and values are summed in the order of their source pixels. The law of
this module: **a target pixel has the same bits, whichever window it is computed in**, which a warped VRT of
GDAL does not promise.

Pixels without data are left out: the weights of the others are rescaled to sum to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ZERO = Fraction(0)
_DENOMINATOR = 1000
"""Steps are rounded to fractions of at most that: by less than 0.1 % of a pixel, so that phases recur."""


def step_of(ratio: float) -> Fraction:
    """Return the fraction nearest to the ratio of two pixel sizes."""
    if ratio < 1:
        return 1 / Fraction(1 / ratio).limit_denominator(_DENOMINATOR)
    return Fraction(ratio).limit_denominator(_DENOMINATOR)


@dataclass(frozen=True, eq=False)
class Taps:
    """Source pixels and weights of some target pixels along one axis.

    Attributes:
        index: (N, T) source pixels; any valid index where the weight is 0.
        weight: (N, T) float64; each row sums to 1.
    """

    index: NDArray[np.int64]
    weight: NDArray[np.float64]

    @property
    def span(self) -> tuple[int, int]:
        """First source pixel used, and the one after the last."""
        used = self.index[self.weight > 0]
        return int(used.min()), int(used.max()) + 1

    def shifted(self, by: int, length: int) -> Taps:
        """Return the taps with `by` added to each index, for a part of `length` pixels that holds `span`."""
        return Taps(np.clip(self.index + by, 0, length - 1), self.weight)


def count_of(length: int, step: Fraction) -> int:
    """Return the number of target pixels that cover `length` source pixels; the last may reach beyond."""
    return -(-length * step.denominator // step.numerator)


def taps(first: int, stop: int, length: int, step: Fraction, start: Fraction = _ZERO) -> Taps:
    """Return the taps of target pixels first … stop − 1, over a source of `length` pixels.

    Args:
        start: source pixel at which target pixel 0 begins. Beyond the source its last pixel is taken.
    """
    q, target = math.lcm(step.denominator, start.denominator), np.arange(first, stop, dtype=np.int64)[:, None]
    p, begin = int(step * q), int(start * q) + target * int(step * q)  # in parts of 1/q of a source pixel
    if step >= 1:
        index = begin // q + np.arange(-(-p // q) + 1)
        weight = np.minimum((index + 1) * q, begin + p) - np.maximum(index * q, begin)
    else:  # of centres, in parts of 1/2q
        centre = 2 * begin + p - q
        index = centre // (2 * q) + np.arange(2)
        weight = 2 * q - np.abs(centre - 2 * q * index)
    weight = np.where((index >= 0) & (index < length), np.maximum(weight, 0), 0)
    weight[~weight.any(axis=1), 0] = 1
    return Taps(np.clip(index, 0, length - 1), weight / weight.sum(axis=1, keepdims=True))


def sources(first: int, stop: int, length: int, step: Fraction) -> tuple[int, int]:
    """Return the source pixels of target pixels first … stop − 1: the first, and the one after the last."""
    low = taps(first, first + 1, length, step).span
    high = taps(stop - 1, stop, length, step).span
    return low[0], high[1]


def resample(
    image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_], rows: Taps, cols: Taps
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return values at the target pixels, as floats, and a mask of valid ones.

    Args:
        image_HWC: image, 0 where invalid; rows and columns have the numbers that the taps use.
        valid_HW: True where the image has data.

    Returns:
        (N, M, C) float32, or float64 for types of more than 24 significant bits; 0 if no source pixel has
        data.
    """
    kind = np.result_type(np.float32, image_HWC.dtype) if image_HWC.dtype.itemsize > 2 else np.float32
    total = _along_cols(_along_rows(image_HWC, rows, kind), cols)
    if valid_HW.all():
        return total, np.ones(total.shape[:2], np.bool_)
    share = _along_cols(_along_rows(valid_HW[..., None], rows, np.float64), cols)
    lacking = _along_cols(_along_rows(~valid_HW[..., None], rows, np.float64), cols)
    present = share > 0
    # Where all have data nothing is divided, so that the bits are those of a window that has no hole.
    share = np.where(present & (lacking > 0), share, 1).astype(kind)
    return np.where(present, total / share, 0).astype(kind, copy=False), present[..., 0]


def _along_rows(image_HWC: NDArray[Any], taps: Taps, kind: Any) -> NDArray[Any]:
    # Tap by tap: the order of a pixel's sum does not depend on what is computed beside it.
    image_HWC = np.ascontiguousarray(image_HWC, kind)
    weight_NT = taps.weight.astype(kind)
    total = np.zeros((len(taps.index), *image_HWC.shape[1:]), kind)
    part = np.empty(image_HWC.shape[1:], kind)
    for sums, index, weights in zip(total, taps.index, weight_NT, strict=True):
        for source, weight in zip(index, weights, strict=True):
            # From 0 on, so that no sum is −0: beyond it, pixels of weight 0 would decide of a zero's sign.
            sums += np.multiply(image_HWC[source], weight, out=part)
    return total


def _along_cols(image_HWC: NDArray[Any], taps: Taps) -> NDArray[Any]:
    # Row by row, which the cache holds, with a weight for each channel: a third of the time of all at once.
    count, bands = len(taps.index), image_HWC.shape[2]
    weight_TN = np.ascontiguousarray(np.repeat(taps.weight.astype(image_HWC.dtype), bands, axis=0).T)
    total = np.empty((len(image_HWC), count, bands), image_HWC.dtype)
    part = np.empty((count, bands), image_HWC.dtype)
    for row, sums in zip(image_HWC, total, strict=True):
        for tap, weight_N in enumerate(weight_TN):
            taken = part if tap else sums
            row.take(taps.index[:, tap], axis=0, out=taken, mode="clip")
            taken.reshape(-1)[...] *= weight_N
            if tap:
                sums += part
    return total


def as_type(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return values converted to a type; rounded if it is an integer type."""
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        return values.astype(kind, copy=False)
    limits = np.iinfo(kind)
    most = values.dtype.type(limits.max)
    if int(most) > limits.max:  # rounded up to a float that does not fit
        most = np.nextafter(most, values.dtype.type(0))
    return np.clip(np.rint(values), limits.min, most).astype(kind)
