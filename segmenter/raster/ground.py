"""Rasters on the ground: outlines, pixel sizes, distances, and alignment of an image and its label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS

from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Size
from segmenter.raster.crs_units import same_ground, unit_metres
from segmenter.raster.header import RasterInfo
from segmenter.raster.polygons import between
from segmenter.raster.reading import raster_info

_HALF_WAY_ROUND = 17_000_000.0
"""Metres: a wider extent crosses the 180th meridian, where coordinates jump."""
_EARTH_RADIUS = 6_371_000.0
_LONGEST_NAME = 40
_LARGEST_SHIFT = 0.5
"""Pixels by which image and label may lie apart: less than half moves no label to another pixel."""


def outlines(infos: Sequence[RasterInfo]) -> list[NDArray[np.float64] | None]:
    """Return the (4, 2) corners of each raster: upper left, upper right, lower right, lower left.

    In the rasters' CRS if it is the same for all, else in metres of an equal-area projection. None for a
    raster without georeference. If no raster has a CRS (world files have none), plain coordinates are used,
    unless they begin at 0, 0, as they do without georeference.
    """
    systems = [info.crs for info in infos if info.crs is not None and info.transform is not None]
    common = None if all(crs == systems[0] for crs in systems) else CRS.from_epsg(6933)
    return [_outline(info, common, plain=not systems) for info in infos]


def _outline(info: RasterInfo, common: CRS | None, *, plain: bool) -> NDArray[np.float64] | None:
    if info.transform is None or (info.crs is None and not plain):
        return None
    if info.crs is None and (info.transform.c, info.transform.f) == (0, 0):
        return None
    points = _corners(info.transform, info.size)
    if common is not None and (move := between(info.crs, common)) is not None:
        points = move(points)
    spread = np.ptp(points, axis=0)
    if not np.isfinite(points).all() or (common is not None and spread[0] > _HALF_WAY_ROUND):
        return None
    return points


def _corners(transform: Affine, size: Size) -> NDArray[np.float64]:
    """Return (4, 2) corners in the raster's own coordinates, in the order of `outlines`."""
    pixels = (0, 0), (size.width, 0), (size.width, size.height), (0, size.height)
    return np.array([transform @ pixel for pixel in pixels], np.float64)


def meeting(
    low_N2: NDArray[np.float64], high_N2: NDArray[np.float64], margin_N: NDArray[np.float64] | float
) -> NDArray[np.int64]:
    """Return the connected component of each rectangle, numbered in the order of their first members.

    Args:
        margin_N: by how much each may lie apart from the next and still meet it; negative: must overlap.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    order = np.argsort(low_N2[:, 0], kind="stable")
    low, high = low_N2[order], (high_N2 + np.reshape(margin_N, (-1, 1)))[order]
    pairs = [np.zeros((2, 0), np.int64)]
    for i, stop in enumerate(np.searchsorted(low[:, 0], high[:, 0]).tolist()):
        near = (low[i + 1 : stop, 1] < high[i, 1]) & (high[i + 1 : stop, 1] > low[i, 1])
        j = np.flatnonzero(near) + i + 1
        pairs.append(np.stack([np.full(len(j), order[i]), order[j]]))
    a, b = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(a)), (a, b)), shape=(len(order), len(order)))
    component: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return component


def lon_lat_corners(info: RasterInfo) -> NDArray[np.float64] | None:
    """Return the (4, 2) longitude and latitude (WGS 84) of the corners, in the order of `outlines`.

    None for a raster without transform or CRS, or across the 180th meridian, where these four corners form no
    ring around it.
    """
    if info.transform is None or info.crs is None:
        return None
    points = _corners(info.transform, info.size)
    if (move := between(info.crs, CRS.from_epsg(4326))) is not None:
        points = move(points)
    if not np.isfinite(points).all() or (np.abs(points) > (180, 90)).any() or np.ptp(points[:, 0]) > 180:
        return None
    return points


def extent_text(info: RasterInfo) -> str:
    """Return left, bottom, right and top in a raster's CRS, as for `--bbox`; empty text if it has none."""
    if info.transform is None:
        return ""
    size = info.size
    corners = [info.transform @ (x, y) for x in (0, size.width) for y in (0, size.height)]
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    numbers = " ".join(f"{value:.10g}" for value in (*low, *high))
    return f"{numbers} ({info.crs.to_string() if info.crs is not None else 'no CRS'})"


def pixel_sides(info: RasterInfo) -> tuple[float, float] | None:
    """Return the metres from row to row and from column to column, at the raster's centre.

    In degrees they differ by the cosine of the latitude. None if the raster has no transform or CRS,
    or `unit_metres` is None.
    """
    if info.crs is None or info.transform is None:
        return None
    move = info.transform
    centre = move @ (info.size.width / 2, info.size.height / 2)
    if (metres := unit_metres(info.crs, *centre)) is None:
        return None
    sides = math.hypot(*(metres @ (move.b, move.e))), math.hypot(*(metres @ (move.a, move.d)))
    return sides if min(sides) > 0 else None


# -------------------------------------------------------------------------------------------------- distances


