"""Outlines of areas in a raster of numbers, by GDAL, as arrays of coordinates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.features import shapes
from rasterio.transform import Affine
from rasterio.warp import transform

from segmenter.raster.crs_units import ellipsoid_axes, is_mercator
from segmenter.raster.gdal.settings import set_up_gdal

_EQUAL_AREA = "EPSG:6933"
"""Lambert's cylindrical projection on WGS 84: parallels and meridians are straight, areas are true."""
_EARTH, _NO_EARTH = 6_378_137.0, 0.005
"""Metres, and the share by which the radius of another body differs, as PROJ has it."""


class Outlines(NamedTuple):
    """Polygons as ragged arrays.

    Attributes:
        xy: (V, 2) float64, column and row of the corners.
        rings: first corner of each ring, and their number.
        polygons: first ring of each polygon, and their number; the first ring of each is the outer one.
        value_P: the number that each polygon surrounds.
    """

    xy: NDArray[np.float64]
    rings: NDArray[np.int64]
    polygons: NDArray[np.int64]
    value_P: NDArray[np.int64]


def outlines_of(labels_HW: NDArray[np.int32], row: int = 0) -> Outlines:
    """Outlines of the areas of equal numbers that touch by their sides; of 0 there are none.

    Args:
        row: that the first one is in the whole raster.
    """
    set_up_gdal()
    corners: list[Any] = []
    rings, polygons, values = [0], [0], []
    for shape, value in shapes(labels_HW, labels_HW > 0, 4, Affine.translation(0, row)):
        for ring in shape["coordinates"]:
            corners += ring
            rings.append(len(corners))
        polygons.append(len(rings) - 1)
        values.append(value)
    xy = np.array(corners, np.float64).reshape(-1, 2)
    return Outlines(xy, np.array(rings), np.array(polygons), np.array(values, np.int64))


def lengths_stretch(crs: CRS) -> bool:
    """Whether plane areas in a CRS are no areas on the ground: in degrees, and in Mercator's projections."""
    return bool(crs.is_geographic) or is_mercator(crs)


def on_equal_area(crs: CRS, xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """(V, 2) coordinates of a CRS in one where plane areas are square metres on the ground.

    EPSG:6933; of another body than Earth, the same projection of its ellipsoid. True for edges along
    parallels and meridians whatever their length (Snyder 1987, Map projections: a working manual, pp. 81-83).
    """
    set_up_gdal()
    axes, equal = ellipsoid_axes(crs), CRS.from_string(_EQUAL_AREA)
    if axes is not None and abs(axes[0] / _EARTH - 1) > _NO_EARTH:
        equal = CRS.from_proj4(f"+proj=cea +lat_ts=30 +a={axes[0]!r} +b={axes[1]!r} +units=m +no_defs")
    x, y = transform(crs, equal, xy[:, 0], xy[:, 1])
    return np.stack([np.asarray(x), np.asarray(y)], axis=1)
