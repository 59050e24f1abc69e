"""Metres of a unit of a coordinate reference system: its own unit, on the body that it is of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rasterio.crs import CRS

from segmenter.raster.faults import FAULTS

_FLATTEST = 0.01
"""Flattening up to which a body counts as a sphere: that of Mars is 0.0059, and along a meridian a degree
differs from a sphere's by at most twice as much. Jupiter and most small bodies are no spheres."""


def unit_metres(crs: CRS, y: float) -> tuple[float, float] | None:
    """Metres of one unit of a CRS along x and along y, at a y.

    Of a geographic CRS, on a sphere of its ellipsoid's equatorial radius. None where the CRS does not say
    them, the latitude is beyond the poles (often coordinates of another CRS), or the body is no sphere.
    """
    if crs.is_projected:
        metres = float(crs.linear_units_factor[1])
        return (metres, metres) if metres > 0 else None
    if not crs.is_geographic:
        return None
    radians, axes = float(crs.units_factor[1]), ellipsoid_axes(crs)
    if axes is None or radians <= 0 or not abs(y * radians) < math.pi / 2:
        return None
    if abs(1 - axes[1] / axes[0]) > _FLATTEST:
        return None
    return axes[0] * radians * math.cos(y * radians), axes[0] * radians


def ellipsoid_axes(crs: CRS) -> tuple[float, float] | None:
    """Half of the equatorial and of the polar axis of a CRS's ellipsoid in metres; None where not known."""
    return _axes(crs.to_wkt())


@lru_cache(maxsize=1024)
def _axes(wkt: str) -> tuple[float, float] | None:
    try:
        ellipsoid = _ellipsoid(CRS.from_wkt(wkt).to_dict(projjson=True)) or {}
        if "radius" in ellipsoid:
            equatorial = polar = _metres(ellipsoid["radius"])
        else:
            equatorial = polar = _metres(ellipsoid["semi_major_axis"])
            if "semi_minor_axis" in ellipsoid:
                polar = _metres(ellipsoid["semi_minor_axis"])
            else:
                polar *= 1 - 1 / float(ellipsoid["inverse_flattening"])
    except (*FAULTS, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return (equatorial, polar) if equatorial > 0 and polar > 0 else None


def _ellipsoid(part: Any) -> Mapping[str, Any] | None:
    """The first in PROJJSON, which holds a CRS's own, or that of its base, before what it is bound to."""
    if isinstance(part, dict):
        found = part.get("ellipsoid")
        if isinstance(found, dict):
            return found
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        if (found := _ellipsoid(inner)) is not None:
            return found
    return None


def _metres(length: Any) -> float:
    """A length of PROJJSON: a number of metres, or one with its unit."""
    if not isinstance(length, dict):
        return float(length)
    unit = length["unit"]
    return float(length["value"]) * (float(unit["conversion_factor"]) if isinstance(unit, dict) else 1.0)
