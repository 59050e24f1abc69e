"""Cells of a labelled scene: squares of pixels, with what a model holds against the labels in them.

A pixel labelled c that the model takes for k (its most likely class) contradicts its label by p_k − p_c, in
one of five levels. The pixels of a cell are counted by (c, k, level); those with k = c contradict nothing and
are counted for the scene alone, where two tables tell what is usual: how often pixels of a label show each k
and level, and how often pixels of other labels would if they were labelled c. All are counts, which do not
depend on the windows in which a scene is computed. What is kept of a scene grows with its contradicted cells,
and by 4 bytes a cell.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE

LEVELS = 5
_LEVEL_OF_BYTE = np.searchsorted([26, 128, 230, 250], np.arange(256), side="right").astype(np.uint8)
"""Level of a contradiction × 255; its borders are 0.1, 0.5, 0.9, 0.98."""
_SAMPLED = 5
"""Every fifth row and column is taken for the other labels that pixels might have."""
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Counts:
    """Pixels of a scene.

    Attributes:
        cell_P, label_P, likely_P, level_P, pixels_P: number of the cell (row by row), label, most likely
            class, another one, level of the contradiction, and how many pixels have them.
        labelled_B: of each cell.
        usual_KKL: by label, most likely class and level.
        otherwise_KKL: the same of a sample of the pixels, each counted for all labels that it does not have.
    """

    cell_P: NDArray[np.int32]
    label_P: NDArray[np.uint8]
    likely_P: NDArray[np.uint8]
    level_P: NDArray[np.uint8]
    pixels_P: NDArray[np.int32]
    labelled_B: NDArray[np.int32]
    usual_KKL: Numbers
    otherwise_KKL: Numbers


@dataclass(eq=False)
class Cells:
    """Counts of a scene while its windows come.

    Attributes:
        size: of the scene in pixels.
        side: of a cell; cells at the right and lower edge are smaller.
        classes: K.
    """

    size: Size
    side: int
    classes: int
    _keys: list[Numbers] = field(default_factory=list)
    _pixels: list[Numbers] = field(default_factory=list)

    def __post_init__(self) -> None:
        table = (self.classes, self.classes, LEVELS)
        self._labelled = np.zeros(self.down * self.across, np.int32)
        self._usual, self._otherwise = np.zeros(table, np.int64), np.zeros(table, np.int64)

    @property
    def across(self) -> int:
        """Number of cells in a row."""
        return -(-self.size.width // self.side)

    @property
    def down(self) -> int:
        """Number of rows of cells."""
        return -(-self.size.height // self.side)

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
        row_HW, col_HW = np.ogrid[window.row : window.row_stop, window.col : window.col_stop]
        counted = (label_HW != IGNORE) & (likely_HW != IGNORE)
        cell = (row_HW // self.side * self.across + col_HW // self.side)[counted]
        if not len(cell):
            return
        first, pixels = int(cell.min()), np.bincount(cell - cell.min())
        self._labelled[first : first + len(pixels)] += pixels.astype(np.int32)
        label, likely = label_HW[counted].astype(np.int64), likely_HW[counted].astype(np.int64)
        level_NK = _levels(probabilities_HWK[counted], likely)
        key = self._key(label, likely, np.take_along_axis(level_NK, label[:, None], axis=1)[:, 0])
        self._usual += np.bincount(key, minlength=self._usual.size).reshape(self._usual.shape)
        sampled = ((row_HW % _SAMPLED == 0) & (col_HW % _SAMPLED == 0))[counted]
        label_S, likely_S, level_SK = label[sampled], likely[sampled], level_NK[sampled]
        for c in range(self.classes):
            other = label_S != c
            keys = self._key(0, likely_S[other], level_SK[other, c])
            self._otherwise[c] += np.bincount(keys, minlength=self._otherwise[c].size).reshape(-1, LEVELS)
        against = likely != label
        found, pixels = np.unique(cell[against] * self._usual.size + key[against], return_counts=True)
        self._keys.append(found)
        self._pixels.append(pixels)

    def _key(self, label: Numbers | int, likely: Numbers, level: NDArray[np.uint8]) -> Numbers:
        return (label * self.classes + likely) * LEVELS + level

    def counts(self) -> Counts:
        """Return the counts over all windows."""
        none = np.zeros(0, np.int64)
        keys, place = np.unique(np.concatenate([none, *self._keys]), return_inverse=True)
        pixels = np.bincount(place, np.concatenate([none, *self._pixels]), len(keys)).astype(np.int32)
        key, level = np.divmod(keys, LEVELS)
        key, likely = np.divmod(key, self.classes)
        cell, label = np.divmod(key, self.classes)
        label, likely, level = (each.astype(np.uint8) for each in (label, likely, level))
        contradicted = (cell.astype(np.int32), label, likely, level, pixels)
        return Counts(*contradicted, self._labelled, self._usual, self._otherwise)


def _levels(probabilities_NK: NDArray[np.uint8], likely_N: Numbers) -> NDArray[np.uint8]:
    """Return the level at which the likely class contradicts each class."""
    largest_N1 = np.take_along_axis(probabilities_NK, likely_N[:, None], axis=1)
    # Ties of rounded probabilities may make another class look more likely by nothing.
    return _LEVEL_OF_BYTE[np.maximum(largest_N1, probabilities_NK) - probabilities_NK]
