"""Conversion of class maps to a file of polygons.

Slivers of a class map merged into neighbours before polygons are made: no gaps, no overlaps. Components
smaller than the least area are processed from the smallest: each takes the class of the neighbour with the
longest shared border, and merges with all neighbours of that class; merged ones that are large enough stay. A
component without neighbours is unchanged. One pass over the map collects sizes and border lengths: memory
grows with the number of components and slivers' borders, not of pixels.

Polygons of components, strip by strip, joined across strips. Coordinates are columns and rows until the end:
whole numbers, so that parts cut at a strip's border fit exactly. A component is returned once the strip after
its last one is read; memory holds a strip and the outlines of open components.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.base.files import shortest_ends
from segmenter.base.terminal import warn
from segmenter.extras.gis.documents import is_of_others, polygon_style, style_remark
from segmenter.extras.vector_files.writing import PolygonBatch, polygon_file
from segmenter.extras.vectors.options import PolygonOptions
from segmenter.extras.written_map import WrittenMap, check_placed
from segmenter.grid.colours import default_colours
from segmenter.grid.components import STRIP_PIXELS, Strip, components, touching
from segmenter.grid.labels import IGNORE, Colour
from segmenter.grid.windows import row_strips
from segmenter.raster import RasterInfo, pixel_sides
from segmenter.raster.crs_units import same_ground
from segmenter.raster.pixel_areas import counted_pixels, pixel_areas
from segmenter.raster.polygons import equal_area, outlines_of


@dataclass(frozen=True)
class Polygons:
    """Complete components.

    Attributes:
        shape_P: shapely polygons, in columns and rows of the map.
        pixels_P: pixels of each, before simplification.
        confidence_P: sum of confidence over the pixels; None if unknown.
    """

    shape_P: NDArray[Any]
    class_P: NDArray[np.uint8]
    pixels_P: NDArray[np.int64]
    confidence_P: NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.shape_P)

    def of(self, kept_P: NDArray[np.bool_]) -> Polygons:
        """Return the selected polygons."""
        sums = None if self.confidence_P is None else self.confidence_P[kept_P]
        return Polygons(self.shape_P[kept_P], self.class_P[kept_P], self.pixels_P[kept_P], sums)

    @classmethod
    def join(cls, parts: Sequence[Polygons]) -> Polygons:
        """Join several sets of polygons."""
        sums = [part.confidence_P for part in parts if part.confidence_P is not None]
        return cls(
            np.concatenate([part.shape_P for part in parts]),
            np.concatenate([part.class_P for part in parts]),
            np.concatenate([part.pixels_P for part in parts]),
            np.concatenate(sums) if len(sums) == len(parts) else None,
        )


@dataclass
class _Open:
    """A component that reaches the strip's lower border."""

    kind: int
    shapes: list[Any] = field(default_factory=list)
    pixels: int = 0
    confidence: float = 0.0


