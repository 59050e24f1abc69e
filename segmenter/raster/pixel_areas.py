"""Areas on the ground of a raster's pixels, in any coordinate reference system.

The area of a pixel is that of its parallelogram of `ground_vectors`, on the CRS's ellipsoid. It is computed
at nodes and interpolated, never for each pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window
from segmenter.raster.crs_units import ground_vectors
from segmenter.raster.header import RasterInfo

_PLANE = 9e-4
"""Largest deviation of a projection's plane from the ground with which pixels keep the plane's area."""
_ALIKE = 1e-7
"""Deviation of nodes of a row that is rounding alone."""
_LEAST = 5
"""Nodes along a side of any raster that has as many pixels."""
_NODES, _APART = 129, 20_000.0
"""Most nodes along each side of a raster, and metres between them where fewer do."""
_ROWS, _ROWS_APART = 4097, 1_000.0
"""The same where areas differ by row alone. A cosine of the latitude is interpolated to 3e-4 between nodes
that are 1/128 of the Earth's circumference apart, to 3e-7 between such rows."""


@dataclass(frozen=True, eq=False)
class PixelAreas:
    """Square metres (or another unit) of pixels.

    Attributes:
        rows, columns: positions of the nodes, ascending.
        area_RC: area of a pixel at each node; of one column if areas differ by row alone.
        plane: True if these are areas on the plane of the CRS.
    """

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    area_RC: NDArray[np.float64]
    plane: bool

    def of(self, window: Window) -> NDArray[np.float64]:
        """Return the areas of a window's pixels, as (H, W), (H, 1) or (1, 1)."""
        down = np.arange(window.row, window.row_stop if len(self.rows) > 1 else window.row + 1)
        across = np.arange(window.col, window.col + (window.width if len(self.columns) > 1 else 1))
        return self._between(down[:, np.newaxis], across[np.newaxis])

    def at(self, row: NDArray[Any], col: NDArray[Any]) -> NDArray[np.float64]:
        """Return the areas of single pixels."""
        return np.broadcast_to(self._between(row, col), np.shape(row))

    def _between(self, row: NDArray[Any], col: NDArray[Any]) -> NDArray[np.float64]:
        """Interpolate bilinearly, by arrays that broadcast."""
        (top, down), (left, across) = _place(self.rows, row), _place(self.columns, col)
        low, right = np.minimum(top + 1, len(self.rows) - 1), np.minimum(left + 1, len(self.columns) - 1)
        upper = self.area_RC[top, left] * (1 - across) + self.area_RC[top, right] * across
        if len(self.rows) == 1:
            return upper
        lower = self.area_RC[low, left] * (1 - across) + self.area_RC[low, right] * across
        areas: NDArray[np.float64] = upper * (1 - down) + lower * down
        return areas


def _place(nodes: NDArray[np.float64], at: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the node before each position, and the part of the way to the next one."""
    if len(nodes) == 1:
        return np.zeros(np.shape(at), np.intp), np.zeros(np.shape(at))
    before = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(nodes) - 2)
    return before, (at - nodes[before]) / (nodes[before + 1] - nodes[before])


def counted_pixels() -> PixelAreas:
    """Return areas of 1, for maps whose areas are unknown."""
    return PixelAreas(np.zeros(1), np.zeros(1), np.ones((1, 1)), True)


def pixel_areas(info: RasterInfo) -> PixelAreas | None:
    """Return the areas of a raster's pixels in square metres, right to 1e-3; None if they are unknown.

    A projection's own plane is taken where it is right to 9e-4 in the whole raster, as in most of a UTM zone.
    """
    crs, size = info.crs, info.size
    if crs is None or info.transform is None or not (crs.is_projected or crs.is_geographic):
        return None
    few = _areas(info, _nodes(size.height, _LEAST), _nodes(size.width, _LEAST))
    if np.isnan(few).all():
        return None
    side = math.sqrt(np.nanmax(few))
    count = min(_NODES, _LEAST + int(side * max(size.height, size.width) / _APART))
    rows, columns = _nodes(size.height, count), _nodes(size.width, count)
    nodes = _fill_nodes(_areas(info, rows, columns))
    if crs.is_projected:
        plane = abs(info.transform.determinant) * float(crs.linear_units_factor[1]) ** 2
        if (np.abs(nodes / plane - 1) <= _PLANE).all():
            return PixelAreas(rows[:1], columns[:1], np.full((1, 1), plane), True)
    if (np.abs(nodes / nodes[:, :1] - 1) <= _ALIKE).all():
        rows = _nodes(size.height, min(_ROWS, _LEAST + int(side * size.height / _ROWS_APART)))
        columns = columns[len(columns) // 2 :][:1]
        nodes = _fill_nodes(_areas(info, rows, columns))
    return PixelAreas(rows, columns, nodes, False)


def _nodes(length: int, count: int) -> NDArray[np.float64]:
    return np.linspace(0, length - 1, min(length, count))


def _areas(info: RasterInfo, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (R, C) areas of the pixels at rows and columns; NaN where they are unknown."""
    move = info.transform
    assert move is not None, "the caller looked"
    down, across = np.meshgrid(rows + 0.5, columns + 0.5, indexing="ij")
    turn = np.array([[move.a, move.d], [move.b, move.e]])  # steps to the next column, and to the next row
    places = np.stack([across, down], axis=-1).reshape(-1, 2) @ turn + (move.c, move.f)
    if (vectors := ground_vectors(info.crs, places)) is None:
        return np.full(down.shape, np.nan)
    (one, other) = np.moveaxis(turn @ vectors, 1, 0)
    area: NDArray[np.float64] = np.linalg.norm(np.cross(one, other), axis=-1).reshape(down.shape)
    return np.where(area > 0, area, np.nan)


def _fill_nodes(nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill nodes beyond the CRS's domain with the nearest one of their row, then of their column."""
    for turned in (False, True):
        lines = nodes.T if turned else nodes
        for line in lines:
            known = np.flatnonzero(~np.isnan(line))
            if 0 < len(known) < len(line):
                middles = (known[:-1] + known[1:]) / 2
                line[:] = line[known[np.searchsorted(middles, np.arange(len(line)))]]
    return nodes
