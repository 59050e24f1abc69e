"""Stratified random sample of the pixels of class maps, as points to label.

With W_h a stratum's share of the area, U_h the user's accuracy expected in it and S_h = √(U_h (1 - U_h)), n_h
points give overall accuracy the variance sum_h W_h² S_h² (1 / n_h - 1 / N_h) (Cochran 1977, section 5.9).
Neyman's allocation, n_h in proportion to W_h S_h, needs the fewest: equation 13 of Olofsson et al. 2014.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import ConfigError, DatasetError, SegmenterError, counted
from segmenter.base.files import check_writable, folder_aside
from segmenter.base.terminal import fit_table
from segmenter.evaluation.drawing import save_pixels
from segmenter.evaluation.layers import stretch_picture
from segmenter.extras.accuracy.covers import (
    GridStrata,
    MapStrata,
    Pixels,
    Reservoirs,
    SampledMap,
    Strata,
    check_same_grid,
    file_for_map,
    windows,
)
from segmenter.extras.accuracy.estimators import unit_for, whole_area
from segmenter.extras.accuracy.points import Sampled, write_points
from segmenter.extras.accuracy.request import Allocation, SampleRequest
from segmenter.extras.accuracy.tally import Chances, PixelSizes, StratumTally
from segmenter.extras.written_map import maps_in
from segmenter.grid.geometry import Window
from segmenter.grid.stretch import Stretch
from segmenter.pages.parts import percent
from segmenter.raster import (
    Raster,
    RasterInfo,
    open_raster,
    outlines,
    quiet_gdal,
    raster_info,
    scene_stretch,
)
from segmenter.raster.pixel_areas import PixelAreas, counted_pixels, pixel_areas

POINTS, FLOOR = 600, 50
"""Defaults. Olofsson et al. 2014 advise 50 to 100 points of each rare class."""
_LEAST = 2
"""Points of a stratum without which there is no variance."""


@dataclass(frozen=True, eq=False)
class SamplePlan:
    """Strata to draw from.

    Attributes:
        weight_H: area of each stratum, in any unit.
        pixels_H: number of its pixels.
        spread_H: S_h of this module's docstring.
        floor: least points of a stratum, at least two; None: `FLOOR`, or half of an equal part if fewer.
    """

    weight_H: NDArray[np.float64]
    pixels_H: NDArray[np.int64]
    spread_H: NDArray[np.float64]
    allocation: Allocation
    floor: int | None = None

    @property
    def _part_H(self) -> NDArray[np.float64]:
        return self.weight_H / self.weight_H.sum()

    def points(self, total: int) -> NDArray[np.int64]:
        """Return the (H,) points of each stratum.

        Raises:
            DatasetError: there are fewer pixels, or too few points for the strata.
        """
        self._check(total)
        exact_H = self._exact(total)
        points_H = np.floor(exact_H + 1e-9).astype(np.int64)
        rest = total - int(points_H.sum())
        order = np.lexsort((np.arange(len(exact_H)), points_H - exact_H))  # the largest remainders first
        points_H[order[:rest]] += 1
        return points_H

    def _check(self, total: int) -> None:
        if total > (pixels := int(self.pixels_H.sum())):
            raise DatasetError(
                "--points", expected=f"at most the {counted(pixels, 'pixel')} with data", got=total
            )
        check_strata(self.pixels_H, total, self.floor)

    def _exact(self, total: float) -> NDArray[np.float64]:
        """Return points that need not be whole: in proportion, but between floor and pixels."""
        share_H = {
            "proportional": self._part_H,
            "equal": np.ones_like(self._part_H),
            "neyman": self._part_H * self.spread_H,
        }[self.allocation]
        share_H = np.maximum(share_H, 1e-12 * self._part_H)  # also of a stratum that is expected to be right
        floor = min(FLOOR, total / (2 * len(share_H))) if self.floor is None else self.floor
        least_H = np.minimum(max(floor, _LEAST), self.pixels_H)

        def at(scale: float) -> NDArray[np.float64]:
            clipped: NDArray[np.float64] = np.clip(scale * share_H, least_H, self.pixels_H)
            return clipped

        low, high = 0.0, float((self.pixels_H / share_H).max())
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle).sum() < total else (low, middle)
        return at(high)

    def error(self, points_H: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return the expected standard error of overall accuracy.

        Points are drawn by area, so that each counts the same. Where some pixels are so large that they are
        taken for certain, the error is smaller.
        """
        variance_H = (self._part_H * self.spread_H) ** 2 * (1 / points_H - 1 / self.pixels_H)
        return math.sqrt(max(0.0, float(variance_H.sum())))

    def size_for(self, error: float) -> int:
        """Return the least number of points that give overall accuracy a standard error."""
        floor = max(self.floor or _LEAST, _LEAST)
        low, high = int(np.minimum(self.pixels_H, floor).sum()) - 1, int(self.pixels_H.sum())
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.error(self._exact(middle)) <= error else (middle, high)
        return high


