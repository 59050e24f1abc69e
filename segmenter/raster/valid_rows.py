"""Mask of a raster's data, for reading down a column a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window
from segmenter.grid.windows import round_up

HELD_BYTES = 1 << 26
"""Bytes of validity, one a pixel: a row of blocks of 1024 in the widest column."""
_READ_BYTES = 1 << 25
"""Bytes of pixels that are read at once to find it; or a block."""


class ValidRows:
    """Validity of a `Raster` or `ArrayRaster`, read one row of its blocks at a time.

    Requested windows are as wide as a column and a few rows high. GDAL's cache may be smaller than a column's
    row of blocks (128 MB: 65,536 pixels of four 16-bit bands have 268 MB in blocks of 512), which would then
    be decoded again for each window. So each row of blocks is read once, in pieces from left to right, and
    its mask is kept. Files in strips are decoded row by row anyway.
    """

    def __init__(self, raster: Any) -> None:
        self._raster = raster
        self._held, self._valid_HW = Window(0, 0, 0, 0), np.ones((0, 0), np.bool_)

    def of(self, window: Window) -> NDArray[np.bool_]:
        """Return an (H, W) mask of data in a window inside the raster; fast if windows go downwards.

        Raises:
            RasterError: the raster cannot be read.
        """
        raster = self._raster
        if not raster.may_have_nodata:
            return np.ones((window.height, window.width), np.bool_)
        if not raster.info.tiled:
            return self._read(window)
        if not self._held.contains(window):
            self._hold(window)
        return self._valid_HW[window.relative_to(self._held).slices()]

    def _hold(self, window: Window) -> None:
        """Read on to the next border of blocks below a window; rows in memory are not read again."""
        left = window.intersection(self._held)
        if (left.row, left.col, left.width) != (window.row, window.col, window.width):
            left = Window(window.row, window.col, 0, window.width)
        block, height = self._raster.block, self._raster.info.size.height
        rows = max(1, min(block.height, HELD_BYTES // max(1, window.width)))
        stop = min(height, round_up(window.row_stop, rows))
        whole = Window(window.row, window.col, stop - window.row, window.width)
        valid_HW = np.empty((whole.height, whole.width), np.bool_)
        if left.height:
            valid_HW[: left.height] = self._valid_HW[left.relative_to(self._held).slices()]
        row = left.row_stop
        while row < stop:
            below = min(stop, round_up(row + 1, rows))
            for piece in self._pieces(Window(row, whole.col, below - row, whole.width)):
                valid_HW[piece.relative_to(whole).slices()] = self._read(piece)
            row = below
        self._held, self._valid_HW = whole, valid_HW

    def _pieces(self, rows: Window) -> Iterator[Window]:
        """Yield pieces from left to right that end at borders of blocks."""
        info, block = self._raster.info, self._raster.block
        each = rows.height * len(self._raster.bands) * np.dtype(info.dtype).itemsize
        wide = max(1, _READ_BYTES // (each * block.width)) * block.width
        col = rows.col
        while col < rows.col_stop:
            stop = min(rows.col_stop, round_up(col + 1, block.width) + wide - block.width)
            yield Window(rows.row, col, rows.height, stop - col)
            col = stop

    def _read(self, window: Window) -> NDArray[np.bool_]:
        if self._raster.empty(window):
            return np.zeros((window.height, window.width), np.bool_)
        valid_HW: NDArray[np.bool_] = self._raster.read(window)[1]
        return valid_HW
