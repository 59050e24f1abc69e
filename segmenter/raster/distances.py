"""Distances between rasters, and names of their CRSs, for messages."""

from __future__ import annotations

import math

import rasterio
from rasterio.crs import CRS

from segmenter.raster.gdal.faults import FAULTS
from segmenter.raster.header import RasterInfo

_EARTH_RADIUS = 6_371_000.0
_LONGEST_NAME = 40


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
