"""Pixels and areas of strata by pixel size, and the probabilities with which pixels are drawn.

In a stratum of area A, n points are drawn in proportion to area: a pixel of area a with the probability
p = n a / A. Pixels so large that p would be 1 or more are taken for certain, and the others share the points
that are left. All points but those then stand for the same area, whatever the pixels' sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from segmenter.raster.pixel_areas import PixelAreas

_APART = math.log(1.1)
"""Logarithm of the ratio of areas within which pixels are taken for certain together."""
_CERTAIN = 1 - 1e-9


class PixelSizes:
    """Classes of pixel sizes that occur in maps, from small to large."""

    def __init__(self, areas: Sequence[PixelAreas]) -> None:
        self._smallest = min(float(each.area_RC.min()) for each in areas)
        self.unlike = max(float(each.area_RC.max()) for each in areas) / self._smallest

    def of(self, area: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the size class of pixels by their areas."""
        steps = np.log(area / self._smallest) / _APART
        classes: NDArray[np.int64] = np.maximum(np.floor(steps + 1e-6), 0).astype(np.int64)
        return classes


@dataclass
class StratumTally:
    """Pixels and area of each stratum and size class, area of each map class, and pixels in no stratum."""

    sizes: PixelSizes
    pixels_H: NDArray[np.int64]
    mapped_area_K: NDArray[np.float64]
    outside: int = 0
    _by_size: dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=dict)

    def add(
        self, stratum_HW: NDArray[np.int64], mapped_HW: NDArray[np.int64], area: NDArray[np.float64]
    ) -> None:
        """Count a window; -1 is no stratum, and then also no class.

        Args:
            area: area of each pixel, as an array that broadcasts to the window.
        """
        ids_HW, count = stratum_HW + 1, len(self.pixels_H) + 1
        size = self.sizes.of(area)
        for one in np.unique(size).tolist():
            which = np.broadcast_to(size == one, ids_HW.shape)
            ids_N = ids_HW[which]
            pixels = np.bincount(ids_N, minlength=count)[1:]
            summed = (pixels * area.flat[0]).astype(np.float64)
            if area.size > 1:
                sizes_N = np.broadcast_to(area, ids_HW.shape)[which]
                summed = np.bincount(ids_N, sizes_N, count)[1:].astype(np.float64)
            empty = np.zeros(count - 1, np.int64), np.zeros(count - 1)
            pixels_H, area_H = self._by_size.setdefault(one, empty)
            pixels_H += pixels
            area_H += summed
            self.pixels_H += pixels
        classes, count = mapped_HW.reshape(-1) + 1, len(self.mapped_area_K) + 1
        if area.size > 1:
            self.mapped_area_K += np.bincount(classes, np.broadcast_to(area, mapped_HW.shape).ravel(), count)[
                1:
            ]
        else:
            self.mapped_area_K += np.bincount(classes, minlength=count)[1:] * area.flat[0]

    @property
    def area_H(self) -> NDArray[np.float64]:
        """Area of each stratum."""
        total: NDArray[np.float64] = np.sum([area_H for _, area_H in self._by_size.values()], axis=0)
        return total

    def chances(self, points_H: NDArray[np.int64]) -> Chances:
        """Return the probabilities with which the pixels of each stratum are drawn, for so many points."""
        numbers = sorted(self._by_size)
        pixels_HS, area_HS = (
            np.stack([np.asarray(self._by_size[one][i], np.float64) for one in numbers], axis=1)
            for i in (0, 1)
        )
        mean_HS = area_HS / np.maximum(pixels_HS, 1)
        certain_HS = np.zeros(pixels_HS.shape, np.bool_)
        while True:  # at most once for each size
            left_H = points_H - (pixels_HS * certain_HS).sum(axis=1)
            area_H = (area_HS * ~certain_HS).sum(axis=1)
            rate_H = np.divide(left_H, area_H, out=np.zeros(len(area_H)), where=area_H > 0)
            more_HS = ~certain_HS & (pixels_HS > 0) & (rate_H[:, np.newaxis] * mean_HS >= _CERTAIN)
            if not more_HS.any():
                break
            certain_HS |= more_HS
        rate_HS = np.where(certain_HS, np.inf, rate_H[:, np.newaxis])
        columns = np.zeros(numbers[-1] + 1, np.intp)
        columns[numbers] = np.arange(len(numbers))
        return Chances(self.sizes, columns, rate_HS)


@dataclass(frozen=True, eq=False)
class Chances:
    """Probabilities with which pixels are drawn.

    Attributes:
        columns: column of each size class in `rate_HS`.
        rate_HS: probability of a unit of area; infinite where all pixels are drawn.
    """

    sizes: PixelSizes
    columns: NDArray[np.intp]
    rate_HS: NDArray[np.float64]

    def of(self, stratum: NDArray[np.int64], area: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities of pixels of strata and areas that broadcast; 1 for stratum -1."""
        rate = self.rate_HS[stratum, self.columns[self.sizes.of(area)]]
        chance = np.minimum(rate * area, 1.0)
        chance = np.where(chance > 0, chance, 1.0)  # of strata without points, which keep none
        found: NDArray[np.float64] = np.where(stratum >= 0, chance, 1.0)
        return found
