"""Fill values that no file declares: one extreme value in all bands at once, far from all measurements."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST, _LEAST = 1 << 16, 0.01
"""Pixels of a piece that are looked at, and their least share with a fill value."""
_FAR, _GAP = 10.0, 5.0
"""Standard deviations of the measurements between their mean and a fill value, and between the nearest one
and it."""


class Fill:
    """Fill values of an image, from its pieces.

    A fill value is the least or the greatest value, equal in all bands of many pixels, tens of deviations off
    the others; or 0 above measurements that are all negative, as of backscatter in decibels. Brightness that
    ends at 0 or 255 is none.
    """

    def __init__(self) -> None:
        self._seen, self._far, self._whole = 0, Counter[float](), Counter[float]()

    def look(self, image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]) -> None:
        """Look at a piece of an image and its mask of data."""
        step = max(1, int(np.sqrt(valid_HW.size / _MOST)))
        valid = valid_HW[::step, ::step]
        image = np.moveaxis(image_HWC[::step, ::step], 2, 0)
        self._seen += valid.size
        if not valid.any():
            return
        pixels_CN = image.reshape(len(image), -1) if valid.all() else image[:, valid]
        for value in {pixels_CN.min(), pixels_CN.max()}:
            held_N = np.logical_and.reduce([band_N == value for band_N in pixels_CN])
            count = int(np.count_nonzero(held_N))
            if count == len(held_N):
                self._whole[float(value)] += count
            elif count >= _LEAST * len(held_N) and _is_far(pixels_CN[:, ~held_N], float(value)):
                self._far[float(value)] += count

    def values(self) -> dict[float, float]:
        """Return the share of the pixels of each fill value."""
        return {value: (n + self._whole[value]) / self._seen for value, n in sorted(self._far.items())}


def _is_far(others_CN: NDArray[Any], value: float) -> bool:
    """Return whether a value lies far from all others, which vary."""
    others = others_CN.astype(np.float64)
    deviation = float(others.std())
    if value == 0 and others_CN.dtype.kind == "f":
        return bool(others.max() < 0 < deviation)
    nearest = float(np.abs(others - value).min())
    return deviation > 0 and abs(others.mean() - value) >= _FAR * deviation and nearest >= _GAP * deviation
