"""Conversion of class maps to a file of polygons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from tqdm import tqdm

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.extras.vectors.options import PolygonOptions
from segmenter.extras.vectors.polygons import Joiner, Polygons
from segmenter.extras.vectors.slivers import Slivers
from segmenter.extras.vectors.writing import Batch, polygon_file
from segmenter.grid.components import STRIP_PIXELS, Strip, components
from segmenter.grid.labels import IGNORE
from segmenter.grid.windows import row_strips
from segmenter.raster import RasterInfo, pixel_sides
from segmenter.raster.crs_units import same_ground
from segmenter.raster.polygons import lengths_stretch, on_equal_area
from segmenter.raster.written_map import WrittenMap

_AT_ONCE = 20_000
"""Least number of polygons written at once: a GeoPackage is reopened for each batch."""


def vectorise(maps: Sequence[Path], output: Path, options: PolygonOptions, *, progress: bool = True) -> int:
    """Write the polygons of all maps to one GeoPackage or GeoParquet file; return their number.

    Without `min_area` and `simplify`, rasterising the polygons gives the same maps again.

    Raises:
        SegmenterError: a map cannot be read, maps have several CRSs, a class of `only` is in no map, or the
            file cannot be written. No file is left then.
    """
    crs = _check(maps, options)
    count = 0
    with polygon_file(output, crs) as write:
        for path in maps:
            count += _one(path, options, write, progress)
    return count


def _check(maps: Sequence[Path], options: PolygonOptions) -> Any:
    """Check that the maps fit into one file; return their CRS."""
    named: set[str] = set()
    infos = []
    for path in maps:
        with WrittenMap(path) as one:
            named |= {each.name for each in one.classes}
            infos.append(one.info)
    check_together(infos)
    if unknown := [name for name in options.only if name not in named]:
        raise SegmenterError("--only", f"no class {unknown[0]}; there are {', '.join(sorted(named))}")
    return infos[0].crs if infos else None


def check_together(infos: Sequence[RasterInfo]) -> None:
    """Refuse rasters of which no polygons can be in one file.

    Raises:
        DatasetError: naming the first.
    """
    for info in infos:
        check_placed(info)
        if not same_ground(info.crs, infos[0].crs):
            raise DatasetError(
                info.path,
                expected=f"the CRS of {infos[0].path}",
                got="another one",
                remedy="write their polygons to files of their own",
            )


def check_placed(info: RasterInfo) -> None:
    """Refuse a raster whose pixels are not placed by a transform.

    Raises:
        DatasetError: it has control points or RPCs.
    """
    if info.gcps or info.rpcs is not None:
        raise DatasetError(
            info.path,
            expected="a grid that is placed by a transform, it has control points or RPCs",
            remedy="warp it first (gdalwarp)",
        )


def _one(path: Path, options: PolygonOptions, write: Callable[[Batch], None], progress: bool) -> int:
    with WrittenMap(path) as one:
        passes = 2 if options.min_area else 1
        total = one.info.size.pixels * passes
        with tqdm(total=total, desc=path.name, unit="px", unit_scale=True, disable=not progress) as bar:
            classes = _classes(one, options, bar)
            waiting: list[Polygons] = []
            count = held = 0
            for polygons in _polygons(one, options, classes, bar):
                waiting.append(_chosen(polygons, one, options))
                held += len(waiting[-1])
                if held >= _AT_ONCE:
                    count += _write(waiting, one, write)
                    waiting, held = [], 0
            return count + _write(waiting, one, write)


def _classes(one: WrittenMap, options: PolygonOptions, bar: Any) -> Iterator[NDArray[np.uint8]] | None:
    """Return for each strip its components' classes after merging slivers; None if nothing changes."""
    if not options.min_area:
        return None
    info = one.info
    area_H = pixel_square_metres(info)
    if area_H is None:
        area_H = np.ones(info.size.height)
    slivers = Slivers(options.min_area)
    for window in row_strips(info.size, STRIP_PIXELS):
        rows, _ = window.slices()
        slivers.add(components(window, one.read(window)[0]), area_H[rows], pixel_sides(info) or (1.0, 1.0))
        bar.update(window.size.pixels)
    return slivers.classes()


