"""Polygons on a raster's grid, by GDAL: converted to pixels, rasterised in windows, traced from numbers.

Coordinates in pixels are rounded to 2⁻¹⁶ of a pixel. All differences of rows are then exact, and a strip of
full width has the same bits as these rows of the whole raster, whatever its first row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.features import rasterize, shapes
from rasterio.transform import Affine
from rasterio.warp import transform

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Window
from segmenter.raster.crs_units import ellipsoid_axes, projection_of
from segmenter.raster.gdal.faults import FAULTS
from segmenter.raster.gdal.settings import set_up_gdal
from segmenter.raster.header import RasterInfo

Move = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Conversion of (V, 2) coordinates; not finite if there are none."""

_STEPS = 65536.0
_MARGIN = 2.0
"""Pixels around a window within which polygons are looked for."""
_ALONG = 33
"""Points along each side of a window that is looked for in another CRS."""
_CYLINDRICAL = ("merc", "webmerc", "eqc", "mill", "cc", "gall", "cea")
"""Projections whose parallels and meridians are straight, as those of Lambert's are."""
_STRAIGHT = 10_000.0
"""Metres: an edge of this length is off its chord by some 1e-4 of it at most in another projection."""


def crs_of(text: str) -> CRS:
    """Return the CRS of a name or definition (ValueError: the text is no CRS)."""
    set_up_gdal()
    try:
        return CRS.from_user_input(text)
    except FAULTS as error:
        raise ValueError(str(error)) from None


