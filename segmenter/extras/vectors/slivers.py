"""Slivers of a class map merged into neighbours before polygons are made: no gaps, no overlaps.

Components smaller than the least area are processed from the smallest: each takes the class of the neighbour
with the longest shared border, and merges with all neighbours of that class; merged ones that are large
enough stay. A component without neighbours is unchanged. One pass over the map collects sizes and border
lengths: memory grows with the number of components and slivers' borders, not of pixels.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from segmenter.grid.components import Strip, touching
from segmenter.grid.labels import IGNORE

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

    def add(self, strip: Strip, area_H: NDArray[np.float64], sides: tuple[float, float]) -> None:
        """Add the next strip.

        Args:
            area_H: area of a pixel in each row.
            sides: width and height of a pixel, in the same unit.
        """
        offset, labels_HW = self._count, strip.labels
        weights = np.repeat(area_H, labels_HW.shape[1])
        area_C = np.asarray(np.bincount(labels_HW.ravel(), weights, strip.count + 1), np.float64)
        small_C = area_C < self._least
        width, height = sides
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
