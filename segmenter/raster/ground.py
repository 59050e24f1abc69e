"""Rasters on the ground: outlines in one coordinate reference system, sides of pixels, distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.warp import transform as reproject

from segmenter.grid.geometry import Size
from segmenter.raster.crs_units import unit_metres
from segmenter.raster.gdal.faults import FAULTS
from segmenter.raster.header import RasterInfo

_HALF_WAY_ROUND = 17_000_000.0
"""Metres: what is wider lies across the 180th meridian, where coordinates jump."""
_EARTH_RADIUS = 6_371_000.0
_LONGEST_NAME = 40


def outlines(infos: Sequence[RasterInfo]) -> list[NDArray[np.float64] | None]:
    """(4, 2) corners of each raster: upper left, upper right, lower right, lower left.

    In the rasters' own CRS where they have one in common, else in metres of an equal-area projection.
    None for a raster that does not say where it lies. Where none has a CRS (a world file holds none), plain
    coordinates count, unless they begin at 0, 0 as those of a raster that lies nowhere do.
    """
    known = [info.crs for info in infos if info.crs is not None and info.transform is not None]
    common = None if all(crs == known[0] for crs in known) else CRS.from_epsg(6933)
    return [_outline(info, common, plain=not known) for info in infos]


def _outline(info: RasterInfo, common: CRS | None, *, plain: bool) -> NDArray[np.float64] | None:
    if info.transform is None or (info.crs is None and not plain):
        return None
    if info.crs is None and (info.transform.c, info.transform.f) == (0, 0):
        return None
    points = _corners(info.transform, info.size)
    if common is not None:
        try:
            points = np.stack(reproject(info.crs, common, points[:, 0], points[:, 1]), axis=1)
        except FAULTS:
            return None
    spread = np.ptp(points, axis=0)
    if not np.isfinite(points).all() or (common is not None and spread[0] > _HALF_WAY_ROUND):
        return None
    return points


def _corners(transform: Affine, size: Size) -> NDArray[np.float64]:
    """(4, 2) in the raster's own coordinates, in the order of `outlines`."""
    pixels = (0, 0), (size.width, 0), (size.width, size.height), (0, size.height)
    return np.array([transform @ pixel for pixel in pixels], np.float64)


def lon_lat_corners(info: RasterInfo) -> NDArray[np.float64] | None:
    """(4, 2) longitude and latitude (WGS 84) of a raster's corners, in the order of `outlines`.

    None for a raster that does not say where it lies by a transform and a CRS, or that lies across the 180th
    meridian, where no ring of these four goes around it.
    """
    if info.transform is None or info.crs is None:
        return None
    height, width = info.size.height, info.size.width
    x, y = zip(
        *(info.transform @ corner for corner in ((0, 0), (width, 0), (width, height), (0, height))),
        strict=True,
    )
    try:
        lon, lat = reproject(info.crs, CRS.from_epsg(4326), list(x), list(y))
    except FAULTS:
        return None
    points = np.array([lon, lat], np.float64).T
    if not np.isfinite(points).all() or (np.abs(points) > (180, 90)).any() or np.ptp(points[:, 0]) > 180:
        return None
    return points


def extent_text(info: RasterInfo) -> str:
    """Left, bottom, right and top in a raster's own CRS, as `--bbox` takes them; else empty."""
    if info.transform is None:
        return ""
    size = info.size
    corners = [info.transform @ (x, y) for x in (0, size.width) for y in (0, size.height)]
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    numbers = " ".join(f"{value:.10g}" for value in (*low, *high))
    return f"{numbers} ({info.crs.to_string() if info.crs is not None else 'no CRS'})"


def pixel_sides(info: RasterInfo) -> tuple[float, float] | None:
    """Metres from one row to the next and from one column to the next, at the raster's centre.

    Of a geographic CRS they differ by the cosine of the latitude. None where the raster does not say them: no
    transform or CRS, or one of `unit_metres` that says none.
    """
    if info.crs is None or info.transform is None:
        return None
    move = info.transform
    _, y = move @ (info.size.width / 2, info.size.height / 2)
    if (metres := unit_metres(info.crs, y)) is None:
        return None
    across, along = metres
    sides = math.hypot(move.b * across, move.e * along), math.hypot(move.a * across, move.d * along)
    return sides if min(sides) > 0 else None


# -------------------------------------------------------------------------------------------------- distances


def crs_title(crs: CRS) -> str:
    """A CRS in a few words: `EPSG:25833`, or the name in its WKT where it has no short code."""
    text = str(crs.to_string())
    return text if len(text) <= _LONGEST_NAME else crs.to_wkt().partition('"')[2].partition('"')[0]


def metres_apart(one: RasterInfo, other: RasterInfo) -> float | None:
    """Great-circle distance between the centres of two rasters in any CRSs; None where it cannot be told."""
    places = [_longitude_latitude(info) for info in (one, other)]
    if None in places:
        return None
    (x1, y1), (x2, y2) = (map(math.radians, place) for place in places if place is not None)
    part = math.sin((y2 - y1) / 2) ** 2 + math.cos(y1) * math.cos(y2) * math.sin((x2 - x1) / 2) ** 2
    return 2 * _EARTH_RADIUS * math.asin(math.sqrt(min(1.0, max(0.0, part))))


def _longitude_latitude(info: RasterInfo) -> tuple[float, float] | None:
    """Of a raster's centre, in degrees."""
    from rasterio.warp import transform

    if info.crs is None or info.transform is None:
        return None
    x, y = info.transform @ (info.size.width / 2, info.size.height / 2)
    try:
        with rasterio.Env():
            (longitude,), (latitude,) = transform(info.crs, CRS.from_epsg(4326), [x], [y])
    except FAULTS:
        return None
    there = math.isfinite(longitude) and math.isfinite(latitude)
    return (longitude, latitude) if there else None


def length(metres: float) -> str:
    """A distance for people: `0.4 m`, `20 m`, `2.0 km`."""
    if metres >= 1000:
        return f"{metres / 1000:,.1f} km"
    return f"{metres:.0f} m" if metres >= 10 else f"{metres:.2g} m"
