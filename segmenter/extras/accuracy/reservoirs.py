"""Simple random samples of the pixels of each stratum, drawn while windows of rasters pass by.

Each pixel gets a random number, and each stratum keeps the pixels of its smallest. These are a simple random
sample without replacement of any size up to what is kept, so that sizes may be settled when all pixels have
been counted. Memory: a window, and the kept pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window

_SLACK = 1 << 16
"""Pixels that may wait until surplus ones are dropped."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """Pixels of rasters: number of the raster, position, stratum, class, and random number."""

    raster: NDArray[np.int32]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    stratum: NDArray[np.int64]
    mapped: NDArray[np.int64]
    key: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.key)

    def of(self, which: Any) -> Pixels:
        """Return a selection."""
        return Pixels(*(getattr(self, each.name)[which] for each in fields(self)))

    @staticmethod
    def together(parts: list[Pixels]) -> Pixels:
        """Return all pixels of several selections."""
        names = [each.name for each in fields(Pixels)]
        return Pixels(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Reservoirs:
    """Kept pixels of all strata.

    Args:
        strata: number of strata.
        most: pixels to keep of each.
        seed: of all random numbers, with the position of the window.
    """

    def __init__(self, strata: int, most: int, seed: int) -> None:
        self._most, self._seed = most, seed
        self._below = np.full(strata + 1, np.inf)
        self._below[-1] = -1.0  # of stratum -1: pixels that are left out
        self._parts: list[Pixels] = []
        self._waiting = self._kept = 0

    def add(
        self, raster: int, window: Window, stratum_HW: NDArray[np.int64], mapped_HW: NDArray[np.int64]
    ) -> None:
        """Take a window of a raster; stratum -1 leaves a pixel out."""
        spawned = np.random.SeedSequence(self._seed, spawn_key=(raster, window.row, window.col))
        key_N = np.random.default_rng(spawned).random(stratum_HW.size)
        stratum_N = stratum_HW.reshape(-1)
        chosen = np.flatnonzero(key_N < self._below[stratum_N])
        if not len(chosen):
            return
        row, col = np.divmod(chosen, window.width)
        found = Pixels(
            np.full(len(chosen), raster, np.int32),
            row + window.row,
            col + window.col,
            stratum_N[chosen],
            mapped_HW.reshape(-1)[chosen],
            key_N[chosen],
        )
        self._parts.append(found)
        self._waiting += len(found)
        if self._waiting > self._kept + _SLACK:
            self._drop()

    def _drop(self) -> None:
        """Keep the pixels of the smallest numbers of each stratum."""
        pixels, rank_N = _ranked(Pixels.together(self._parts))
        last = rank_N == self._most - 1
        self._below[pixels.stratum[last]] = pixels.key[last]
        self._parts = [pixels.of(rank_N < self._most)]
        self._waiting = self._kept = len(self._parts[0])

    def drawn(self, points_H: NDArray[np.int64]) -> Pixels:
        """Return the sample: of each stratum as many pixels as asked for, at most those kept."""
        pixels, rank_N = _ranked(Pixels.together(self._parts))
        return pixels.of(rank_N < points_H[pixels.stratum])


def _ranked(pixels: Pixels) -> tuple[Pixels, NDArray[np.intp]]:
    """Return pixels ordered by stratum and number, and the rank of each in its stratum, from 0."""
    pixels = pixels.of(np.lexsort((pixels.col, pixels.row, pixels.raster, pixels.key, pixels.stratum)))
    starts = np.flatnonzero(np.diff(pixels.stratum, prepend=-1))
    rank_N = np.arange(len(pixels)) - np.repeat(starts, np.diff([*starts, len(pixels)]))
    return pixels, rank_N
