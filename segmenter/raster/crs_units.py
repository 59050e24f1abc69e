"""Coordinate reference systems: metres per unit, and comparison of CRSs by the position of pixels."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

from rasterio.crs import CRS
from rasterio.warp import transform

from segmenter.raster.gdal.faults import FAULTS
from segmenter.raster.gdal.settings import set_up_gdal

_NULL_SHIFT = re.compile(r" using towgs84=0(,0)*(?=\")")
"""In the name that PROJ gives a datum."""
_ELLIPSOID = re.compile(
    r'(?:ELLIPSOID|SPHEROID)\["(?:[^"]|"")*",\s*([\d.eE+-]+),\s*([\d.eE+-]+)'
    r'(?:,\s*LENGTHUNIT\["[^"]*",\s*([\d.eE+-]+))?'
)
"""In WKT: the equatorial radius, the inverse flattening (0 of a sphere), and metres of their unit."""
_APART = 1000.0
"""Units between two points of a parallel, whose longitudes tell a Mercator projection's scale."""


def unit_metres(crs: CRS, y: float) -> tuple[float, float] | None:
    """Return the metres on the ground of one CRS unit along x and along y, at the coordinate y.

    Geographic CRSs and Mercator projections are measured on a sphere of the ellipsoid's equatorial radius;
    other projections by their unit, which differs from the ground by a few percent at most in their area of
    use. None if the CRS has no unit, or the latitude is beyond the poles (coordinates of another CRS).
    """
    if is_mercator(crs):
        return _mercator_metres(crs, y)
    if crs.is_projected:
        metres = float(crs.linear_units_factor[1])
        return (metres, metres) if metres > 0 else None
    if not crs.is_geographic:
        return None
    radians, axes = float(crs.units_factor[1]), ellipsoid_axes(crs)
    if axes is None or radians <= 0 or not abs(y * radians) < math.pi / 2:
        return None
    return axes[0] * radians * math.cos(y * radians), axes[0] * radians


def is_mercator(crs: CRS) -> bool:
    """Return True for Mercator's cylindrical projections, whose scale grows with the latitude.

    Includes Web Mercator and variants with a parallel of true scale; excludes transverse and oblique ones.
    """
    return bool(crs.is_projected) and _is_mercator(crs.to_wkt())


@lru_cache(maxsize=1024)
def _is_mercator(wkt: str) -> bool:
    """Return `is_mercator` from WKT, cached: for some CRSs PROJ searches its database for milliseconds."""
    return CRS.from_wkt(wkt).to_dict().get("proj") in ("merc", "webmerc")


def _mercator_metres(crs: CRS, y: float) -> tuple[float, float] | None:
    """Return metres per unit from the longitudes of two points of the parallel; respects lat_ts and k_0.

    The projection is conformal, so both values are equal.
    """
    if (axes := ellipsoid_axes(crs)) is None:
        return None
    set_up_gdal()
    degrees = CRS.from_dict(proj="longlat", a=axes[0], b=axes[1], no_defs=True)
    try:
        (west, east), (latitude, _) = transform(crs, degrees, [0.0, _APART], [y, y])
    except FAULTS:
        return None
    if not (math.isfinite(west) and math.isfinite(east) and abs(latitude) < 90):
        return None
    radians = math.radians(abs(math.remainder(east - west, 360)))
    metres = axes[0] * math.cos(math.radians(latitude)) * radians / _APART
    return (metres, metres) if metres > 0 else None


def ellipsoid_axes(crs: CRS) -> tuple[float, float] | None:
    """Return the semi-axes of a CRS's ellipsoid (equatorial, polar) in metres; None if unknown."""
    return _axes(crs.to_wkt())


@lru_cache(maxsize=1024)
def _axes(wkt: str) -> tuple[float, float] | None:
    if (found := _ELLIPSOID.search(wkt)) is None:
        return None
    equatorial, inverse_flattening = float(found[1]) * float(found[3] or 1), float(found[2])
    polar = equatorial * (1 - 1 / inverse_flattening) if inverse_flattening else equatorial
    return (equatorial, polar) if equatorial > 0 and polar > 0 else None


def same_ground(one: CRS | None, other: CRS | None) -> bool:
    """Return whether two CRSs give a pixel the same position: heights and null shifts may differ."""
    return one == other or (one is not None and other is not None and horizontal(one) == horizontal(other))


@lru_cache(maxsize=1024)
def horizontal(crs: CRS) -> CRS:
    """Return the horizontal part of a CRS, without heights and null shifts (TOWGS84)."""
    set_up_gdal()
    try:
        whole = crs.to_dict(projjson=True)
        part = _horizontal(whole)
        return crs if part == whole else CRS.from_user_input(_NULL_SHIFT.sub("", json.dumps(part)))
    except FAULTS:  # what PROJ cannot write down is compared as it is
        return crs


def _horizontal(part: dict[str, Any]) -> dict[str, Any]:
    """Return a PROJJSON CRS without heights (https://proj.org/specifications/projjson.html)."""
    if part["type"] == "CompoundCRS":
        return _horizontal(part["components"][0])
    if part["type"] == "BoundCRS":
        moves = part["transformation"].get("parameters", [{"value": 1}])
        return part if any(each["value"] for each in moves) else _horizontal(part["source_crs"])
    axes = part.get("coordinate_system", {}).get("axis", [])
    if part["type"] == "GeographicCRS":  # GDAL gives rasters with longitudes first, whatever the CRS says
        axes = sorted(axes[:2], key=lambda axis: str(axis["direction"]), reverse=True)
    elif part["type"] != "ProjectedCRS" or len(axes) != 3:
        return part
    flat = {name: value for name, value in part.items() if name not in ("id", "ids")}
    flat["coordinate_system"] = {**part["coordinate_system"], "axis": axes[:2]}
    if "base_crs" in part:
        flat["base_crs"] = _horizontal({"type": "GeographicCRS", **part["base_crs"]})
    return flat
