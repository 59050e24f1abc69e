"""Pixels that outlines of polygons run through: exact, and the same in any window.

GDAL's own `ALL_TOUCHED` cuts edges at the border of what it burns, and then misses pixels, or takes others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from segmenter.grid.geometry import Window

_Points = NDArray[np.float64]


def outlined(shape_P: NDArray[Any], window: Window) -> NDArray[np.bool_]:
    """(H, W) pixels of a window through whose inside an edge runs; not those that it only borders on."""
    found_HW = np.zeros((window.height, window.width), np.bool_)
    first_E, last_E = _edges(shape_P, window)
    edge_S, along_S = _cuts(first_E, last_E)
    within = edge_S[1:] == edge_S[:-1]
    middle = ((along_S[1:] + along_S[:-1]) / 2)[within]
    edge = edge_S[1:][within]
    xy = first_E[edge] + (last_E[edge] - first_E[edge]) * middle[:, None]
    cell = np.floor(xy).astype(np.int64)
    inside = (cell != xy).all(axis=1)  # else it runs along the border between two pixels
    col, row = (cell[inside] - (window.col, window.row)).T
    here = (row >= 0) & (row < window.height) & (col >= 0) & (col < window.width)
    found_HW[row[here], col[here]] = True
    return found_HW


def _edges(shape_P: NDArray[Any], window: Window) -> tuple[_Points, _Points]:
    """First and last points of the edges that may run through a window, as (column, row)."""
    rings = shapely.get_rings(shape_P)
    xy, ring_V = shapely.get_coordinates(rings, return_index=True)
    joined = ring_V[1:] == ring_V[:-1]
    first, last = xy[:-1][joined], xy[1:][joined]
    low, high = np.minimum(first, last), np.maximum(first, last)
    corner, opposite = (window.col, window.row), (window.col_stop, window.row_stop)
    near = ((high >= corner) & (low <= opposite)).all(axis=1)
    return first[near], last[near]


def _cuts(first_E: _Points, last_E: _Points) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Where edges cross the lines between pixels: the edge, and the way along it (0 … 1), in that order."""
    count = len(first_E)
    edges, ways = [np.arange(count), np.arange(count)], [np.zeros(count), np.ones(count)]
    for axis in (0, 1):
        start, step = first_E[:, axis], last_E[:, axis] - first_E[:, axis]
        lowest = np.floor(np.minimum(start, start + step)).astype(np.int64) + 1
        lines = np.maximum(0, np.ceil(np.maximum(start, start + step)).astype(np.int64) - lowest)
        edge = np.repeat(np.arange(count), lines)
        number = np.arange(len(edge)) - np.repeat(np.cumsum(lines) - lines, lines)
        edges.append(edge)
        ways.append((lowest[edge] + number - start[edge]) / step[edge])
    edge_S, along_S = np.concatenate(edges), np.concatenate(ways)
    order = np.lexsort((along_S, edge_S))
    return edge_S[order], along_S[order]