class Joiner:
    """Joiner of strips from top to bottom: returns the polygons of the components that have ended."""

    def __init__(self, simplify: float = 0.0) -> None:
        """Store `simplify`: the tolerance in pixels, see `simplify`; 0: not at all."""
        self._simplify = simplify
        self._open: list[_Open] = []
        self._last: Strip | None = None
        self._open_of: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, strip: Strip, confidence_HW: NDArray[np.float32] | None) -> Polygons:
        """Return the polygons that end above this strip, or in it without reaching its last row."""
        count = strip.count
        shapes = self._shapes(strip)
        flat = strip.labels.ravel()
        pixels = np.bincount(flat, minlength=count + 1)[1:]
        sums = np.zeros(count)
        if confidence_HW is not None:
            sums = np.asarray(np.bincount(flat, confidence_HW.ravel(), count + 1)[1:], np.float64)
        group = self._groups(strip)  # of open components, then of this strip's
        own = group[len(self._open) :]
        reaching = np.zeros(group.max(initial=-1) + 1, np.bool_)
        bottom = np.unique(strip.labels[-1])
        reaching[own[bottom[bottom > 0] - 1]] = True
        joined = reaching.copy()
        joined[group[: len(self._open)]] = True
        alone = ~joined[own]
        groups: defaultdict[int, _Open] = defaultdict(lambda: _Open(IGNORE))
        for one, number in zip(self._open, group, strict=False):
            _add(groups[int(number)], one)
        for i in np.flatnonzero(~alone).tolist():
            kind = int(strip.class_C[i + 1])
            _add(groups[int(own[i])], _Open(kind, [shapes[i]], int(pixels[i]), float(sums[i])))
        self._open = [one for number, one in groups.items() if reaching[number]]
        open_of = {number: i for i, number in enumerate(n for n in groups if reaching[n])}
        self._open_of = np.array([-1, *(open_of.get(int(number), -1) for number in own)])
        self._last = strip
        ended = [one for number, one in groups.items() if not reaching[number]]
        known = confidence_HW is not None
        whole = Polygons(shapes, strip.class_C[1:], pixels, sums if known else None).of(alone)
        return Polygons.join([whole, _join_parts(ended, known)])

    def end(self, *, confidence: bool) -> Polygons:
        """Return the polygons that reach the last row."""
        ended, self._open, self._last = self._open, [], None
        return _join_parts(ended, confidence)

    def _groups(self, strip: Strip) -> NDArray[np.int64]:
        """Return a group number for each open component and each of the strip's; parts of one share it."""
        before, count = len(self._open), strip.count
        pairs = np.zeros((0, 2), np.int64)
        if self._last is not None:
            pairs = touching(self._last, strip)
            pairs = np.stack([self._open_of[pairs[:, 0]], pairs[:, 1] - 1 + before], axis=1)
        edges = coo_array((np.ones(len(pairs), np.bool_), tuple(pairs.T)), shape=(before + count,) * 2)
        return connected_components(edges, directed=False)[1].astype(np.int64)

    def _shapes(self, strip: Strip) -> NDArray[Any]:
        """Return a polygon for each component of a strip, in their order."""
        found = outlines_of(strip.labels, strip.window.row)
        made = shapely.from_ragged_array(
            shapely.GeometryType.POLYGON, found.xy, (found.rings, found.polygons)
        )
        shapes = np.empty(strip.count, object)
        shapes[found.value_P - 1] = made
        return simplify(shapes, self._simplify) if self._simplify else shapes


def simplify(shape_P: NDArray[Any], tolerance: float) -> NDArray[Any]:
    """Simplify the polygons of a strip without gaps: shared borders move together.

    Uses GEOS's Visvalingam-Whyatt algorithm for coverages: it removes corners whose triangle with their
    neighbours is smaller than the square of `tolerance`. The strip's outer border stays, to match the next
    strip. Remaining corners are pixel corners.
    """
    # At a point where three meet, each needs a corner, or they would be no coverage. In the end, those on
    # straight lines go again.
    dense = shapely.transform(shapely.segmentize(shape_P, 1.0), np.rint)
    moved = shapely.coverage_simplify(dense, tolerance, simplify_boundary=False)
    found: NDArray[Any] = shapely.simplify(moved, 0)
    return found


def _add(one: _Open, other: _Open) -> None:
    one.kind = other.kind
    one.shapes += other.shapes
    one.pixels += other.pixels
    one.confidence += other.confidence


def _join_parts(parts: list[_Open], confidence: bool) -> Polygons:
    shapes = np.empty(len(parts), object)
    for i, one in enumerate(parts):
        # Without corners on straight lines, which seams leave.
        whole = shapely.simplify(shapely.union_all(one.shapes), 0) if len(one.shapes) > 1 else one.shapes[0]
        shapes[i] = whole
    kinds = np.array([one.kind for one in parts], np.uint8)
    pixels = np.array([one.pixels for one in parts], np.int64)
    sums = np.array([one.confidence for one in parts], np.float64)
    return Polygons(shapes, kinds, pixels, sums if confidence else None)


_Pairs = NDArray[np.int64]
"""(n, 2) numbers of components."""
_Labels = NDArray[np.int32]
_Of = tuple[int, NDArray[np.bool_]]
"""Offset of a strip's component numbers, and which components look small in it."""