def expected_accuracies(text: str, names: Sequence[str]) -> list[float]:
    """Return the expected user's accuracy of each stratum from `0.8` or `building=0.7,road=0.6`.

    Strata that are not named have 0.8.

    Raises:
        ConfigError: a stratum is unknown, or a share is not between 0 and 1.
    """
    found, given = dict.fromkeys(names, 0.8), ""
    for part in text.split(","):  # a name may hold commas
        given = f"{given},{part}" if given else part
        name, equals, number = given.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            continue
        if not 0 <= share <= 1 or (equals and name.strip() not in found):
            break
        found |= {name.strip(): share} if equals else dict.fromkeys(names, share)
        given = ""
    if given:
        raise ConfigError(
            f"--expect: expected shares from 0 to 1, as 0.8 or building=0.7,road=0.6, of the strata "
            f"{', '.join(names[:20])}; got {given!r}"
        )
    return list(found.values())


def check_strata(pixels_H: NDArray[np.int64], total: int, floor: int | None) -> None:
    """Refuse a number of points that is too small for the strata that have pixels.

    Raises:
        DatasetError: there are not enough.
    """
    floor = max(floor or _LEAST, _LEAST)
    least, strata = int(np.minimum(pixels_H, floor).sum()), int(np.count_nonzero(pixels_H))
    if total < least:
        raise DatasetError(
            "--points",
            expected=f"at least {least}, {floor} for each of {counted(strata, 'stratum', 'strata')}",
            got=total,
            remedy="take more points or fewer strata",
        )


_SIDE, _ZOOM = 129, 4
"""Pixels of a chip's side, odd so that the point is in the middle, and picture pixels of one."""
_FRAME = (255, 0, 255)
_ENDINGS = (".tif", ".tiff", ".png", ".jpg", ".jpeg")


def write_chips(sampled: Sampled, images: Path, folder: Path) -> None:
    """Write `FOLDER/FID.png` for each point into a new folder.

    Raises:
        DatasetError: an image is missing or lies elsewhere than its map.
        RasterError: an image cannot be read.
    """
    raster_N = sampled.pixels.raster
    infos = {number: sampled.infos[number] for number in np.unique(raster_N).tolist()}
    files = {number: file_for_map(images, info.path, _ENDINGS) for number, info in infos.items()}
    folder.mkdir()
    with Bar(total=len(raster_N), unit="chip", desc="chips") as bar:
        for number, file in files.items():
            header = raster_info(file)
            check_same_grid(infos[number], header)
            with open_raster(file, (1, 2, 3) if header.count >= 3 else (1,)) as raster:
                stretch = scene_stretch(raster)
                for place in np.flatnonzero(raster_N == number).tolist():
                    row, col = int(sampled.pixels.row[place]), int(sampled.pixels.col[place])
                    save_pixels(_chip(raster, stretch, row, col), folder / f"{place + 1}.png")
                    bar.update()


def _chip(raster: Raster, stretch: Stretch | None, row: int, col: int) -> NDArray[np.uint8]:
    half = _SIDE // 2
    picture = stretch_picture(*raster.read(Window(row - half, col - half, _SIDE, _SIDE)), stretch)
    picture = picture.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
    first, last = half * _ZOOM - 2, (half + 1) * _ZOOM + 1
    picture[[first, last], first : last + 1] = _FRAME
    picture[first : last + 1, [first, last]] = _FRAME
    return picture


_MOST_SHARED = 0.01
"""Share of a map that another may cover: corners moved to another CRS are not exact."""
_LISTED = 20
"""Strata that are listed."""
_UNLIKE = 1.1
"""Ratio of pixel areas from which on it is said."""
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
    pixels = 2 * sum(info.size.pixels for info in frame.infos)
    with Bar(total=pixels, desc="maps", unit="px", unit_scale=True) as bar:
        return _sample(frame, request, bar)


def _sample(frame: _Frame, request: SampleRequest, bar: Any) -> list[str]:
    tally = _count_frame(frame, request, bar)
    present = np.flatnonzero(tally.pixels_H)
    if not len(present):
        raise DatasetError(
            expected="maps with data, all their pixels are without", remedy="nothing can be drawn"
        )
    titles = tuple(frame.strata.name(int(stratum)) for stratum in present)
    users_H = np.array(expected_accuracies(request.expect, titles))
    plan = SamplePlan(
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
    chances = tally.chances(wanted)
    drawn = _draw_points(frame, request, chances, wanted, bar)
    mixed = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(_ORDER,)))
    drawn = drawn.of(mixed.permutation(len(drawn)))  # so that nobody labels stratum by stratum
    area_N = np.zeros(len(drawn))
    for number, areas in enumerate(frame.areas):
        of = drawn.raster == number
        area_N[of] = areas.at(drawn.row[of], drawn.col[of])
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
        area_N=area_N,
        probability_N=chances.of(drawn.stratum, area_N),
        infos=frame.infos,
    )
    _publish(sampled, request)
    lines = _account(sampled, tally.outside)
    if tally.sizes.unlike > _UNLIKE:
        lines.append(
            f"pixels differ in area by up to {tally.sizes.unlike:.3g} times: drawn in proportion to it"
        )
    error = plan.error(points_H)
    return [
        *lines,
        f"{request.output}: {counted(len(drawn), 'point')}; expected overall accuracy ± {1.96 * error:.1%}",
    ]


