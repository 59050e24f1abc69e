"""Class ids of an image's pixels from polygons, strip by strip, with priorities by the rule.

The laws of this module: **strips leave no trace** (a strip has the bits of these rows of the whole), and
**the order in a file never decides an overlap**: if polygons of two classes cover a pixel, the recipe sets
the priority, or it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, LabelError
from segmenter.extras.vector_files.features import Box, Features, VectorFile
from segmenter.extras.vectors.rule import BurnRule
from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import row_strips
from segmenter.raster import RasterInfo
from segmenter.raster.polygons import Move, between, box_around, cover_pixels, to_pixels

BAND_PIXELS = 1 << 24
"""Pixels of the rows for which polygons are read and moved at once."""
STRIP_PIXELS = 1 << 23
"""Pixels of the rows that are burned at once; a few bytes of memory each."""
_MOST_OFF = 1 / 16
"""Pixels by which a straight edge may leave its place when it is moved to another CRS."""
_MOST_HALVINGS = 12
_FAR = 1 << 24
"""Pixels around an image beyond which polygons are cut: GDAL burns nothing of one that reaches 2³¹."""
_POLYGON, _MULTI, _COLLECTION = 3, 6, 7


@dataclass(frozen=True)
class Placed:
    """Simple polygons on an image's grid."""

    shape_P: NDArray[Any]
    kind_P: NDArray[np.uint8]
    fid_P: NDArray[np.int64]

    def touching(self, window: Window) -> Placed:
        """Return the polygons whose extent touches a window."""
        left, top, right, bottom = shapely.bounds(self.shape_P).reshape(-1, 4).T
        rows = (top <= window.row_stop) & (bottom >= window.row)
        cols = (left <= window.col_stop) & (right >= window.col)
        return Placed(self.shape_P[rows & cols], self.kind_P[rows & cols], self.fid_P[rows & cols])


class Burner:
    """Rasteriser of one file's polygons onto one image's grid.

    Attributes:
        any_covered: True if a polygon has covered a pixel so far.
    """

    def __init__(self, vector: VectorFile, info: RasterInfo, rule: BurnRule) -> None:
        """Check that the polygons can be placed on the image.

        Raises:
            DatasetError: only one of them has a CRS.
            RasterError: the image has no transform.
        """
        self._vector, self._info, self._rule = vector, info, rule
        self.any_covered = False
        self._to_pixels = to_pixels(info)
        if (vector.crs is None) != (info.crs is None):
            lacks, has = (vector.path, info.path) if vector.crs is None else (info.path, vector.path)
            what = (
                "set dataset.vector.crs to it" if vector.crs is None else "give it one (gdal_edit.py -a_srs)"
            )
            raise DatasetError(lacks, f"has no CRS, and {has} has one", remedy=what)
        self._move = between(vector.crs, info.crs)

    def strips(self) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
        """Yield the class ids of the image's rows, from top to bottom.

        Raises:
            LabelError: a value names no class, or an overlap has no priority.
            DatasetError: a feature is no polygon or cannot be read.
        """
        for band in row_strips(self._info.size, BAND_PIXELS):
            placed = self.polygons_near(band)
            for strip in row_strips(Size(band.height, band.width), STRIP_PIXELS):
                window = strip.shifted(band.row, 0)
                yield window, self.ids(placed, window)

    def polygons_near(self, window: Window) -> Placed:
        """Return the polygons that may touch a window."""
        box = box_around(self._info, window, self._vector.crs)
        features = self._vector.within(box)
        path = self._vector.path
        kinds = [
            self._rule.kind_of(value, f"{path}: feature {fid}", self._vector.value_hint)
            for value, fid in zip(features.value_F.tolist(), features.fid_F.tolist(), strict=True)
        ]
        shapes, owner = _simple(features, path)
        kind_P, fid_P = np.array(kinds, np.uint8)[owner], features.fid_F[owner]
        if len(shapes):
            shapes, part_of = _near(shapes, self._around)
            kind_P, fid_P = kind_P[part_of], fid_P[part_of]
        if self._move is None:
            shapes = shapely.transform(shapes, self._to_pixels)
        else:
            shapes = _bent(shapes, self._move, self._to_pixels)
        if len(lost := np.flatnonzero(shapely.is_missing(shapes))):
            raise DatasetError(
                path,
                f"feature {fid_P[lost[0]]} lies where the image's CRS has no coordinates",
                remedy="bring the polygons into the image's CRS first (ogr2ogr -t_srs)",
            )
        return Placed(shapes, kind_P, fid_P)

    @cached_property
    def _around(self) -> Box:
        """Box of the image with as much again on each side, in the file's CRS.

        In the image's own CRS the box is larger, so that fewer polygons are cut: cutting rounds corners.
        """
        size = self._info.size
        rows, cols = (size.height, size.width) if self._move is not None else (_FAR, _FAR)
        around = Window(-rows, -cols, size.height + 2 * rows, size.width + 2 * cols)
        return box_around(self._info, around, self._vector.crs)

    def ids(self, placed: Placed, window: Window) -> NDArray[np.uint8]:
        """Return the (H, W) class ids of a window."""
        rule = self._rule
        near = placed.touching(window)
        ids_HW = np.full((window.height, window.width), rule.outside_id, np.uint8)
        taken_HW = np.zeros(ids_HW.shape, np.bool_)
        present = np.unique(near.kind_P).tolist()
        below = [kind for kind in present if kind not in rule.above]
        for kind in [*below, *(kind for kind in reversed(rule.above) if kind in present)]:
            mask_HW = self._cover(near, kind, window)
            if kind in below:
                both_HW = mask_HW & taken_HW
                if both_HW.any():
                    raise self._overlap(near, kind, window, both_HW, ids_HW)
            ids_HW[mask_HW] = kind
            taken_HW |= mask_HW
        self.any_covered = self.any_covered or bool(taken_HW.any())
        return ids_HW

    def _cover(self, near: Placed, kind: int, window: Window) -> NDArray[np.bool_]:
        shapes = near.shape_P[near.kind_P == kind]
        covered_HW = cover_pixels(shapes, window)
        if self._rule.all_touched:
            covered_HW |= outline_pixels(shapes, window)
        return covered_HW

    def _overlap(
        self,
        near: Placed,
        kind: int,
        window: Window,
        both_HW: NDArray[np.bool_],
        ids_HW: NDArray[np.uint8],
    ) -> LabelError:
        row, col = (int(value) for value in np.argwhere(both_HW)[0])
        pixel = Window(window.row + row, window.col + col, 1, 1)
        other = int(ids_HW[row, col])
        here = near.touching(pixel)
        named = []
        for each in (other, kind):
            mine = here.kind_P == each
            alone = (
                Placed(here.shape_P[i : i + 1], here.kind_P[i : i + 1], here.fid_P[i : i + 1])
                for i in np.flatnonzero(mine)
            )
            fids = (int(one.fid_P[0]) for one in alone if self._cover(one, each, pixel).any())
            named.append((self._rule.name_of(each), next(fids)))
        (one, one_fid), (two, two_fid) = named
        also = "; with all_touched, neighbours always do" if self._rule.all_touched else ""
        return LabelError(
            self._vector.path,
            f"polygons of {one} (feature {one_fid}) and {two} (feature {two_fid}) overlap on "
            f"{self._info.path}, first at row {pixel.row}, column {pixel.col}{also}",
            remedy=f"say in dataset.vector.order which lies above, as [{one}, {two}]",
        )