def _polygons(
    one: WrittenMap, options: PolygonOptions, classes: Iterator[NDArray[np.uint8]] | None, bar: Any
) -> Iterator[Polygons]:
    simplify = options.simplify / (one.info.metres_per_pixel or 1.0)
    joiner = Joiner(simplify)
    for window in row_strips(one.info.size, STRIP_PIXELS):
        ids, confidence = one.read(window)
        if classes is not None:
            strip: Strip = components(window, ids)
            ids = next(classes)[strip.labels]
        yield joiner.add(components(window, ids, nodata=simplify > 0), confidence)
        bar.update(window.size.pixels)
    yield joiner.end(confidence=one.has_confidence)


def _chosen(polygons: Polygons, one: WrittenMap, options: PolygonOptions) -> Polygons:
    """Return the polygons with data that were requested."""
    ids = [i for i, each in enumerate(one.classes) if not options.only or each.name in options.only]
    return polygons.of(np.isin(polygons.class_P, ids) & (polygons.class_P != IGNORE))


def _write(waiting: Sequence[Polygons], one: WrittenMap, write: Callable[[Batch], None]) -> int:
    polygons = Polygons.together(waiting)
    if not len(polygons):
        return 0
    shapes = shapely.normalize(on_the_ground(polygons.shape_P, one.info))
    names, codes = zip(*((each.name, each.code) for each in one.classes), strict=True)
    mean = None if polygons.confidence_P is None else polygons.confidence_P / polygons.pixels_P
    columns: dict[str, NDArray[Any] | None] = {
        "class": np.array(names, object)[polygons.class_P],
        "class_id": polygons.class_P.astype(np.int32),
        "code": np.array(codes, np.int32)[polygons.class_P],
        "pixels": polygons.pixels_P,
        "area_m2": square_metres(shapes, one.info),
        "confidence": mean,
        "map": np.full(len(polygons), one.info.path.name, object),
    }
    write(Batch(shapely.to_wkb(shapes), columns))
    return len(polygons)


# --------------------------------------------------------------------------------- areas on the ground


def square_metres(shape_P: NDArray[Any], info: RasterInfo) -> NDArray[np.float64] | None:
    """Return the area of each polygon in square metres; None if the CRS does not measure the ground.

    For degrees and Mercator projections it is computed in an equal-area projection, else in the plane.
    """
    crs = info.crs
    if crs is None or info.transform is None:
        return None
    if lengths_stretch(crs):
        equal = shapely.transform(shape_P, lambda xy: on_equal_area(crs, xy))
        areas: NDArray[np.float64] = shapely.area(equal)
        return None if np.isnan(areas).any() else areas
    if not crs.is_projected:
        return None
    return np.asarray(shapely.area(shape_P)) * float(crs.linear_units_factor[1]) ** 2


def on_the_ground(shape_P: NDArray[Any], info: RasterInfo) -> NDArray[Any]:
    """Convert polygons from columns and rows to the map's CRS; unchanged without georeference."""
    move = info.transform
    if move is None:
        return shape_P
    turn = np.array([[move.a, move.d], [move.b, move.e]])
    moved: NDArray[Any] = shapely.transform(shape_P, lambda xy: xy @ turn + (move.c, move.f))
    return moved


def pixel_square_metres(info: RasterInfo) -> NDArray[np.float64] | None:
    """Return the area of a pixel in each row of a map, at its middle column; None if unknown."""
    rows, middle = np.arange(info.size.height), info.size.width // 2
    if info.crs is not None and info.crs.is_projected and not lengths_stretch(info.crs):
        rows = rows[:1]  # all are alike
    cells = shapely.box(middle, rows, middle + 1, rows + 1)
    area = square_metres(on_the_ground(np.atleast_1d(cells), info), info)
    return None if area is None else np.broadcast_to(area, info.size.height)
