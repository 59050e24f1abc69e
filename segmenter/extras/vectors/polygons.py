"""Polygons of components, strip by strip, joined across strips.

Coordinates are columns and rows until the end: whole numbers, so that parts cut at a strip's border fit
exactly. A component is returned once the strip after its last one is read; memory holds a strip and the
outlines of open components.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from segmenter.grid.components import Strip, touching
from segmenter.grid.labels import IGNORE
from segmenter.raster.polygons import outlines_of


@dataclass(frozen=True)
class Polygons:
    """Complete components.

    Attributes:
        shape_P: shapely polygons, in columns and rows of the map.
        class_P: class ids.
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
    def together(cls, parts: Sequence[Polygons]) -> Polygons:
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
        """Store `simplify`: how far shared borders may move, in pixels, see `simplified`; 0: not at all."""
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
        return Polygons.together([whole, _whole(ended, known)])

    def end(self, *, confidence: bool) -> Polygons:
        """Return the polygons that reach the last row."""
        ended, self._open, self._last = self._open, [], None
        return _whole(ended, confidence)

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
        return simplified(shapes, self._simplify) if self._simplify else shapes


def simplified(shape_P: NDArray[Any], tolerance: float) -> NDArray[Any]:
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


def _whole(parts: list[_Open], confidence: bool) -> Polygons:
    shapes = np.empty(len(parts), object)
    for i, one in enumerate(parts):
        # Without corners on straight lines, which seams leave.
        whole = shapely.simplify(shapely.union_all(one.shapes), 0) if len(one.shapes) > 1 else one.shapes[0]
        shapes[i] = whole
    kinds = np.array([one.kind for one in parts], np.uint8)
    pixels = np.array([one.pixels for one in parts], np.int64)
    sums = np.array([one.confidence for one in parts], np.float64)
    return Polygons(shapes, kinds, pixels, sums if confidence else None)