def _publish(sampled: Sampled, request: SampleRequest) -> None:
    """Write the points, and their chips if asked for; those of an older sample have the same numbers."""
    chips = request.output.with_suffix(".chips")
    with folder_aside(chips) as aside:
        if request.chips is not None:
            write_chips(sampled, request.chips, aside / chips.name)
        shutil.rmtree(chips, ignore_errors=True)
        write_points(sampled, request.output)
        if request.chips is not None:
            (aside / chips.name).rename(chips)


# ------------------------------------------------------------------------------------------------ maps


@dataclass(frozen=True)
class _Frame:
    """Maps that are sampled: headers, classes, strata, and the areas of each map's pixels."""

    infos: list[RasterInfo]
    names: tuple[str, ...]
    strata: Strata
    areas: list[PixelAreas]
    unit: str


def _frame(maps: Sequence[Path], request: SampleRequest) -> _Frame:
    names: tuple[str, ...] = ()
    infos: list[RasterInfo] = []
    for path in maps:
        with SampledMap(path, _older(request, path)) as cover:
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
    areas = [pixel_areas(info) for info in infos]
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
    pixels = [counted_pixels() for _ in infos]
    return _Frame(infos, names, strata, known or pixels, "m2" if known else "px")


def _older(request: SampleRequest, path: Path) -> Path | None:
    return None if request.before is None else file_for_map(request.before, path)


def _check_apart(infos: Sequence[RasterInfo]) -> None:
    """Refuse maps that lie over each other: their pixels would count twice."""
    paths = [info.path for info in infos]
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


def _count_frame(frame: _Frame, request: SampleRequest, bar: Any) -> StratumTally:
    """Read each map, and count its pixels."""
    tally = StratumTally(
        PixelSizes(frame.areas), np.zeros(frame.strata.count, np.int64), np.zeros(len(frame.names))
    )
    for number, window, stratum, mapped, outside in _windows(frame, request, bar):
        tally.outside += outside
        tally.add(stratum, mapped, frame.areas[number].of(window))
        if request.error is None:  # early, since there may be many strata
            check_strata(tally.pixels_H, request.points or POINTS, request.floor)
    return tally


def _draw_points(
    frame: _Frame, request: SampleRequest, chances: Chances, points_H: NDArray[np.int64], bar: Any
) -> Pixels:
    """Read each map again, and draw points of each stratum."""
    reservoirs = Reservoirs(frame.strata.count, points_H, request.seed)
    for number, window, stratum, mapped, _ in _windows(frame, request, bar):
        chance = chances.of(stratum, frame.areas[number].of(window))
        reservoirs.add(number, window, stratum, mapped, chance)
    return reservoirs.sample(points_H)


def _windows(
    frame: _Frame, request: SampleRequest, bar: Any
) -> Iterator[tuple[int, Window, NDArray[np.int64], NDArray[np.int64], int]]:
    """Yield number of the map, window, strata and classes (-1: none), and mapped pixels in no stratum."""
    for number, info in enumerate(frame.infos):
        bar.set_description(info.path.name)
        older = _older(request, info.path)
        with SampledMap(info.path, older) as cover, frame.strata.open_map(number, info.path, info):
            for window in windows(info):
                mapped = cover.read(window)
                stratum = np.where(mapped >= 0, frame.strata.read(window, mapped), -1)
                outside = int(np.count_nonzero((mapped >= 0) & (stratum < 0)))
                yield number, window, stratum, np.where(stratum >= 0, mapped, -1), outside
                bar.update(window.size.pixels)


def _account(sampled: Sampled, outside: int) -> list[str]:
    """Return the lines of a table of strata, and what was left out."""
    total = float(sampled.area_H.sum())
    shown = unit_for(sampled.unit, total)
    rows = [
        [name, whole_area(float(area) * shown.factor), percent(float(area) / total), f"{points:,}"]
        for name, area, points in zip(sampled.strata, sampled.area_H, sampled.points_H, strict=True)
    ]
    lines = fit_table(["stratum", f"area,{shown.sign}", "share", "points"], rows[:_LISTED])
    lines += [f"… and {len(rows) - _LISTED} more"] * (len(rows) > _LISTED)
    lines += [f"{counted(outside, 'mapped pixel')} in no stratum left out"] * (outside > 0)
    absent = [name for name, area in zip(sampled.classes, sampled.mapped_area_K, strict=True) if not area]
    lines += [f"on no map: {', '.join(absent[:_LISTED])}"] * bool(absent)
    return lines