def between(source: CRS | None, target: CRS | None) -> Move | None:
    """Return the coordinate conversion from one CRS to another; None if they are the same."""
    if source == target:
        return None
    set_up_gdal()

    def move(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        try:
            moved = transform(source, target, xy[:, 0], xy[:, 1])
        except FAULTS:  # of one point beyond what the projection is for, in words only
            return np.full(xy.shape, np.nan)
        return np.stack([np.asarray(moved[0], np.float64), np.asarray(moved[1], np.float64)], axis=1)

    return move


def to_pixels(info: RasterInfo) -> Move:
    """Return the conversion from a raster's CRS to (column, row), rounded as in this module's docstring."""
    if info.transform is None or info.transform.is_degenerate:
        raise RasterError(
            info.path,
            "the image has no georeference, so polygons cannot be placed on it",
            remedy="give it one (gdal_translate -a_srs -a_ullr, or gdalwarp for control points and RPCs)",
        )
    back = ~info.transform
    turn, start = np.array([[back.a, back.d], [back.b, back.e]]), np.array([back.c, back.f])

    def move(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):  # of coordinates that are nowhere
            pixels: NDArray[np.float64] = np.rint((xy @ turn + start) * _STEPS) / _STEPS
        return pixels

    return move


def box_around(
    info: RasterInfo, window: Window, crs: CRS | None, margin: float = _MARGIN
) -> tuple[float, float, float, float]:
    """Return left, bottom, right and top of a window with a margin of pixels, in another CRS."""
    assert info.transform is not None, "`to_pixels` comes first"
    moved = ring_around(info, window, crs, margin)
    if not np.isfinite(moved).all():
        raise RasterError(
            info.path,
            f"{window} lie where the CRS of the labels has no coordinates",
            remedy="bring them into the image's CRS first (ogr2ogr -t_srs, gdalwarp -t_srs)",
        )
    left, bottom = (float(value) for value in moved.min(axis=0))
    right, top = (float(value) for value in moved.max(axis=0))
    if crs is not None and crs.is_geographic and right - left > 180:  # over the antimeridian
        left, right = -180.0, 180.0
    back = between(crs, info.crs) if crs is not None and crs.is_geographic else None
    poles = np.array([[0.0, -90.0], [0.0, 90.0]])
    for pole, point in () if back is None else zip(poles[:, 1].tolist(), back(poles), strict=True):
        # A pole inside the window is further north or south than all its sides, and has every longitude.
        col, row = ~info.transform @ tuple(point)
        within = -margin <= col - window.col <= window.width + margin
        if within and -margin <= row - window.row <= window.height + margin:
            left, right, bottom, top = -180.0, 180.0, min(bottom, pole), max(top, pole)
    return left, bottom, right, top


def ring_around(info: RasterInfo, window: Window, crs: CRS | None, margin: float = 0) -> NDArray[np.float64]:
    """Return (V, 2) points around a window with a margin of pixels, in another CRS; NaN where it has none."""
    assert info.transform is not None, "only georeferenced rasters lie anywhere"
    along = np.linspace(0, 1, _ALONG)
    cols = window.col - margin + along * (window.width + 2 * margin)
    rows = window.row - margin + along * (window.height + 2 * margin)
    sides = [(cols, np.full(_ALONG, rows[0])), (np.full(_ALONG, cols[-1]), rows)]
    sides += [(cols[::-1], np.full(_ALONG, rows[-1])), (np.full(_ALONG, cols[0]), rows[::-1])]
    xy = np.array([info.transform @ point for side in sides for point in zip(*side, strict=True)])
    move = between(info.crs, crs)
    return xy if move is None else move(xy)


def cover_pixels(shapes: Sequence[Any], window: Window, *, touched: bool = False) -> NDArray[np.bool_]:
    """Return an (H, W) mask of pixels whose centre is in one of the polygons, given in columns and rows.

    Args:
        shapes: shapely polygons, or others with `__geo_interface__`.
        touched: take in every pixel that a polygon touches.
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
        all_touched=touched,
    )
    inside: NDArray[np.bool_] = burned.view(np.bool_)
    return inside


# --------------------------------------------------------------------------------------------------- outlines


class Outlines(NamedTuple):
    """Polygons as ragged arrays.

    Attributes:
        xy: (V, 2) float64, column and row of the vertices.
        rings: index of each ring's first vertex; at the end the number of vertices.
        polygons: index of each polygon's first ring, the outer one; at the end the number of rings.
        value_P: (P,) label number of each polygon.
    """

    xy: NDArray[np.float64]
    rings: NDArray[np.int64]
    polygons: NDArray[np.int64]
    value_P: NDArray[np.int64]


def outlines_of(labels_HW: NDArray[np.int32], row: int = 0) -> Outlines:
    """Return the outlines of regions of equal numbers, connected by sides; 0 is background.

    Args:
        row: position of the first row in the whole raster.
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


class EqualArea(NamedTuple):
    """Conversion to coordinates in which plane areas are square metres on the ground.

    Attributes:
        longest: longest edge that need not be divided, in units of the CRS; None: any, since none is curved.
    """

    move: Move
    longest: float | None


def equal_area(info: RasterInfo) -> EqualArea | None:
    """Return the conversion for areas of polygons in a raster's CRS; None if its ellipsoid is unknown.

    Degrees and cylindrical projections: Lambert's cylindrical projection, exact for edges along parallels and
    meridians of any length; others: Lambert's azimuthal projection around the raster's centre (Snyder 1987,
    Map projections: a working manual, pp. 81-83 and 187-190). Both on the CRS's own ellipsoid.
    """
    crs = info.crs
    if crs is None or info.transform is None or (axes := ellipsoid_axes(crs)) is None:
        return None
    body = {"a": axes[0], "b": axes[1], "no_defs": True}
    centre = np.array([info.transform @ (info.size.width / 2, info.size.height / 2)])
    to_degrees = between(crs, CRS.from_dict(proj="longlat", **body))
    ((x, y),) = centre.tolist()
    longitude, latitude = (centre if to_degrees is None else to_degrees(centre))[0].tolist()
    if not (math.isfinite(longitude) and math.isfinite(latitude)):
        return None
    if crs.is_geographic or projection_of(crs) in _CYLINDRICAL:
        pixel = math.hypot(info.transform.a, info.transform.d)
        move = between(crs, CRS.from_dict(proj="cea", lon_0=longitude, **body))
        return None if move is None else EqualArea(_unrolled(move, x, y, pixel), None)
    move = between(crs, CRS.from_dict(proj="laea", lon_0=longitude, lat_0=latitude, **body))
    return None if move is None else EqualArea(move, _STRAIGHT / float(crs.linear_units_factor[1]))


def _unrolled(move: Move, x: float, y: float, pixel: float) -> Move:
    """Return a cylindrical conversion that goes on across 180°, where PROJ's has its seam.

    Args:
        move: whose x grows evenly, and is unbroken at (`x`, `y`) and a `pixel` beside it.
    """
    (first, _), (second, _) = move(np.array([[x, y], [x + pixel, y]])).tolist()

    def moved(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        up = move(np.stack([np.full(len(xy), x), xy[:, 1]], axis=1))[:, 1]
        return np.stack([(xy[:, 0] - x) * ((second - first) / pixel), up], axis=1)

    return moved
