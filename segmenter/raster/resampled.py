"""Windows of a raster at another ground sampling distance, for a model trained at another scale; its mask.

The grid begins at the upper left corner of the raster (or of the whole mosaic) and keeps the raster's axes;
rotated and south-up rasters stay so. A grid pixel has data if any raster pixel under it has, by the rule of
`raster.validity`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.grid.resampling import as_type, count_of, resample, sources, taps
from segmenter.grid.windows import Columns, round_up
from segmenter.raster.header import Readable

_VALUES_AT_ONCE = 1 << 22
"""Pixels of the raster, or of the grid if that is finer, that are resampled at once."""
_TALL = 2048
"""Rows of a tiled raster that are read at once: rows of its blocks are decoded once, or twice at a border."""


@dataclass(frozen=True)
class ModelGrid:
    """Grid of larger or smaller pixels over those of a raster.

    Attributes:
        extent: extent of the raster, in its own pixels.
        rows: raster rows per grid row; likewise `cols`.
    """

    extent: Window
    rows: Fraction
    cols: Fraction

    @cached_property
    def size(self) -> Size:
        """Size of the grid in pixels."""
        return Size(count_of(self.extent.height, self.rows), count_of(self.extent.width, self.cols))

    def under(self, window: Window) -> Window:
        """Return the raster pixels from which the grid pixels of a window are computed."""
        top, bottom = sources(window.row, window.row_stop, self.extent.height, self.rows)
        left, right = sources(window.col, window.col_stop, self.extent.width, self.cols)
        return Window(top, left, bottom - top, right - left).shifted(self.extent.row, self.extent.col)

    def over(self, window: Window) -> Window:
        """Return the grid pixels that give the raster pixels of a window their classes."""
        own = window.relative_to(self.extent)
        top, bottom = sources(own.row, own.row_stop, self.size.height, 1 / self.rows)
        left, right = sources(own.col, own.col_stop, self.size.width, 1 / self.cols)
        return Window(top, left, bottom - top, right - left)

    def __str__(self) -> str:
        return f"{float(self.cols):.6g}×{float(self.rows):.6g} pixels"


@dataclass(frozen=True)
class GridColumns:
    """Columns of a part of a raster, as in `windows.Columns`, in pixels of a grid; neighbours overlap.

    Attributes:
        own: the columns in the raster's own pixels.
    """

    own: Columns
    grid: ModelGrid

    def remaining(self, done_rows: int) -> Iterator[Window]:
        """Yield the columns left after the grid's first `done_rows` rows, counted through all columns."""
        height = self.height
        index, rows = divmod(done_rows, height) if height else (0, 0)
        for number, own in enumerate(self.own.remaining(0)):
            if number >= index:
                whole = self.grid.over(own)
                yield Window(whole.row + rows, whole.col, whole.height - rows, whole.width)
                rows = 0

    @property
    def height(self) -> int:
        """Number of grid rows under the part."""
        first = next(self.own.remaining(0), None)
        return 0 if first is None else self.grid.over(first).height

    def pixels(self, done_rows: int) -> int:
        """Return the number of grid pixels in the first `done_rows` rows."""
        total = 0
        for whole in self.remaining(0):
            total += whole.width * min(done_rows, whole.height)
            done_rows = max(0, done_rows - whole.height)
        return total


class ResampledRaster:
    """A raster on a `ModelGrid`, in its own pixel type; windows are in grid pixels.

    Attributes:
        info: header of the raster, with the grid's size.
        bands: bands of the raster.
    """

    def __init__(self, raster: Readable, grid: ModelGrid) -> None:
        self._raster, self._grid = raster, grid
        self.info, self.bands = replace(raster.info, size=grid.size), raster.bands

    @property
    def extent(self) -> Window:
        """Window of the whole grid."""
        return Window.of(self._grid.size)

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return pixels and validity as `Raster.read` does; pixels outside the grid are invalid."""
        image = np.zeros((window.height, window.width, len(self.bands)), self.info.dtype)
        valid = np.zeros((window.height, window.width), np.bool_)
        for piece in self._pieces(window.intersection(self.extent)):
            under = self._grid.under(piece)
            if self._raster.empty(under):
                continue
            into = piece.relative_to(window).slices()
            image[into], valid[into] = self._resample(piece, under)
        return image, valid

    def _resample(self, piece: Window, under: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        image, valid = self._raster.read(under)
        grid, own = self._grid, under.relative_to(self._grid.extent)
        rows = taps(piece.row, piece.row_stop, grid.extent.height, grid.rows).shifted(-own.row, own.height)
        cols = taps(piece.col, piece.col_stop, grid.extent.width, grid.cols).shifted(-own.col, own.width)
        values, has_data = resample(image, valid, rows, cols)
        return as_type(values, self.info.dtype), has_data

    def _pieces(self, window: Window) -> Iterator[Window]:
        """Yield pieces of a window that need little memory and decode few blocks of the file twice."""
        if not window.size.pixels:
            return
        high, wide = max(self._grid.rows, Fraction(1)), max(self._grid.cols, Fraction(1))
        most = max(1, int(_VALUES_AT_ONCE // (len(self.bands) * high * wide)))  # of the grid's pixels
        if self.info.tiled:
            rows = max(1, min(window.height, int(_TALL // high), most))
            cols = max(1, min(window.width, most // rows))
        else:
            cols = max(1, min(window.width, most))
            rows = max(1, min(window.height, most // cols))
        for top in range(window.row, window.row_stop, rows):
            for left in range(window.col, window.col_stop, cols):
                yield Window(top, left, rows, cols).intersection(window)

    def empty(self, window: Window) -> bool:
        """Return True if the raster is known to have no data under the window."""
        inside = window.intersection(self.extent)
        return not inside.size.pixels or self._raster.empty(self._grid.under(inside))

    @property
    def apart(self) -> bool:
        """See `Readable.apart`."""
        return self._raster.apart

    @property
    def partial_remark(self) -> str | None:
        """See `Raster.partial_remark`."""
        return self._raster.partial_remark


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
        """Return an (H, W) mask of data in a window inside the raster; fast if windows go downwards."""
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
