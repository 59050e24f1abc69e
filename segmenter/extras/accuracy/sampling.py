"""Stratified random sample of the pixels of class maps, as points to label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from tqdm import tqdm

from segmenter.base.errors import DatasetError, SegmenterError, counted
from segmenter.base.files import check_writable
from segmenter.base.terminal import aligned, no_bar
from segmenter.extras.accuracy.allocation import POINTS, Plan, expected_accuracies, most_points
from segmenter.extras.accuracy.chips import write_chips
from segmenter.extras.accuracy.covers import (
    ClassStrata,
    Cover,
    GridStrata,
    MapStrata,
    Strata,
    beside,
    windows,
)
from segmenter.extras.accuracy.points import Sampled, write_points
from segmenter.extras.accuracy.request import SampleRequest
from segmenter.extras.accuracy.reservoirs import Reservoirs
from segmenter.extras.accuracy.units import unit_for
from segmenter.extras.vectors.given import maps_in
from segmenter.extras.vectors.vectorise import pixel_square_metres
from segmenter.pages.parts import percent
from segmenter.raster import RasterInfo, outlines, quiet_gdal

_MOST_SHARED = 0.01
"""Share of a map that another may cover: corners moved to another CRS are not exact."""
_LISTED = 20
"""Strata that are listed."""


def sample(
    given: Sequence[Path], output: Path, request: SampleRequest, *, progress: bool = True
) -> list[str]:
    """Write the points of a sample of maps; return what to print.

    Raises:
        SegmenterError: a map cannot be read or lies over another, classes differ, or the request cannot be
            met. No file is left then.
    """
    if output.suffix != ".gpkg":
        raise SegmenterError(f"{output}: expected a name that ends in .gpkg, got {output.suffix!r}")
    check_writable(output)
    quiet_gdal()
    maps = maps_in(given)
    names, infos = _headers(maps, request)
    areas, unit = _pixel_areas(infos)
    _check_apart(infos)
    strata = _strata(request, names, infos)
    reservoirs = Reservoirs(
        strata.count, most_points(request.points, request.error, request.floor), request.seed
    )
    tally = _Tally(np.zeros(strata.count, np.int64), np.zeros(strata.count), np.zeros(len(names)))
    total = sum(info.size.pixels for info in infos)
    with tqdm(total=total, unit="px", unit_scale=True, disable=no_bar(None if progress else True)) as bar:
        for number, path in enumerate(maps):
            _pass(number, path, request, strata, reservoirs, tally, areas[number], bar)
    present = np.flatnonzero(tally.pixels_H)
    if not len(present):
        raise DatasetError("the maps: expected pixels with data, got none; nothing can be drawn")
    titles = tuple(strata.name(int(stratum)) for stratum in present)
    plan = _plan(request, tally, present, titles)
    points_H = plan.points(
        (request.points or POINTS) if request.error is None else plan.size_for(request.error)
    )
    wanted = np.zeros(strata.count, np.int64)
    wanted[present] = points_H
    drawn = reservoirs.drawn(wanted)
    number_H = np.full(strata.count, -1)
    number_H[present] = np.arange(len(present))
    mixed = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(1 << 31,)))
    drawn = drawn.of(mixed.permutation(len(drawn)))  # so that nobody labels stratum by stratum
    sampled = Sampled(
        classes=names,
        strata=titles,
        pixels_H=tally.pixels_H[present],
        area_H=tally.area_H[present],
        mapped_area_K=tally.mapped_area_K,
        unit=unit,
        points_H=points_H,
        stratum_N=number_H[drawn.stratum],
        pixels=drawn,
        area_N=_areas_of(drawn, areas),
        infos=infos,
    )
    if request.chips is None:
        write_points(sampled, output)
    else:
        write_chips(sampled, request.chips, output, lambda: write_points(sampled, output))
    return _account(sampled, plan, tally, output)


@dataclass
class _Tally:
    """Pixels and area of each stratum, area of each class, and pixels that are in no stratum."""

    pixels_H: NDArray[np.int64]
    area_H: NDArray[np.float64]
    mapped_area_K: NDArray[np.float64]
    outside: int = 0

    def add(self, stratum_HW: NDArray[np.int64], mapped_HW: NDArray[np.int64], row_area: Any) -> None:
        inside = stratum_HW >= 0
        self.outside += int(np.count_nonzero((mapped_HW >= 0) & ~inside))
        alike = bool((row_area == row_area[0]).all())
        weights = None if alike else np.broadcast_to(row_area[:, np.newaxis], inside.shape).reshape(-1)
        ids = stratum_HW.reshape(-1) + 1
        pixels_H = np.bincount(ids, minlength=len(self.pixels_H) + 1)[1:]
        self.pixels_H += pixels_H
        self.area_H += (
            pixels_H * row_area[0] if weights is None else np.bincount(ids, weights, len(self.area_H) + 1)[1:]
        )
        classes = np.where(inside, mapped_HW, -1).reshape(-1) + 1
        area_K = np.bincount(classes, weights, len(self.mapped_area_K) + 1)[1:]
        self.mapped_area_K += area_K * row_area[0] if weights is None else area_K


def _pass(
    number: int,
    path: Path,
    request: SampleRequest,
    strata: Strata,
    reservoirs: Reservoirs,
    tally: _Tally,
    row_area: NDArray[np.float64],
    bar: Any,
) -> None:
    """Read one map once."""
    with Cover(path, _older(request, path)) as cover, strata.opened(number, path, cover.info):
        bar.set_description(path.name)
        for window in windows(cover.info):
            mapped_HW = cover.read(window)
            stratum_HW = np.where(mapped_HW >= 0, strata.read(window, mapped_HW), -1)
            tally.add(stratum_HW, mapped_HW, row_area[window.row : window.row_stop])
            reservoirs.add(number, window, stratum_HW, mapped_HW)
            bar.update(window.size.pixels)


# --------------------------------------------------------------------------------------------- the maps


def _older(request: SampleRequest, path: Path) -> Path | None:
    return None if request.before is None else beside(request.before, path)


def _headers(maps: Sequence[Path], request: SampleRequest) -> tuple[tuple[str, ...], list[RasterInfo]]:
    """Return the classes of all maps, and their headers."""
    names: tuple[str, ...] = ()
    infos: list[RasterInfo] = []
    for path in maps:
        with Cover(path, _older(request, path)) as cover:
            if infos and cover.names != names:
                raise DatasetError(
                    f"{path}: expected the classes of {maps[0]} ({', '.join(names)}), got "
                    f"{', '.join(cover.names)}; sample them apart"
                )
            names = cover.names
            infos.append(cover.info)
    return names, infos


def _pixel_areas(infos: Sequence[RasterInfo]) -> tuple[list[NDArray[np.float64]], str]:
    """Return the area of a pixel in each row of each map, and its unit: m2, or px without georeference."""
    areas = [pixel_square_metres(info) for info in infos]
    known = [area is not None for area in areas]
    if any(known) and not all(known):
        wrong = infos[known.index(False)].path
        raise DatasetError(
            f"{wrong}: expected a CRS with metres or degrees as {infos[known.index(True)].path} has one, for "
            "areas; sample it apart, or give it one (gdal_edit.py -a_srs)"
        )
    if not all(known):
        return [np.ones(info.size.height) for info in infos], "px"
    return [area for area in areas if area is not None], "m2"


def _check_apart(infos: Sequence[RasterInfo]) -> None:
    """Refuse maps that lie over each other: their pixels would count twice."""
    if twice := [info.path for info in infos if [other.path for other in infos].count(info.path) > 1]:
        raise DatasetError(f"{twice[0]}: expected each map once, got it twice")
    corners = outlines(infos)
    placed = [i for i, points in enumerate(corners) if points is not None]
    shapes = shapely.make_valid(np.array([shapely.Polygon(corners[i]) for i in placed], object))
    tree = shapely.STRtree(shapes)
    for one, other in np.transpose(tree.query(shapes, predicate="intersects")):
        smaller = min(shapes[one].area, shapes[other].area)
        shared = shapes[one].intersection(shapes[other]).area
        if one < other and smaller > 0 and shared > _MOST_SHARED * smaller:
            raise DatasetError(
                f"{infos[placed[other]].path}: lies over {infos[placed[one]].path} by "
                f"{percent(shared / smaller)} of the smaller one, whose pixels would count twice; cut "
                "them apart, or map them as one raster (gdalwarp)"
            )


# ----------------------------------------------------------------------------------- strata and points


def _strata(request: SampleRequest, names: tuple[str, ...], infos: Sequence[RasterInfo]) -> Strata:
    if request.strata is not None:
        return MapStrata(request.strata)
    if request.grid is not None:
        return GridStrata(request.grid, infos)
    return ClassStrata(names)


def _plan(request: SampleRequest, tally: _Tally, present: NDArray[Any], titles: tuple[str, ...]) -> Plan:
    users = np.array(list(expected_accuracies(request.expect, titles).values()))
    spread_H = np.sqrt(users * (1 - users))
    return Plan(tally.area_H[present], tally.pixels_H[present], spread_H, request.allocation, request.floor)


def _areas_of(drawn: Any, areas: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.array([areas[i][row] for i, row in zip(drawn.raster, drawn.row, strict=True)], np.float64)


def _account(sampled: Sampled, plan: Plan, tally: _Tally, output: Path) -> list[str]:
    shown = unit_for(sampled.unit, float(sampled.area_H.sum()))
    rows = [
        [name, f"{area * shown.factor:,.4g}", percent(float(area / sampled.area_H.sum())), f"{points:,}"]
        for name, area, points in zip(sampled.strata, sampled.area_H, sampled.points_H, strict=True)
    ]
    lines = aligned(["stratum", f"area,{shown.sign}", "share", "points"], rows[:_LISTED])
    if len(rows) > _LISTED:
        lines.append(f"… and {len(rows) - _LISTED} more")
    if tally.outside:
        lines.append(f"{counted(tally.outside, 'mapped pixel')} in no stratum left out")
    absent = [name for name, area in zip(sampled.classes, sampled.mapped_area_K, strict=True) if not area]
    if absent:
        lines.append(f"on no map: {', '.join(absent[:_LISTED])}")
    lines.append(
        f"{output}: {counted(len(sampled.pixels), 'point')}; expected standard error of overall accuracy "
        f"{plan.error(sampled.points_H):.4f}"
    )
    return lines