class Slivers:
    """Collects strips from top to bottom, then returns the class of each of their components."""

    def __init__(self, least: float) -> None:
        """Store `least`: area below which a component is a sliver, in the unit of `add`."""
        self._least = least
        self._class = [np.zeros(1, np.uint8)]
        self._area = [np.zeros(1)]
        self._joined: list[_Pairs] = []
        self._pairs: list[_Pairs] = []
        self._lengths: list[NDArray[np.float64]] = []
        self._first = [np.full(1, -1, np.int64)]
        self._offsets: list[int] = []
        self._count = 0
        self._last: tuple[Strip, int, NDArray[np.bool_]] | None = None

    def add(self, strip: Strip, area_HW: NDArray[np.float64], sides: tuple[float, float]) -> None:
        """Add the next strip.

        Args:
            area_HW: area of each pixel, or one for all of a row or of the strip: (H,), (H, 1) or (1, 1).
            sides: height and width of a pixel, in the same unit.
        """
        offset, labels_HW = self._count, strip.labels
        area_HW = area_HW if area_HW.ndim == 2 else area_HW[:, np.newaxis]
        weights = np.broadcast_to(area_HW, labels_HW.shape).ravel()
        area_C = np.asarray(np.bincount(labels_HW.ravel(), weights, strip.count + 1), np.float64)
        small_C = area_C < self._least
        height, width = sides
        own = offset, small_C
        self._border(labels_HW[:, :-1], labels_HW[:, 1:], height, own, own)
        self._border(labels_HW[:-1], labels_HW[1:], width, own, own)
        if self._last is not None:
            above, above_offset, above_small_C = self._last
            self._joined.append(touching(above, strip) + np.array([above_offset, offset]))
            of_above = above_offset, above_small_C
            self._border(above.labels[-1:], labels_HW[:1], width, of_above, own)
        self._class.append(strip.class_C[1:])
        self._area.append(area_C[1:])
        self._first.append(_first_pixels(strip))
        self._offsets.append(offset)
        self._count += strip.count
        self._last = strip, offset, small_C

    def _border(self, a: _Labels, b: _Labels, length: float, of_a: _Of, of_b: _Of) -> None:
        """Store the borders between adjacent pixels of which one may belong to a sliver."""
        (a_offset, a_small), (b_offset, b_small) = of_a, of_b
        apart = (a + a_offset != b + b_offset) & (a > 0) & (b > 0)
        left, right = a[apart].astype(np.int64), b[apart].astype(np.int64)
        # A part of a large component may look small here: its border is kept, and left out in the end.
        small = a_small[left] | b_small[right]
        ends = np.stack([left[small] + a_offset, right[small] + b_offset], axis=1)
        ends.sort(axis=1)
        pairs, counts = np.unique(ends, axis=0, return_counts=True)
        self._pairs.append(pairs)
        self._lengths.append(np.asarray(counts * length, np.float64))

    def classes(self) -> Iterator[NDArray[np.uint8]]:
        """Yield for each strip the class of each component; index 0 is `IGNORE`."""
        class_N = np.concatenate(self._class)
        root_N = self._roots(np.concatenate(self._first))
        area_R = np.asarray(np.bincount(root_N, np.concatenate(self._area)), np.float64)
        merged = _Merged(area_R, _of_roots(class_N, root_N))
        merged.merge(*self._root_borders(root_N), self._least)
        new_N = merged.classes()[root_N]
        for offset, kinds in zip(self._offsets, self._class[1:], strict=True):
            yield np.concatenate([np.full(1, IGNORE, np.uint8), new_N[offset + 1 : offset + 1 + len(kinds)]])

    def _roots(self, first_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the whole component of each part, ordered by first pixels.

        Number 0 stands alone. The order breaks ties, independent of the strips.
        """
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *self._joined])
        edges = coo_array((np.ones(len(pairs), np.bool_), tuple(pairs.T)), shape=(self._count + 1,) * 2)
        count, root_N = connected_components(edges, directed=False)
        first_R = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(first_R, root_N, first_N)
        rank_R = np.empty(count, np.int64)
        rank_R[np.argsort(first_R)] = np.arange(count)
        return rank_R[root_N]

    def _root_borders(self, root_N: NDArray[np.int64]) -> tuple[_Pairs, NDArray[np.float64]]:
        ends = root_N[np.concatenate([np.zeros((0, 2), np.int64), *self._pairs])]
        lengths = np.concatenate([np.zeros(0), *self._lengths])
        apart = ends[:, 0] != ends[:, 1]
        pairs, of = np.unique(np.sort(ends[apart], axis=1), axis=0, return_inverse=True)
        summed = np.bincount(of.ravel(), lengths[apart], len(pairs))
        return pairs, np.asarray(summed, np.float64)


class _Merged:
    """Components being merged: their areas, classes and borders."""

    def __init__(self, area_R: NDArray[np.float64], class_R: NDArray[np.uint8]) -> None:
        self._area, self._class, self._rank = area_R, class_R, list(range(len(area_R)))
        self._into: dict[int, int] = {}
        self._beside: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))

    def merge(self, pairs: _Pairs, lengths: NDArray[np.float64], least: float) -> None:
        """Merge each component below the least area into a neighbour, the smallest first."""
        small_R = self._area < least
        wanted = small_R[pairs].any(axis=1)
        for (a, b), length in zip(pairs[wanted].tolist(), lengths[wanted].tolist(), strict=True):
            self._beside[a][b] += length
            self._beside[b][a] += length
        waiting = [self._turn(r) for r in np.flatnonzero(small_R).tolist()]
        heapq.heapify(waiting)
        while waiting:
            turn = heapq.heappop(waiting)
            one = turn[-1]
            if one in self._into or turn != self._turn(one) or not self._beside[one]:
                continue  # it is part of another, or has grown since
            if self._area[kept := self._give(one)] < least:
                heapq.heappush(waiting, self._turn(kept))

    def classes(self) -> NDArray[np.uint8]:
        """Return the final class of each component."""
        class_R = self._class.copy()
        for one in self._into:
            class_R[one] = self._class[self._root(one)]
        return class_R

    def _turn(self, one: int) -> tuple[float, int, int]:
        """Return a component's sort key: the smallest first; for ties, the one that begins first."""
        return float(self._area[one]), self._rank[one], one

    def _root(self, one: int) -> int:
        root = one
        while root in self._into:
            root = self._into[root]
        while one != root:  # the way is short the next time
            after = self._into[one]
            self._into[one], one = root, after
        return root

    def _give(self, one: int) -> int:
        """Merge a sliver with its neighbour of the longest border, and with all neighbours of that class."""
        beside = self._beside[one]
        longest = max(beside, key=lambda other: (beside[other], self._area[other], -self._rank[other]))
        kind = self._class[longest]
        same = [other for other in beside if self._class[other] == kind]
        self._class[one] = kind
        for other in same:
            one = self._unite(one, other)
        return one

    def _unite(self, a: int, b: int) -> int:
        """Merge two components of one class; return the remaining number, the one with more neighbours."""
        gone, kept = (a, b) if len(self._beside[a]) <= len(self._beside[b]) else (b, a)
        self._into[gone] = kept
        self._area[kept] += self._area[gone]
        self._rank[kept] = min(self._rank[gone], self._rank[kept])
        for other, length in self._beside.pop(gone).items():
            del self._beside[other][gone]
            if other != kept:
                self._beside[kept][other] += length
                self._beside[other][kept] += length
        return kept


def _first_pixels(strip: Strip) -> NDArray[np.int64]:
    """Return the first pixel of each component, counted row by row in the whole map."""
    flat = strip.labels.ravel()
    first_C = np.zeros(strip.count + 1, np.int64)
    first_C[flat[::-1]] = np.arange(len(flat) - 1, -1, -1)  # the last one that is written stays
    return first_C[1:] + strip.window.row * strip.window.width


def _of_roots(class_N: NDArray[np.uint8], root_N: NDArray[np.int64]) -> NDArray[np.uint8]:
    class_R = np.zeros(root_N.max(initial=0) + 1, np.uint8)
    class_R[root_N] = class_N
    return class_R


_AT_ONCE = 20_000
"""Least number of polygons written at once: a GeoPackage is reopened for each batch."""


def vectorise(maps: Sequence[Path], output: Path, options: PolygonOptions, *, progress: bool = True) -> int:
    """Write the polygons of all maps to one GeoPackage or GeoParquet file; return their number.

    Without `min_area` and `simplify`, rasterising the polygons gives the same maps again.

    Raises:
        SegmenterError: a map cannot be read, maps have several CRSs, a class of `only` is in no map, or the
            file cannot be written. No file is left then.
    """
    crs, colours = _check(maps, options)
    count = 0
    style = polygon_style("class", colours) if _may_style(output) else b""
    with polygon_file(output, crs, style) as write:
        for path, name in zip(maps, shortest_ends(maps), strict=True):
            count += _one(path, name, options, write, progress)
    return count


def _check(maps: Sequence[Path], options: PolygonOptions) -> tuple[Any, dict[str, Colour]]:
    """Check that the maps fit into one file; return their CRS, and a colour for each class name."""
    named: dict[str, Colour | None] = {}
    infos = []
    for path in maps:
        with WrittenMap(path) as one:
            named |= {each.name: named.get(each.name) or each.colour for each in one.classes}
            infos.append(one.info)
    check_together(infos)
    if unknown := [name for name in options.only if name not in named]:
        raise SegmenterError("--only", f"no class {unknown[0]}; there are {', '.join(sorted(named))}")
    colours = dict(zip(named, default_colours(list(named), list(named.values())), strict=True))
    return infos[0].crs if infos else None, colours


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


def _one(
    path: Path, name: str, options: PolygonOptions, write: Callable[[PolygonBatch], None], progress: bool
) -> int:
    with WrittenMap(path) as one:
        passes = 2 if options.min_area else 1
        total = one.info.size.pixels * passes
        with Bar(total=total, desc=path.name, unit="px", unit_scale=True, shown=progress) as bar:
            classes = _classes(one, options, bar)
            waiting: list[Polygons] = []
            count = held = 0
            for polygons in _polygons(one, options, classes, bar):
                waiting.append(_requested_polygons(polygons, one, options))
                held += len(waiting[-1])
                if held >= _AT_ONCE:
                    count += _write(waiting, one, name, write)
                    waiting, held = [], 0
            return count + _write(waiting, one, name, write)


def _may_style(output: Path) -> bool:
    """Return whether a file of polygons gets a style; beside it lies none of a map, nor of others."""
    style = output.with_suffix(".qml")
    if output.suffix == ".gpkg":  # which holds its own
        return True
    if output.with_suffix(".tif").exists():
        warn(f"{style}: would be the style of the map beside it, and is not written")
        return False
    if left := is_of_others(style):
        warn(style_remark(style))
    return not left


def _classes(one: WrittenMap, options: PolygonOptions, bar: Any) -> Iterator[NDArray[np.uint8]] | None:
    """Return for each strip its components' classes after merging slivers; None if nothing changes."""
    if not options.min_area:
        return None
    info = one.info
    areas = pixel_areas(info) or counted_pixels()
    slivers = Slivers(options.min_area)
    for window in row_strips(info.size, STRIP_PIXELS):
        strip: Strip = components(window, one.read(window)[0])
        slivers.add(strip, areas.of(window), pixel_sides(info) or (1.0, 1.0))
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


def _requested_polygons(polygons: Polygons, one: WrittenMap, options: PolygonOptions) -> Polygons:
    """Return the polygons with data that were requested."""
    ids = [i for i, each in enumerate(one.classes) if not options.only or each.name in options.only]
    return polygons.of(np.isin(polygons.class_P, ids) & (polygons.class_P != IGNORE))


def _write(
    waiting: Sequence[Polygons], one: WrittenMap, name: str, write: Callable[[PolygonBatch], None]
) -> int:
    polygons = Polygons.join(waiting)
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
        "map": np.full(len(polygons), name, object),
    }
    write(PolygonBatch(shapely.to_wkb(shapes), columns))
    return len(polygons)


