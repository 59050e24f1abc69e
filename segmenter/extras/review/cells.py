"""Cells of a labelled scene: squares of pixels, with the doubt of a model about each label in them.

A pixel labelled c that the model takes for k (its most likely class) contradicts its label by p_k − p_c. The
contradictions of a cell are summed by the pair (c, k), and so are their 16th powers, in which sure ones count
alone: doubt at borders is spread over many pixels, a wrong label is contradicted surely. In `studies.review`
this found more of the spoiled labels than plain sums. All are sums of whole numbers, which do not depend on
the windows in which a scene is computed. What is kept of a scene grows with its cells, not with its pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE

FULL = 255
"""Probability 1 as a byte."""
SURE, _POWER = 10_000, 16
"""The contradiction of a pixel that is surely another class, in sums of powers; their exponent."""
_SURE_OF_BYTE = np.rint(SURE * (np.arange(FULL + 1) / FULL) ** _POWER)
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairSums:
    """Sums over the pixels of each cell, label and most likely class that occur together.

    Attributes:
        cell_P, label_P, likely_P: number of the cell (row by row), labelled and most likely class.
        pixels_P: number of pixels.
        against_P: sum of their contradictions, × 255.
        sure_P: sum of the 16th powers of their contradictions, × `SURE`.
    """

    cell_P: NDArray[np.int32]
    label_P: NDArray[np.int32]
    likely_P: NDArray[np.int32]
    pixels_P: NDArray[np.int32]
    against_P: NDArray[np.int32]
    sure_P: Numbers


@dataclass(eq=False)
class Cells:
    """Sums of a scene while its windows come.

    Attributes:
        size: of the scene in pixels.
        side: of a cell; cells at the right and lower edge are smaller.
        classes: K.
    """

    size: Size
    side: int
    classes: int
    _keys: list[Numbers] = field(default_factory=list)
    _sums: list[Numbers] = field(default_factory=list)

    @property
    def across(self) -> int:
        """Number of cells in a row."""
        return -(-self.size.width // self.side)

    def window(self, cell: int) -> Window:
        """Return the pixels of a cell."""
        row, col = (number * self.side for number in divmod(cell, self.across))
        return Window(row, col, min(self.side, self.size.height - row), min(self.side, self.size.width - col))

    def add(
        self,
        window: Window,
        label_HW: NDArray[np.uint8],
        likely_HW: NDArray[np.uint8],
        probabilities_HWK: NDArray[np.uint8],
    ) -> None:
        """Add a window's pixels; those without label or data count nowhere.

        Args:
            likely_HW: the model's classes.
            probabilities_HWK: × 255, rounded.
        """
        counted = (label_HW != IGNORE) & (likely_HW != IGNORE)
        if not counted.any():
            return
        K, label, likely = self.classes, label_HW[counted], likely_HW[counted]
        probabilities = probabilities_HWK[counted].astype(np.int64)
        pixel = np.arange(len(label))
        # Ties of rounded probabilities may make another class look more likely by nothing.
        against = np.maximum(probabilities[pixel, likely] - probabilities[pixel, label], 0)
        first, rows = _cells_along(window.row, window.height, self.side)
        left, cols = _cells_along(window.col, window.width, self.side)
        across = int(cols[-1]) + 1
        cell = (rows[:, None] * across + cols)[counted]
        key = (cell * K + label) * K + likely
        sums = partial(np.bincount, key, minlength=(int(rows[-1]) + 1) * across * K * K)
        pixels_B = sums()
        against_B, sure_B = (
            np.rint(sums(weights=each)).astype(np.int64) for each in (against, _SURE_OF_BYTE[against])
        )
        found = np.flatnonzero(pixels_B)
        cell, pair = np.divmod(found, K * K)
        row, col = np.divmod(cell, across)
        self._keys.append(((row + first) * self.across + col + left) * K * K + pair)
        self._sums.append(np.stack([pixels_B[found], against_B[found], sure_B[found]]))

    def sums(self) -> PairSums:
        """Return the sums over all windows."""
        if not self._keys:
            none = np.zeros(0, np.int32)
            return PairSums(none, none, none, none, none, np.zeros(0, np.int64))
        keys, place = np.unique(np.concatenate(self._keys), return_inverse=True)
        pixels, against, sure = (
            np.rint(np.bincount(place, weights=each)).astype(np.int64) for each in np.hstack(self._sums)
        )
        cell, pair = np.divmod(keys, self.classes**2)
        label, likely = np.divmod(pair, self.classes)
        small = [each.astype(np.int32) for each in (cell, label, likely, pixels, against)]
        return PairSums(small[0], small[1], small[2], small[3], small[4], sure_P=sure)


def _cells_along(start: int, length: int, side: int) -> tuple[int, Numbers]:
    """Return the first cell of a range of pixels, and each pixel's cell counted from it."""
    first = start // side
    return first, np.arange(start, start + length) // side - first