@lru_cache(maxsize=1024)
def crs_title(crs: CRS) -> str:
    """Return a CRS as short text: `EPSG:25833`, or the name in its WKT if it has no short code."""
    text = str(crs.to_string())
    return text if len(text) <= _LONGEST_NAME else crs.to_wkt().partition('"')[2].partition('"')[0]


def metres_apart(one: RasterInfo, other: RasterInfo) -> float | None:
    """Return the great-circle distance in metres between the centres of two rasters; None if unknown."""
    places = [_longitude_latitude(info) for info in (one, other)]
    if None in places:
        return None
    (x1, y1), (x2, y2) = (map(math.radians, place) for place in places if place is not None)
    part = math.sin((y2 - y1) / 2) ** 2 + math.cos(y1) * math.cos(y2) * math.sin((x2 - x1) / 2) ** 2
    return 2 * _EARTH_RADIUS * math.asin(math.sqrt(min(1.0, max(0.0, part))))


def _longitude_latitude(info: RasterInfo) -> tuple[float, float] | None:
    """Return longitude and latitude of a raster's centre, in degrees."""
    if info.crs is None or info.transform is None:
        return None
    centre = np.array([info.transform @ (info.size.width / 2, info.size.height / 2)])
    move = between(info.crs, CRS.from_epsg(4326))
    longitude, latitude = (centre if move is None else move(centre))[0].tolist()
    return (longitude, latitude) if math.isfinite(longitude) and math.isfinite(latitude) else None


def length(metres: float) -> str:
    """Return a distance as text: `0.4 m`, `20 m`, `2.0 km`."""
    if metres >= 1000:
        return f"{metres / 1000:,.1f} km"
    return f"{metres:.0f} m" if metres >= 10 else f"{metres:.2g} m"


# -------------------------------------------------------------------------------------------------- alignment


def alignment_errors(image: RasterInfo, label: RasterInfo) -> list[tuple[str, str]]:
    """Return (kind, text) for each contradiction between the headers of an image and its label.

    The tile index, `segmenter check` and scoring use this rule. Sizes must be equal. If both have a CRS,
    these must give pixels the same position; if both have a transform, they must agree within half a pixel. A
    label without georeference (masks are often PNG) matches its image by definition; control points are not
    compared.
    """
    if image.size != label.size:
        text = f"{label.path}: expected {image.size} pixels as its image {image.path} has, got {label.size}"
        return [("size", text + _way_out(image, label))]
    if image.crs and label.crs and not same_ground(image.crs, label.crs):
        return [("georeferencing", f"{label.path}: {_other_crs(image, label)}{_way_out(image, label)}")]
    shift = _shift(image, label)
    if not shift <= _LARGEST_SHIFT:  # NaN fits nothing
        where = f"{label.path}: lies up to {shift:,.1f} pixels from its image {image.path}"
        where += f"{_on_the_ground(image, shift)}, at most {_LARGEST_SHIFT} expected"
        return [("georeferencing", where + _way_out(image, label))]
    return []


def both_placed(image: RasterInfo, label: RasterInfo) -> bool:
    """Return True if both files have a position, so that `alignment_errors` can detect a displaced label."""
    return image.transform is not None and label.transform is not None


def _way_out(image: RasterInfo, label: RasterInfo) -> str:
    if not both_placed(image, label):
        return ""
    return (
        "; resample it to the image's grid (gdalwarp -r near); for training, dataset.labels_by: georeference"
    )


def _other_crs(image: RasterInfo, label: RasterInfo) -> str:
    ours, theirs = crs_title(image.crs), crs_title(label.crs)
    got = theirs if theirs != ours else "another of that name"
    apart = metres_apart(image, label)
    far = "" if apart is None else f"; its centre lies {length(apart)} from that of {image.path}"
    return f"expected its image's CRS {ours}, got {got}{far}"


def _on_the_ground(image: RasterInfo, shift: float) -> str:
    """Return a shift in pixels as text with distance and CRS, if known."""
    metres = image.metres_per_pixel
    far = [] if metres is None else [length(shift * metres)]
    both = "no CRS" if image.crs is None else crs_title(image.crs)
    return f" ({', '.join([*far, both])})"


def _shift(image: RasterInfo, label: RasterInfo) -> float:
    """Return the largest distance between corresponding corners, in pixels of the image; 0 if undefined."""
    if image.transform is None or label.transform is None:
        return 0.0
    height, width = image.size.height, image.size.width
    corners = [(0, 0), (width, 0), (0, height), (width, height)]
    to_image, to_label = (np.array(each[:6]).reshape(2, 3) for each in (image.transform, label.transform))
    moved = np.array([(*corner, 1) for corner in corners]) @ (to_label - to_image).T
    if not moved.any():
        return 0.0
    try:
        with np.errstate(all="ignore"):
            return float(np.hypot(*np.linalg.solve(to_image[:, :2], moved.T)).max())
    except np.linalg.LinAlgError:  # pixels without area
        return math.inf


def check_label(label: Path, image: RasterInfo) -> None:
    """Refuse a label that does not match its image."""
    for _, text in alignment_errors(image, raster_info(label)):
        raise DatasetError(text)
