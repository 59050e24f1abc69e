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
from segmenter.extras.accuracy.allocation import POINTS, Plan, check_strata, expected_accuracies, most_points
from segmenter.extras.accuracy.chips import write_chips
from segmenter.extras.accuracy.covers import Cover, GridStrata, MapStrata, Strata, beside, windows
from segmenter.extras.accuracy.points import Sampled, write_points
from segmenter.extras.accuracy.request import SampleRequest
from segmenter.extras.accuracy.reservoirs import Reservoirs
from segmenter.extras.accuracy.units import unit_for, whole_area
from segmenter.extras.vectors.map_files import maps_in
from segmenter.extras.vectors.vectorise import pixel_square_metres
from segmenter.pages.parts import percent
from segmenter.raster import RasterInfo, outlines, quiet_gdal

_MOST_SHARED = 0.01
"""Share of a map that another may cover: corners moved to another CRS are not exact."""
_LISTED = 20
"""Strata that are listed."""
_ORDER = 1 << 31
"""Key of the random order of points, other than those of maps."""


def sample(request: SampleRequest) -> list[str]:
    """Write the points of a sample of maps; return what to print.

    Raises:
        SegmenterError: a map cannot be read or lies over another, classes differ, or the request cannot be
            met. No file is left then.
    """
    output = request.output
    if output.suffix != ".gpkg":
        raise SegmenterError(output, expected="a name that ends in .gpkg", got=f"{output.suffix!r}")
    check_writable(output)
    quiet_gdal()
    frame = _frame(maps_in(request.maps), request)
    tally, reservoirs = _pass(frame, request)
    present = np.flatnonzero(tally.pixels_H)
    if not len(present):
        raise DatasetError(
            expected="maps with data, all their pixels are without", remedy="nothing can be drawn"
        )
    titles = tuple(frame.strata.name(int(stratum)) for stratum in present)
    users_H = np.array(expected_accuracies(request.expect, titles))
    plan = Plan(
        tally.area_H[present],
        tally.pixels_H[present],
        np.sqrt(users_H * (1 - users_H)),
        request.allocation,
        request.floor,
    )
    points_H = plan.points(
        (request.points or POINTS) if request.error is None else plan.size_for(request.error)
    )
    wanted = np.zeros(frame.strata.count, np.int64)
    wanted[present] = points_H
    drawn = reservoirs.drawn(wanted)
    mixed = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(_ORDER,)))
    drawn = drawn.of(mixed.permutation(len(drawn)))  # so that nobody labels stratum by stratum
    sampled = Sampled(
        classes=frame.names,
        strata=titles,
        pixels_H=plan.pixels_H,
        area_H=plan.weight_H,
        mapped_area_K=tally.mapped_area_K,
        unit=frame.unit,
        points_H=points_H,
        stratum_N=np.searchsorted(present, drawn.stratum),
        pixels=drawn,
        area_N=np.array([frame.areas[i][row] for i, row in zip(drawn.raster, drawn.row, strict=True)]),
        infos=frame.infos,
    )
    if request.chips is not None:
        write_chips(sampled, request.chips, output.with_suffix(".chips"))
    write_points(sampled, output)
    lines = _account(sampled, tally.outside)
    error = plan.error(points_H)
    return [
        *lines,
        f"{output}: {counted(len(drawn), 'point')}; expected overall accuracy ± {1.96 * error:.1%}",
    ]


# ------------------------------------------------------------------------------------------------ maps


@dataclass(frozen=True)
class _Frame:
    """Maps that are sampled: headers, classes, strata, and the area of a pixel in each row of each map."""

    infos: list[RasterInfo]
    names: tuple[str, ...]
    strata: Strata
    areas: list[NDArray[np.float64]]
    unit: str


def _frame(maps: Sequence[Path], request: SampleRequest) -> _Frame:
    names: tuple[str, ...] = ()
    infos: list[RasterInfo] = []
    for path in maps:
        with Cover(path, _older(request, path)) as cover:
            if infos and cover.names != names:
                raise DatasetError(
                    path,
                    expected=f"the classes of {maps[0]} ({', '.join(names)})",
                    got=", ".join(cover.names),
                    remedy="sample them apart",
                )
            names = cover.names
            infos.append(cover.info)
    _check_apart(infos)
    areas = [pixel_square_metres(info) for info in infos]
    known = [area for area in areas if area is not None]
    if 0 < len(known) < len(areas):
        wrong = next(info.path for info, area in zip(infos, areas, strict=True) if area is None)
        raise DatasetError(
            wrong,
            expected="a CRS with metres or degrees as the other maps have, for areas",
            remedy="sample it apart, or give it one (gdal_edit.py -a_srs)",
        )
    strata = Strata(names)
    if request.strata is not None:
        strata = MapStrata(request.strata)
    elif request.grid is not None:
        strata = GridStrata(request.grid, infos)
    pixels = [np.ones(info.size.height) for info in infos]
    return _Frame(infos, names, strata, known or pixels, "m2" if known else "px")


