"""Coordinate reference systems: metres per unit, and comparison of CRSs by the position of pixels.

Distances on the ground are those on the CRS's own ellipsoid: coordinates are converted to longitude and
latitude, and these to positions in space, which have no seam at 180 degrees and none at the poles.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
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
_NEAR = 0.005
"""Largest deviation of a projection's unit from the ground with which it is taken."""
_SURELY_NEAR, _CELL, _PLACES = 0.004, 50_000.0, np.array([0.0, 0.5, 1.0])
"""Deviation with room to spare; metres of the cells in which it is measured, and where in each."""
_STEP = 1000.0
"""Metres over which the ground is measured: some 1e-9 of them are lost in rounding, 1e-9 by curvature."""
_APART = 1000.0
"""Units between two points of a parallel, whose longitudes tell a Mercator projection's scale."""


def unit_metres(crs: CRS, x: float, y: float) -> NDArray[np.float64] | None:
    """Return a (2, 2) matrix that converts CRS units at a place to metres on the ground.

    Geographic CRSs and Mercator projections are measured on a sphere of the ellipsoid's equatorial radius.
    The unit of another projection is taken where it is within 0.5 % of the ground in all directions;
    elsewhere the ground is measured, with the first axis along x. None if the CRS has no unit, or the
    latitude is beyond the poles (coordinates of another CRS).
    """
    if is_mercator(crs):
        return _mercator_metres(crs, y)
    if crs.is_projected:
        return _projected_metres(crs, x, y)
    if not crs.is_geographic:
        return None
    radians, axes = float(crs.units_factor[1]), ellipsoid_axes(crs)
    if axes is None or radians <= 0 or not abs(y * radians) < math.pi / 2:
        return None
    return np.diag([axes[0] * radians * math.cos(y * radians), axes[0] * radians])


def _projected_metres(crs: CRS, x: float, y: float) -> NDArray[np.float64] | None:
    metres = float(crs.linear_units_factor[1])
    if not metres > 0:
        return None
    plain: NDArray[np.float64] = np.eye(2) * metres
    if _is_plain(crs, math.floor(x * metres / _CELL), math.floor(y * metres / _CELL)):
        return plain
    along = ground_vectors(crs, np.array([[x, y]]))
    if along is None or not np.isfinite(along).all():
        return plain
    measured = _measure_units(along)[0]
    return plain if _deviation(measured[np.newaxis], metres) <= _NEAR else measured


@lru_cache(maxsize=4096)
def _is_plain(crs: CRS, col: int, row: int) -> bool:
    """Return whether a projection's unit is surely near to the ground in a cell of 50 km, as the rule asks.

    Scales change little over a cell: what holds at nine of its places, with room to spare, holds within it.
    """
    metres = float(crs.linear_units_factor[1])
    at = np.stack(np.meshgrid(col + _PLACES, row + _PLACES), axis=-1).reshape(-1, 2) * (_CELL / metres)
    along = ground_vectors(crs, at)
    if along is None or not np.isfinite(along).all():
        return False
    return _deviation(_measure_units(along), metres) <= _SURELY_NEAR


def _measure_units(along_N23: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (N, 2, 2) metres of one unit along x and y, the first axis along x."""
    one, other = along_N23[:, 0], along_N23[:, 1]
    length = np.linalg.norm(one, axis=1)
    across = np.linalg.norm(np.cross(one, other), axis=1)
    rows = [[length, (one * other).sum(axis=1) / length], [np.zeros_like(length), across / length]]
    return np.moveaxis(np.array(rows), 2, 0)


def _deviation(measured_N22: NDArray[np.float64], metres: float) -> float:
    """Return the largest share by which the ground differs from a unit, in any direction."""
    return float(np.abs(np.linalg.svd(measured_N22, compute_uv=False) / metres - 1).max())


def ground_vectors(crs: CRS, xy_N2: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return (N, 2, 3) metres in space of one unit along x and one along y, at places of a CRS.

    From differences over 1 km on the CRS's ellipsoid. NaN where the CRS has no longitude and latitude; None
    if its ellipsoid or unit is unknown.
    """
    axes = ellipsoid_axes(crs)
    factor = float((crs.units_factor if crs.is_geographic else crs.linear_units_factor)[1])
    if axes is None or not factor > 0:
        return None
    step = _STEP / (factor * (axes[0] if crs.is_geographic else 1.0))
    offsets = step / 2 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    around_N42 = xy_N2[:, np.newaxis, :] + offsets
    if crs.is_geographic:
        radians_N42 = around_N42 * factor
        radians_N42[~(np.abs(xy_N2[:, 1] * factor) <= math.pi / 2)] = np.nan
    else:
        degrees = CRS.from_dict(proj="longlat", a=axes[0], b=axes[1], no_defs=True)
        radians_N42 = np.radians(_convert(crs, degrees, around_N42))
    space_N43 = _in_space(radians_N42, *axes)
    return (space_N43[:, 0::2] - space_N43[:, 1::2]) / step


def _convert(source: CRS, target: CRS, xy_NP2: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert groups of P coordinates; NaN for groups that PROJ refuses, which it does for a whole call."""
    set_up_gdal()
    flat = xy_NP2.reshape(-1, 2)
    try:
        moved = np.stack(transform(source, target, flat[:, 0], flat[:, 1])[:2], axis=-1)
    except FAULTS:
        if len(xy_NP2) == 1:
            return np.full(xy_NP2.shape, np.nan)
        middle = len(xy_NP2) // 2
        halves = (_convert(source, target, part) for part in (xy_NP2[:middle], xy_NP2[middle:]))
        return np.concatenate([*halves])
    return np.where(np.isfinite(moved), moved, np.nan).reshape(xy_NP2.shape)


def _in_space(radians: NDArray[np.float64], equatorial: float, polar: float) -> NDArray[np.float64]:
    """Return (..., 3) geocentric metres of (..., 2) longitudes and latitudes (EPSG method 9602)."""
    longitude, latitude = radians[..., 0], radians[..., 1]
    squared = 1 - (polar / equatorial) ** 2
    normal = equatorial / np.sqrt(1 - squared * np.sin(latitude) ** 2)
    return np.stack(
        [
            normal * np.cos(latitude) * np.cos(longitude),
            normal * np.cos(latitude) * np.sin(longitude),
            normal * (1 - squared) * np.sin(latitude),
        ],
        axis=-1,
    )


def is_mercator(crs: CRS) -> bool:
    """Return True for Mercator's cylindrical projections, whose scale grows with the latitude.

    Includes Web Mercator and variants with a parallel of true scale; excludes transverse and oblique ones.
    """
    return bool(crs.is_projected) and projection_of(crs) in ("merc", "webmerc")


def projection_of(crs: CRS) -> str:
    """Return PROJ's name of a projection, such as `utm`; empty if PROJ has none."""
    return _projection(crs.to_wkt())


@lru_cache(maxsize=1024)
def _projection(wkt: str) -> str:
    """Return `projection_of` from WKT, cached: for some CRSs PROJ searches its database for milliseconds."""
    return str(CRS.from_wkt(wkt).to_dict().get("proj", ""))


def _mercator_metres(crs: CRS, y: float) -> NDArray[np.float64] | None:
    """Return metres per unit from the longitudes of two points of the parallel; respects lat_ts and k_0.

    The projection is conformal, so both directions are equal.
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
    return np.eye(2) * metres if metres > 0 else None


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
