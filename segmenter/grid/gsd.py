"""Ground sampling distance (gsd) of scenes in metres a pixel, and strata of similar gsd."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OCTAVES = tuple(float(f"{2.0 ** (power + 0.5):.2g}") for power in range(-8, 12))
"""Boundaries of strata in metres, each about twice the one before: …, 0.18, 0.35, 0.71, 1.4, ….

Halfway between the powers of two, so that the usual scales (0.1, 0.25, 0.5, 1, 2 m) lie in the middle.
"""
UNKNOWN = "unknown scale"
_DIGITS, _ALL_DIGITS = 3, 17
"""Digits of a bound in a title: as a rule, and those that tell any two numbers apart."""


@dataclass(frozen=True)
class SceneStrata:
    """Scenes grouped into strata of similar gsd.

    Attributes:
        number_S: (scenes,) stratum number of each scene.
        titles: unique titles of the non-empty strata, finest first; `UNKNOWN` comes last.
    """

    number_S: NDArray[np.int32]
    titles: tuple[str, ...]

    @property
    def differ(self) -> bool:
        """True if scenes belong to at least two strata of known gsd."""
        return len([title for title in self.titles if title != UNKNOWN]) > 1


def scene_strata(metres_S: Sequence[float | None], boundaries: Sequence[float] = OCTAVES) -> SceneStrata:
    """Group scenes into strata by metres a pixel (None: unknown); a boundary belongs to the upper stratum.

    Args:
        boundaries: in metres a pixel, ascending.
    """
    last = len(boundaries) + 1
    # Four digits: of a rotated raster 0.3 m is computed as 0.29999999999999993.
    metres_S = [None if metres is None else float(f"{metres:.4g}") for metres in metres_S]
    raw_S = [last if metres is None else bisect_right(boundaries, metres) for metres in metres_S]
    known_metres = [metres for metres in metres_S if metres is not None]
    numbers = sorted(set(raw_S))
    ends = (min(known_metres), *boundaries, max(known_metres)) if known_metres else ()
    titles = _titles([(ends[number], ends[number + 1]) for number in numbers if number != last])
    titles += [UNKNOWN] if last in numbers else []
    return SceneStrata(np.array([numbers.index(number) for number in raw_S], np.int32), tuple(titles))


def _titles(ranges: Sequence[tuple[float, float]]) -> list[str]:
    """Return a unique title for each range, with as few digits as possible."""
    titles: list[str] = []
    for digits in range(_DIGITS, _ALL_DIGITS + 1):
        titles = [range_text(low, high, digits) for low, high in ranges]
        if len(set(titles)) == len(titles):
            break
    return titles


def range_text(low: float, high: float, digits: int = _DIGITS) -> str:
    """Return a range as text, `0.05–0.3 m`; one number if both ends print alike."""
    ends = dict.fromkeys(f"{end:.{digits}g}" for end in (low, high))
    return f"{'–'.join(ends)} m"
