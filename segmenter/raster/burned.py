"""Polygons on a raster's grid, by GDAL: coordinates moved to pixels, areas burned into windows.

Coordinates in pixels are rounded to 2⁻¹⁶ of a pixel. So all differences of rows are exact, and a strip as
wide as the raster has the same bits as these rows of the whole raster, whatever its first row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.features import rasterize
from rasterio.transform import Affine
from rasterio.warp import transform

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Window
from segmenter.raster.gdal.faults import FAULTS
from segmenter.raster.gdal.settings import set_up_gdal
from segmenter.raster.header import RasterInfo

Move = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""(V, 2) coordinates → others; not finite where there are none."""

_STEPS = 65536.0
_MARGIN = 2.0
"""Pixels around a window within which polygons are looked for."""
_ALONG = 33
"""Points along each side of a window that is looked for in another CRS."""


def crs_of(text: str) -> CRS:
    """A CRS by its name or definition.

    Raises:
        ValueError: it is none.
    """
    set_up_gdal()
    try:
        return CRS.from_user_input(text)
    except FAULTS as error:
        raise ValueError(str(error)) from None


def between(source: CRS | None, target: CRS | None) -> Move | None:
    """From one CRS to another; None where they are the same."""
    if source == target:
        return None
    set_up_gdal()

    def move(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        try:
            found = transform(source, target, xy[:, 0], xy[:, 1])
        except FAULTS:  # of one point beyond what the projection is for, in words only
            return np.full(xy.shape, np.nan)
        return np.stack([np.asarray(found[0], np.float64), np.asarray(found[1], np.float64)], axis=1)

    return move


def to_pixels(info: RasterInfo) -> Move:
    """From coordinates of a raster's CRS to columns and rows, rounded as this module says.

    Raises:
        RasterError: the raster is not placed by a transform.
    """
    if info.transform is None or info.transform.is_degenerate:
        raise RasterError(
            f"{info.path}: polygons are placed on an image by its geotransform, and it has none; give it one "
            "(gdal_translate -a_srs -a_ullr, or gdalwarp for control points and RPCs)"
        )
    back = ~info.transform
    turn, start = np.array([[back.a, back.d], [back.b, back.e]]), np.array([back.c, back.f])

    def move(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):  # of coordinates that are nowhere
            pixels: NDArray[np.float64] = np.rint((xy @ turn + start) * _STEPS) / _STEPS
        return pixels

    return move


def box_around(info: RasterInfo, window: Window, crs: CRS | None) -> tuple[float, float, float, float]:
    """Left, bottom, right and top, in another CRS, of a window with some pixels around it.

    Raises:
        RasterError: it lies where that CRS has no coordinates.
    """
    assert info.transform is not None, "`to_pixels` comes first"
    along = np.linspace(0, 1, _ALONG)
    cols = window.col - _MARGIN + along * (window.width + 2 * _MARGIN)
    rows = window.row - _MARGIN + along * (window.height + 2 * _MARGIN)
    sides = [(cols, np.full(_ALONG, row)) for row in rows[[0, -1]]]
    sides += [(np.full(_ALONG, col), rows) for col in cols[[0, -1]]]
    xy = np.array([info.transform @ point for side in sides for point in zip(*side, strict=True)])
    move = between(info.crs, crs)
    found = xy if move is None else move(xy)
    if not np.isfinite(found).all():
        raise RasterError(
            f"{info.path}: {window} lie where the CRS of the labels has no coordinates; bring them into the "
            "image's CRS first (ogr2ogr -t_srs, gdalwarp -t_srs)"
        )
    left, bottom = (float(value) for value in found.min(axis=0))
    right, top = (float(value) for value in found.max(axis=0))
    return left, bottom, right, top


def covered(shapes: Sequence[Any], window: Window) -> NDArray[np.bool_]:
    """(H, W) pixels of a window whose centre lies in one of the polygons, given in columns and rows.

    Args:
        shapes: shapely polygons, or others with `__geo_interface__`.
    """
    if not len(shapes):
        return np.zeros((window.height, window.width), np.bool_)
    set_up_gdal()
    burned = rasterize(
        shapes,
        (window.height, window.width),
        fill=0,
        default_value=1,
        dtype="uint8",
        transform=Affine.translation(window.col, window.row),
    )
    found: NDArray[np.bool_] = burned.view(np.bool_)
    return found
