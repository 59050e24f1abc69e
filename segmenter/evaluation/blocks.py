"""Counts of a scene by square blocks of its pixels, of which `bootstrap` makes an interval.

The blocks follow from the scene's size and the number of classes alone: windows, workers, devices and
resuming change nothing. Their side grows with the scene, so that memory does not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window

_FINEST = 128
"""Pixels of the smallest side: a window of 512 px, cut into 16 pieces, is counted in three times the time."""
_MOST, _MOST_BYTES = 256, 1 << 23
"""Bounds of a scene's blocks, and of their memory: of more than 63 classes, blocks are fewer."""


class Blocks:
    """Blocks of a part of a raster, from its top left corner; the last ones may be smaller.

    Attributes:
        side: pixels of a side: 128 times the least power of two that keeps the bounds.
        counts: (R, C, K, K + 1) pixels of each block, as `ConfusionMatrix.counts`.
    """

    def __init__(self, part: Window, classes: int) -> None:
        self.part, self.side = part, _FINEST
        most = max(1, min(_MOST, _MOST_BYTES // (8 * classes * (classes + 1))))
        while np.prod(shape := [-(-extent // self.side) for extent in (part.height, part.width)]) > most:
            self.side *= 2
        self.counts = np.zeros((*shape, classes, classes + 1), np.int64)

    def pieces(self, window: Window) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
        """Yield the place of each block that a window of the raster meets, and its pixels in the window."""
        for row, rows in _cuts(window.row - self.part.row, window.height, self.side):
            for col, cols in _cuts(window.col - self.part.col, window.width, self.side):
                yield (row, col), (rows, cols)

    def merged(self, side: int) -> NDArray[np.int64]:
        """Return the (N, K, K + 1) counts of blocks of a larger side, `side` being that times 2, 4, …"""
        counts, step = self.counts, side // self.side
        for axis in (0, 1):
            counts = np.add.reduceat(counts, np.arange(0, counts.shape[axis], step), axis=axis)
        return counts.reshape(-1, *counts.shape[2:])


def _cuts(first: int, length: int, side: int) -> Iterator[tuple[int, slice]]:
    """Yield the blocks' numbers along an axis, each with its share of a window's pixels."""
    for number in range(first // side, -(-(first + length) // side)):
        start, stop = number * side - first, (number + 1) * side - first
        yield number, slice(max(0, start), min(length, stop))