def _older(request: SampleRequest, path: Path) -> Path | None:
    return None if request.before is None else beside(request.before, path)


def _check_apart(infos: Sequence[RasterInfo]) -> None:
    """Refuse maps that lie over each other: their pixels would count twice."""
    paths = [info.path for info in infos]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise DatasetError(twice[0], expected="each map once", got="it twice")
    placed = [
        (path, shapely.Polygon(xy)) for path, xy in zip(paths, outlines(infos), strict=True) if xy is not None
    ]
    shapes = np.array([shape for _, shape in placed], object)
    for one, other in shapely.STRtree(shapes).query(shapes, predicate="intersects").T:
        smaller = min(shapes[one].area, shapes[other].area)
        shared = shapes[one].intersection(shapes[other]).area
        if one < other and shared > _MOST_SHARED * smaller:
            raise DatasetError(
                placed[other][0],
                f"lies over {placed[one][0]} by {percent(shared / smaller)} of the smaller one, whose "
                "pixels would count twice",
                remedy="cut them apart, or map them as one raster",
            )


# ---------------------------------------------------------------------------------------------- pixels


@dataclass
class _Tally:
    """Pixels and area of each stratum, area of each class, and number of pixels in no stratum."""

    pixels_H: NDArray[np.int64]
    area_H: NDArray[np.float64]
    mapped_area_K: NDArray[np.float64]
    outside: int = 0

    def add(self, stratum_HW: NDArray[np.int64], mapped_HW: NDArray[np.int64], row_area: Any) -> None:
        """Count a window; -1 is no stratum, and then also no class."""
        ids, classes = stratum_HW.reshape(-1) + 1, mapped_HW.reshape(-1) + 1
        alike = bool((row_area == row_area[0]).all())
        weights = None if alike else np.repeat(row_area, stratum_HW.shape[1])
        factor = row_area[0] if alike else 1.0
        self.pixels_H += (pixels_H := np.bincount(ids, minlength=len(self.pixels_H) + 1)[1:])
        area_H = pixels_H if alike else np.bincount(ids, weights, len(self.area_H) + 1)[1:]
        self.area_H += area_H * factor
        self.mapped_area_K += np.bincount(classes, weights, len(self.mapped_area_K) + 1)[1:] * factor


def _pass(frame: _Frame, request: SampleRequest) -> tuple[_Tally, Reservoirs]:
    """Read each map once."""
    strata = frame.strata
    reservoirs = Reservoirs(
        strata.count, most_points(request.points, request.error, request.floor), request.seed
    )
    tally = _Tally(np.zeros(strata.count, np.int64), np.zeros(strata.count), np.zeros(len(frame.names)))
    total = sum(info.size.pixels for info in frame.infos)
    with tqdm(total=total, unit="px", unit_scale=True, disable=no_bar()) as bar:
        for number, info in enumerate(frame.infos):
            bar.set_description(info.path.name)
            older = _older(request, info.path)
            with Cover(info.path, older) as cover, strata.opened(number, info.path, info):
                for window in windows(info):
                    mapped = cover.read(window)
                    stratum = np.where(mapped >= 0, strata.read(window, mapped), -1)
                    tally.outside += int(np.count_nonzero((mapped >= 0) & (stratum < 0)))
                    mapped = np.where(stratum >= 0, mapped, -1)
                    tally.add(stratum, mapped, frame.areas[number][window.row : window.row_stop])
                    if request.error is None:  # early, since kept pixels grow with the strata
                        check_strata(tally.pixels_H, request.points or POINTS, request.floor)
                    reservoirs.add(number, window, stratum, mapped)
                    bar.update(window.size.pixels)
    return tally, reservoirs


def _account(sampled: Sampled, outside: int) -> list[str]:
    """Return the lines of a table of strata, and what was left out."""
    total = float(sampled.area_H.sum())
    shown = unit_for(sampled.unit, total)
    rows = [
        [name, whole_area(float(area) * shown.factor), percent(float(area) / total), f"{points:,}"]
        for name, area, points in zip(sampled.strata, sampled.area_H, sampled.points_H, strict=True)
    ]
    lines = aligned(["stratum", f"area,{shown.sign}", "share", "points"], rows[:_LISTED])
    lines += [f"… and {len(rows) - _LISTED} more"] * (len(rows) > _LISTED)
    lines += [f"{counted(outside, 'mapped pixel')} in no stratum left out"] * (outside > 0)
    absent = [name for name, area in zip(sampled.classes, sampled.mapped_area_K, strict=True) if not area]
    lines += [f"on no map: {', '.join(absent[:_LISTED])}"] * bool(absent)
    return lines
