"""Areas on the ground: of polygons, and of a map's pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from segmenter.raster import RasterInfo
from segmenter.raster.polygons import lengths_stretch, on_equal_area


def square_metres(shape_P: NDArray[Any], info: RasterInfo) -> NDArray[np.float64] | None:
    """Area of each polygon, in coordinates of a map's CRS; None where they are not of the ground.

    In degrees and in Mercator's projections it is that on an equal-area projection, elsewhere the plane one.
    """
    crs = info.crs
    if crs is None or info.transform is None:
        return None
    if lengths_stretch(crs):
        equal = shapely.transform(shape_P, lambda xy: on_equal_area(crs, xy))
        areas: NDArray[np.float64] = shapely.area(equal)
        return None if np.isnan(areas).any() else areas
    if not crs.is_projected:
        return None
    return np.asarray(shapely.area(shape_P)) * float(crs.linear_units_factor[1]) ** 2


def on_the_ground(shape_P: NDArray[Any], info: RasterInfo) -> NDArray[Any]:
    """Polygons in columns and rows as such in the map's CRS; as they are where it has no georeference."""
    move = info.transform
    if move is None:
        return shape_P
    turn = np.array([[move.a, move.d], [move.b, move.e]])
    moved: NDArray[Any] = shapely.transform(shape_P, lambda xy: xy @ turn + (move.c, move.f))
    return moved


def pixel_square_metres(info: RasterInfo) -> NDArray[np.float64] | None:
    """Area of a pixel in each row of a map, at its middle column; None where it cannot be told."""
    rows, middle = np.arange(info.size.height), info.size.width // 2
    if info.crs is not None and info.crs.is_projected and not lengths_stretch(info.crs):
        rows = rows[:1]  # all are alike
    cells = shapely.box(middle, rows, middle + 1, rows + 1)
    found = square_metres(on_the_ground(np.atleast_1d(cells), info), info)
    return None if found is None else np.broadcast_to(found, info.size.height)