def _simple(features: Features, path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return simple polygons, and the feature of each.

    Parts are rasterised one by one: as one shape, overlapping parts would leave a hole.
    """
    shapes, owner = features.shape_F, np.arange(len(features.shape_F), dtype=np.int64)
    for _ in range(3):  # collections of collections of parts
        kinds = shapely.get_type_id(shapes)
        if not np.isin(kinds, (_MULTI, _COLLECTION)).any():
            break
        shapes, index = shapely.get_parts(shapes, return_index=True)
        owner = owner[index]
    whole_P = ~(shapely.is_missing(shapes) | shapely.is_empty(shapes))
    shapes, owner = shapes[whole_P], owner[whole_P]
    wrong = np.flatnonzero(shapely.get_type_id(shapes) != _POLYGON)
    if len(wrong):
        kind, whole = shapes[wrong[0]].geom_type, features.shape_F[owner[wrong[0]]].geom_type
        what = f"a {kind}" if kind == whole else f"a {whole} with a {kind}"
        raise DatasetError(
            path,
            f"feature {features.fid_F[owner[wrong[0]]]} is {what}, expected polygons: a label needs an area",
            remedy="buffer lines and points by their width first (QGIS: Buffer), or name another layer",
        )
    return shapes, owner


def _near(shapes: NDArray[Any], box: Box) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Cut polygons by a box around the image; return the parts, and the polygon of each.

    Far from the image another CRS may have no coordinates, or wrong ones.
    """
    left, bottom, right, top = shapely.bounds(shapes).reshape(-1, 4).T
    far = (left < box[0]) | (bottom < box[1]) | (right > box[2]) | (top > box[3])
    whole = shapes.copy()
    crossed = far & ~shapely.is_valid(shapes)
    whole[crossed] = shapely.make_valid(shapes[crossed])
    whole[far] = shapely.clip_by_rect(whole[far], *box)
    index = np.arange(len(shapes), dtype=np.int64)
    for _ in range(2):  # a collection may hold several as one
        whole, part_of = shapely.get_parts(whole, return_index=True)
        index = index[part_of]
    is_area = (shapely.get_type_id(whole) == _POLYGON) & ~shapely.is_empty(whole)
    return whole[is_area], index[is_area]


def _bent(shapes: NDArray[Any], move: Move, to_pixel: Move) -> NDArray[Any]:
    """Return polygons of another CRS in columns and rows; None for those without coordinates there.

    An edge that is straight in one CRS is curved in the other: points are inserted until no edge deviates by
    more than `_MOST_OFF`. Their number depends on the polygon alone, not on its neighbours.
    """
    out = np.full(len(shapes), None, object)
    bounds = shapely.bounds(shapes).reshape(-1, 4)
    length = np.maximum(bounds[:, 2] - bounds[:, 0], bounds[:, 3] - bounds[:, 1])
    waiting = np.arange(len(shapes))
    for halvings in range(_MOST_HALVINGS + 1):
        dense = shapes[waiting]
        if halvings:
            dense = shapely.segmentize(dense, np.maximum(length[waiting] / 2**halvings, np.finfo(float).tiny))
        off_P = _off(dense, move, to_pixel)
        is_known = np.isfinite(off_P)
        done = is_known & ((off_P <= _MOST_OFF) | (halvings == _MOST_HALVINGS))
        if done.any():
            out[waiting[done]] = shapely.transform(dense[done], lambda xy: to_pixel(move(xy)))
        waiting = waiting[is_known & ~done]
        if not len(waiting):
            break
    return out


def _off(shapes: NDArray[Any], move: Move, to_pixel: Move) -> NDArray[np.float64]:
    """Return the largest deviation, in pixels, of the middles of each polygon's edges; NaN if undefined."""
    rings, shape_R = shapely.get_rings(shapes, return_index=True)
    xy, ring_V = shapely.get_coordinates(rings, return_index=True)
    edge = ring_V[1:] == ring_V[:-1]
    first, last = xy[:-1][edge], xy[1:][edge]
    shape_E = shape_R[ring_V[1:][edge]]
    off_P = np.zeros(len(shapes))
    if not len(shape_E):
        return off_P
    ends, middle = to_pixel(move(xy)), to_pixel(move((first + last) / 2))
    if not (np.isfinite(ends).all() and np.isfinite(middle).all()):
        if len(shapes) == 1:
            return np.array([np.nan])
        return np.concatenate([_off(shapes[i : i + 1], move, to_pixel) for i in range(len(shapes))])
    straight = (ends[:-1][edge] + ends[1:][edge]) / 2
    np.maximum.at(off_P, shape_E, np.hypot(*(middle - straight).T))
    return off_P


# ----------------------------------------------------------------------------------- pixels of outlines
# GDAL's own `ALL_TOUCHED` cuts edges at the border of what it burns, and then misses pixels, or takes others.

_Points = NDArray[np.float64]


def outline_pixels(shape_P: NDArray[Any], window: Window) -> NDArray[np.bool_]:
    """Return an (H, W) mask of pixels whose interior an edge crosses, not only their border."""
    outlined_HW = np.zeros((window.height, window.width), np.bool_)
    first_E, last_E = _edges(shape_P, window)
    edge_S, along_S = _cuts(first_E, last_E)
    within = edge_S[1:] == edge_S[:-1]
    middle = ((along_S[1:] + along_S[:-1]) / 2)[within]
    edge = edge_S[1:][within]
    xy = first_E[edge] + (last_E[edge] - first_E[edge]) * middle[:, None]
    cell = np.floor(xy).astype(np.int64)
    inside = (cell != xy).all(axis=1)  # else it runs along the border between two pixels
    col, row = (cell[inside] - (window.col, window.row)).T
    here = (row >= 0) & (row < window.height) & (col >= 0) & (col < window.width)
    outlined_HW[row[here], col[here]] = True
    return outlined_HW


def _edges(shape_P: NDArray[Any], window: Window) -> tuple[_Points, _Points]:
    """Return the end points, as (column, row), of the edges that may cross a window."""
    rings = shapely.get_rings(shape_P)
    xy, ring_V = shapely.get_coordinates(rings, return_index=True)
    joined = ring_V[1:] == ring_V[:-1]
    first, last = xy[:-1][joined], xy[1:][joined]
    low, high = np.minimum(first, last), np.maximum(first, last)
    corner, opposite = (window.col, window.row), (window.col_stop, window.row_stop)
    near = ((high >= corner) & (low <= opposite)).all(axis=1)
    return first[near], last[near]


def _cuts(first_E: _Points, last_E: _Points) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the crossings of edges with pixel borders: edge, and position on it (0 … 1), in that order."""
    count = len(first_E)
    edges, ways = [np.arange(count), np.arange(count)], [np.zeros(count), np.ones(count)]
    for axis in (0, 1):
        start, step = first_E[:, axis], last_E[:, axis] - first_E[:, axis]
        lowest = np.floor(np.minimum(start, start + step)).astype(np.int64) + 1
        lines = np.maximum(0, np.ceil(np.maximum(start, start + step)).astype(np.int64) - lowest)
        edge = np.repeat(np.arange(count), lines)
        number = np.arange(len(edge)) - np.repeat(np.cumsum(lines) - lines, lines)
        edges.append(edge)
        ways.append((lowest[edge] + number - start[edge]) / step[edge])
    edge_S, along_S = np.concatenate(edges), np.concatenate(ways)
    order = np.lexsort((along_S, edge_S))
    return edge_S[order], along_S[order]
