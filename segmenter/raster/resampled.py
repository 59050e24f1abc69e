"""A raster at another ground sampling distance, read window by window: for a model of another scale.

Its grid begins at the upper left corner of the raster (of a mosaic: of all files together) and has the
raster's own directions; rotated and south-up rasters stay as they are. A pixel of it has data where any pixel
under it has, by the rule of `raster.validity`.
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
from segmenter.grid.resampling import as_type, count_of, resampled, sources, taps
from segmenter.grid.windows import Columns
from segmenter.raster.header import Readable

_VALUES_AT_ONCE = 1 << 22
"""Pixels of the raster, or of the grid if that is finer, that are resampled at once."""
_TALL = 2048
"""Rows of a tiled raster that are read at once: rows of its blocks are decoded once, or twice at a border."""


@dataclass(frozen=True)
class ModelGrid:
    """A grid of larger or smaller pixels over those of a raster.

    Attributes:
        extent: of the raster, in its own pixels.
        rows: of the raster that one row of the grid takes; so `cols`.
    """

    extent: Window
    rows: Fraction
    cols: Fraction

    @cached_property
    def size(self) -> Size:
        """Size of the grid in pixels."""
        return Size(count_of(self.extent.height, self.rows), count_of(self.extent.width, self.cols))

    def under(self, window: Window) -> Window:
        """Return the raster's pixels that the grid's pixels in a window are made of."""
        top, bottom = sources(window.row, window.row_stop, self.extent.height, self.rows)
        left, right = sources(window.col, window.col_stop, self.extent.width, self.cols)
        return Window(top, left, bottom - top, right - left).shifted(self.extent.row, self.extent.col)

    def over(self, window: Window) -> Window:
        """Return the grid's pixels that the raster's pixels in a window take their classes from."""
        own = window.relative_to(self.extent)
        top, bottom = sources(own.row, own.row_stop, self.size.height, 1 / self.rows)
        left, right = sources(own.col, own.col_stop, self.size.width, 1 / self.cols)
        return Window(top, left, bottom - top, right - left)

    def __str__(self) -> str:
        return f"{float(self.cols):.6g}×{float(self.rows):.6g} pixels"


@dataclass(frozen=True)
class GridColumns:
    """The columns of a part of a raster as `windows.Columns`, in pixels of a grid; neighbours overlap.

    Attributes:
        own: the columns in the raster's own pixels.
    """

    own: Columns
    grid: ModelGrid

    def left(self, done_rows: int) -> Iterator[Window]:
        """Return the columns left after `rows` of the grid's rows, counted through all columns."""
        height = self.height
        index, rows = divmod(done_rows, height) if height else (0, 0)
        for number, own in enumerate(self.own.left(0)):
            if number >= index:
                whole = self.grid.over(own)
                yield Window(whole.row + rows, whole.col, whole.height - rows, whole.width)
                rows = 0

    @property
    def height(self) -> int:
        """The grid's rows under the part."""
        first = next(self.own.left(0), None)
        return 0 if first is None else self.grid.over(first).height

    def pixels(self, done_rows: int) -> int:
        """Return the number of the grid's pixels in its first rows."""
        total = 0
        for whole in self.left(0):
            total += whole.width * min(done_rows, whole.height)
            done_rows = max(0, done_rows - whole.height)
        return total


class ResampledRaster:
    """A raster on a `ModelGrid`, in its own type; windows are in pixels of the grid.

    Attributes:
        info: the raster's, with the size of the grid.
        bands: the raster's.
    """

    def __init__(self, raster: Readable, grid: ModelGrid) -> None:
        self._raster, self._grid = raster, grid
        self.info, self.bands = replace(raster.info, size=grid.size), raster.bands

    @property
    def extent(self) -> Window:
        """All of the grid."""
        return Window.of(self._grid.size)

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return pixels and validity as `Raster.read`: what lies beyond the grid is invalid.

        Raises:
            RasterError: naming file and window in the raster's own pixels.
        """
        image = np.zeros((window.height, window.width, len(self.bands)), self.info.dtype)
        valid = np.zeros((window.height, window.width), np.bool_)
        for piece in self._pieces(window.intersection(self.extent)):
            under = self._grid.under(piece)
            if self._raster.empty(under):
                continue
            into = piece.relative_to(window).slices()
            image[into], valid[into] = self._resampled(piece, under)
        return image, valid

    def _resampled(self, piece: Window, under: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        image, valid = self._raster.read(under)
        grid, own = self._grid, under.relative_to(self._grid.extent)
        rows = taps(piece.row, piece.row_stop, grid.extent.height, grid.rows).shifted(-own.row, own.height)
        cols = taps(piece.col, piece.col_stop, grid.extent.width, grid.cols).shifted(-own.col, own.width)
        values, found = resampled(image, valid, rows, cols)
        return as_type(values, self.info.dtype), found

    def _pieces(self, window: Window) -> Iterator[Window]:
        """Yield pieces of a window that take little memory, and few blocks of the file twice."""
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
        """Return True if the raster is known to hold no data under the window."""
        inside = window.intersection(self.extent)
        return not inside.size.pixels or self._raster.empty(self._grid.under(inside))

    @property
    def apart(self) -> bool:
        """See `Readable.apart`."""
        return self._raster.apart

    @property
    def partial_remark(self) -> str | None:
        """None: pieces do not come in order here; who reads the raster's own pixels can count."""
        return None