# --------------------------------------------------------------------------------- areas on the ground


def square_metres(shape_P: NDArray[Any], info: RasterInfo) -> NDArray[np.float64] | None:
    """Return the area of each polygon in square metres; None if the CRS does not measure the ground.

    It is that on the plane of a projection where `pixel_areas` are, else that in an equal-area projection.
    """
    crs, of_pixels = info.crs, pixel_areas(info)
    if crs is None or of_pixels is None:
        return None
    if of_pixels.plane:
        return np.asarray(shapely.area(shape_P)) * float(crs.linear_units_factor[1]) ** 2
    if (equal := equal_area(info)) is None:
        return None
    if equal.longest is not None:
        shape_P = shapely.segmentize(shape_P, equal.longest)
    areas: NDArray[np.float64] = shapely.area(shapely.transform(shape_P, equal.move))
    return None if np.isnan(areas).any() else areas


def on_the_ground(shape_P: NDArray[Any], info: RasterInfo) -> NDArray[Any]:
    """Convert polygons from columns and rows to the map's CRS; unchanged without georeference."""
    move = info.transform
    if move is None:
        return shape_P
    turn = np.array([[move.a, move.d], [move.b, move.e]])
    moved: NDArray[Any] = shapely.transform(shape_P, lambda xy: xy @ turn + (move.c, move.f))
    return moved
