"""Allocation of points to strata, and the number of points for a wished standard error.

With W_h the stratum's share of the area, U_h the user's accuracy expected in it and S_h = √(U_h (1 - U_h)),
n_h points give overall accuracy the variance sum_h W_h² S_h² (1 / n_h - 1 / N_h) (Cochran 1977, section 5.9).
Neyman's allocation, n_h in proportion to W_h S_h, needs the fewest: equation 13 of Olofsson et al. 2014.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, DatasetError, counted
from segmenter.extras.accuracy.request import Allocation

POINTS, FLOOR = 600, 50
"""Defaults. Olofsson et al. 2014 advise 50 to 100 points of each rare class."""
_LEAST = 2
"""Points of a stratum without which there is no variance."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Strata to draw from.

    Attributes:
        weight_H: area of each stratum, in any unit.
        pixels_H: number of its pixels.
        spread_H: S_h of this module's docstring.
        allocation: way of allocation.
        floor: least points of a stratum; None: `FLOOR`, or half of an equal part if that is fewer.
    """

    weight_H: NDArray[np.float64]
    pixels_H: NDArray[np.int64]
    spread_H: NDArray[np.float64]
    allocation: Allocation
    floor: int | None = None

    @property
    def _part_H(self) -> NDArray[np.float64]:
        return self.weight_H / self.weight_H.sum()

    def points(self, total: int) -> NDArray[np.int64]:
        """Return the (H,) points of each stratum.

        Raises:
            DatasetError: there are fewer pixels, or too few points for the strata.
        """
        self._check(total)
        exact_H = self._exact(total)
        points_H = np.floor(exact_H + 1e-9).astype(np.int64)
        rest = round(float(exact_H.sum())) - int(points_H.sum())
        order = np.lexsort((np.arange(len(exact_H)), points_H - exact_H))  # the largest remainders first
        points_H[order[:rest]] += 1
        return points_H

    def _check(self, total: int) -> None:
        if total > (pixels := int(self.pixels_H.sum())):
            raise DatasetError(
                "--points", expected=f"at most the {counted(pixels, 'pixel')} with data", got=total
            )
        check_strata(self.pixels_H, total, self.floor)

    def _exact(self, total: float) -> NDArray[np.float64]:
        """Return points that need not be whole: in proportion, but between floor and pixels."""
        share_H = {
            "proportional": self._part_H,
            "equal": np.ones_like(self._part_H),
            "neyman": self._part_H * self.spread_H,
        }[self.allocation]
        share_H = np.maximum(share_H, 1e-12 * self._part_H)  # also of a stratum that is expected to be right
        floor = min(FLOOR, total / (2 * len(share_H))) if self.floor is None else self.floor
        least_H = np.minimum(max(floor, _LEAST), self.pixels_H)

        def at(scale: float) -> NDArray[np.float64]:
            clipped: NDArray[np.float64] = np.clip(scale * share_H, least_H, self.pixels_H)
            return clipped

        low, high = 0.0, float((self.pixels_H / share_H).max())
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle).sum() < total else (low, middle)
        return at(high)

    def error(self, points_H: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return the expected standard error of overall accuracy."""
        variance_H = (self._part_H * self.spread_H) ** 2 * (1 / points_H - 1 / self.pixels_H)
        return math.sqrt(max(0.0, float(variance_H.sum())))

    def size_for(self, error: float) -> int:
        """Return the least number of points that give overall accuracy a standard error."""
        low, high = int(np.minimum(self.pixels_H, self.floor or _LEAST).sum()) - 1, int(self.pixels_H.sum())
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.error(self._exact(middle)) <= error else (middle, high)
        return high


def expected_accuracies(text: str, names: Sequence[str]) -> list[float]:
    """Return the expected user's accuracy of each stratum from `0.8` or `building=0.7,road=0.6`.

    Strata that are not named have 0.8.

    Raises:
        ConfigError: a stratum is unknown, or a share is not between 0 and 1.
    """
    found = dict.fromkeys(names, 0.8)
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not 0 <= share <= 1 or (equals and name.strip() not in found):
            raise ConfigError(
                f"--expect: expected shares from 0 to 1, as 0.8 or building=0.7,road=0.6, of the strata "
                f"{', '.join(names[:20])}; got {part!r}"
            )
        found |= {name.strip(): share} if equals else dict.fromkeys(names, share)
    return list(found.values())


def check_strata(pixels_H: NDArray[np.int64], total: int, floor: int | None) -> None:
    """Refuse a number of points that is too small for the strata that have pixels.

    Raises:
        DatasetError: there are not enough.
    """
    floor = floor or _LEAST
    least, strata = int(np.minimum(pixels_H, floor).sum()), int(np.count_nonzero(pixels_H))
    if total < least:
        raise DatasetError(
            "--points",
            expected=f"at least {least}, {floor} for each of {counted(strata, 'stratum', 'strata')}",
            got=total,
            remedy="take more points or fewer strata",
        )


def most_points(points: int | None, error: float | None, floor: int | None) -> int:
    """Return the most points that a stratum can get, before anything is known of the strata."""
    if error is None:
        return points or POINTS
    return math.ceil(0.25 / error**2) + (FLOOR if floor is None else floor) + 1
