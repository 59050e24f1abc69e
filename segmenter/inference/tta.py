"""Test-time augmentation: predictions averaged over the symmetries of the square."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Transpose = Callable[[Any, list[int]], Any]


@dataclass(frozen=True)
class Symmetry:
    """One of the eight: rows and columns exchanged, then their orders reversed.

    A window on the grid of a model's stride stays on it: windows and the padded raster have sides that are
    multiples of the stride, so that the mirrored raster's grid is the mirrored grid.
    """

    transpose: bool = False
    reverse_rows: bool = False
    reverse_cols: bool = False

    def apply(self, array_BHWC: Any, transpose: Transpose) -> Any:
        """To NumPy arrays with `np.transpose`, to tensors with `tf.transpose`."""
        if self.transpose:
            array_BHWC = transpose(array_BHWC, [0, 2, 1, 3])
        return self._reversed(array_BHWC)

    def undo(self, array_BHWC: Any, transpose: Transpose) -> Any:
        """The inverse of `apply`."""
        array_BHWC = self._reversed(array_BHWC)
        return transpose(array_BHWC, [0, 2, 1, 3]) if self.transpose else array_BHWC

    def _reversed(self, array_BHWC: Any) -> Any:
        if self.reverse_rows:
            array_BHWC = array_BHWC[:, ::-1]
        return array_BHWC[:, :, ::-1] if self.reverse_cols else array_BHWC


_FLIPS = tuple(Symmetry(False, rows, cols) for rows in (False, True) for cols in (False, True))
SYMMETRIES: dict[str, tuple[Symmetry, ...]] = {
    "none": _FLIPS[:1],
    "flips": _FLIPS,
    "all": (*_FLIPS, *(Symmetry(True, s.reverse_rows, s.reverse_cols) for s in _FLIPS)),
}
