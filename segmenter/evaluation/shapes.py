"""Boundary IoU and object F1 of a finished map, read strip by strip.

Pixels that are not scored (without label or data, or of a true class that the protocol leaves out) are first
removed from label and map: like the raster's edge, they make no boundary and belong to no object. With G_k
and P_k the other pixels of class k in label and map, and G_kd those of G_k at most d pixels, to the sides or
diagonally, from another class:

    boundary IoU_k  |G_kd ∩ P_kd| / |G_kd ∪ P_kd|           Cheng et al. 2021, arXiv:2103.16562
    object F1_k     2 matches / (objects of G_k and P_k)    Kirillov et al. 2019, arXiv:1801.00868, section 4

Objects are pixels of a class connected by sides; two match if their IoU is above 1/2, which no other pair of
either can then reach. Means are over the classes that have a boundary, or an object, in label or map. The
paper's d is 2 % of an image's diagonal; for rasters of any size it is given in pixels.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from segmenter.base.terminal import align_table
from segmenter.evaluation.protocol import Protocol
from segmenter.evaluation.scores import mean_defined, number_or_none, percent, ratio
from segmenter.grid.components import Strip, components
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE

_NUMBERS = ("label", "map", "matched")
"""Keys of the numbers of objects."""
Ids = NDArray[np.uint8]
Counts = NDArray[np.int64]


class Shapes:
    """Counts of one map, or of many by merging (`tallies.MapTally`).

    Attributes:
        names: classes, in the order of their ids.
        margin: d in pixels.
        boundary_K3: pixels of G_kd, of P_kd, and of both.
        objects_K3: objects of the label, of the map, and matches; without those of a map until `close`.
    """

    def __init__(self, names: tuple[str, ...], width: int) -> None:
        self.names, self.margin = names, width
        self.boundary_K3, self.objects_K3 = np.zeros((2, len(names), 3), np.int64)
        self._objects: _Objects | None = None

    def add(self, truth: Ids, predicted: Ids, window: Window) -> None:
        """Count the next strip of a map; the arrays hold the margin too."""
        above = min(self.margin, window.row)
        inner = slice(above, above + window.height)
        near = [_near_boundary(each, self.margin)[inner] for each in (truth, predicted)]
        truth, ids = truth[inner], predicted[inner]
        same = near[0] & near[1] & (truth == ids)
        for column, pixels in enumerate((truth[near[0]], ids[near[1]], ids[same])):
            self.boundary_K3[:, column] += np.bincount(pixels, minlength=len(self.names))
        self._objects = self._objects or _Objects(window.width, len(self.names))
        self._objects.add(components(window, truth), components(window, ids), truth == ids)

    def close(self) -> None:
        """Count the objects that reach the map's last row."""
        if self._objects is not None:
            self.objects_K3 += self._objects.counts()
        self._objects = None

    def merge(self, other: Shapes) -> None:
        """Add the counts of other maps."""
        self.boundary_K3 += other.boundary_K3
        self.objects_K3 += other.objects_K3

    def facts(self, protocol: Protocol) -> dict[str, Any]:
        """Return the scores of the protocol's classes as plain data for JSON; null where undefined."""
        counted = [self.names.index(name) for name in protocol.classes]
        boundary, objects = self.boundary_K3[counted].T, self.objects_K3[counted].T
        iou = ratio(boundary[2], boundary[0] + boundary[1] - boundary[2])
        if not boundary[0].any():  # as in eroded labels, whose ignored pixels lie where boundaries were
            iou = np.full(len(iou), np.nan)
        f1 = ratio(2 * objects[2], objects[0] + objects[1])

        def by_class(values: NDArray[Any]) -> dict[str, Any]:
            plain = (None if value != value else value for value in values.tolist())
            return dict(zip(protocol.classes, plain, strict=True))

        miou, mf1 = (number_or_none(mean_defined(each)) for each in (iou, f1))
        numbers = {name: by_class(row) for name, row in zip(_NUMBERS, objects, strict=True)}
        return {
            "boundary": {"within_pixels": self.margin, "miou": miou, "iou": by_class(iou)},
            "objects": {"mf1": mf1, "f1": by_class(f1), **numbers},
        }

    def table(self, protocol: Protocol) -> str:
        """Return a terminal table of `facts`, in percent."""
        boundary, objects = self.facts(protocol).values()
        numbers = {name: [f"{objects[what][name]:,}" for what in _NUMBERS] for name in boundary["iou"]}
        rows = [
            (name, percent(iou), percent(objects["f1"][name]), *numbers[name])
            for name, iou in boundary["iou"].items()
        ]
        head = ("class", "boundary IoU", "object F1", "objects in label", "in map", "matched")
        miou, mf1 = percent(boundary["miou"]), percent(objects["mf1"])
        lines = [
            *align_table(head, rows, gap="   "),
            "",
            f"mean boundary IoU {miou}   mean object F1 {mf1}   (in %)",
            f"protocol  boundaries within {self.margin} px of another class, objects connected by sides and "
            "matched at IoU > 0.5",
        ]
        return "\n".join(lines)


def _near_boundary(ids_HW: Ids, width: int) -> NDArray[np.bool_]:
    """Return the pixels of a class at most `width` pixels from one of another class."""
    square = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    known = ids_HW != IGNORE
    highest = cv2.dilate(np.where(known, ids_HW, np.uint8(0)), square)  # 0 changes no largest id
    lowest = cv2.erode(ids_HW, square)  # nor does IGNORE, the largest number, change a smallest one
    return known & ((highest != ids_HW) | (lowest != ids_HW))


# ------------------------------------------------------------------------------------------------ objects


class _Objects:
    """Objects of label and map, matched from the top down.

    An object that the next strip cannot reach is closed: it is counted, and kept only while a pair of it may
    yet match. As one partner grows, IoU falls, so that at most one closed partner of an open object is kept.
    """

    def __init__(self, width: int, classes: int) -> None:
        self._sides = (_Side(width), _Side(width))
        self._pairs = np.zeros((3, 0), np.int64)  # objects of label and map, and their common pixels
        self._counts_K3 = np.zeros((classes, 3), np.int64)

    def add(self, truth: Strip, ids: Strip, same_HW: NDArray[np.bool_]) -> None:
        """Add the next strip; `same_HW`: where label and map have the same class."""
        old = self._pairs
        new = _sum_pairs(truth.labels[same_HW], ids.labels[same_HW], None)
        new = new[:, new[0] > 0]
        (old_t, new_t), (old_p, new_p) = (
            side.extend(strip) for side, strip in zip(self._sides, (truth, ids), strict=True)
        )
        objects = np.append(old_t[old[0]], new_t[new[0]]), np.append(old_p[old[1]], new_p[new[1]])
        self._pairs = _sum_pairs(*objects, np.append(old[2], new[2]))
        self._settle()

    def counts(self) -> Counts:
        """Close all objects; return the (K, 3) counts of `Shapes.objects_K3`."""
        for side in self._sides:
            side.row_W[:] = 0
        self._settle()
        return self._counts_K3

    def _settle(self) -> None:
        """Count closed objects and matches; forget what can change nothing."""
        open_N = [np.bincount(side.row_W, minlength=len(side.area_N)) > 0 for side in self._sides]
        for column, (side, is_open_N) in enumerate(zip(self._sides, open_N, strict=True)):
            self._count(column, side.class_N[~is_open_N & ~side.closed_N])
            side.closed_N |= ~is_open_N
        truth, ids, common = self._pairs
        first, second = self._sides
        half = 3 * common > first.area_N[truth] + second.area_N[ids]  # IoU above 1/2
        opened = open_N[0][truth].astype(int) + open_N[1][ids]
        self._count(2, first.class_N[truth[half & (opened == 0)]])
        self._pairs = self._pairs[:, (opened == 2) | (half & (opened == 1))]
        for i, (side, is_open_N) in enumerate(zip(self._sides, open_N, strict=True)):
            is_open_N[self._pairs[i]] = True
            self._pairs[i] = side.keep(is_open_N)[self._pairs[i]]

    def _count(self, column: int, classes: Ids) -> None:
        self._counts_K3[:, column] += np.bincount(classes, minlength=len(self._counts_K3))


class _Side:
    """Objects of the label or of the map that the next strip may change; number 0 is none.

    Attributes:
        row_W: object of each pixel of the last row.
        area_N, class_N, closed_N: of each object: pixels so far, class, True once it is counted.
    """

    def __init__(self, width: int) -> None:
        self.row_W = np.zeros(width, np.int64)
        self.area_N, self.class_N = np.zeros(1, np.int64), np.zeros(1, np.uint8)
        self.closed_N = np.ones(1, np.bool_)

    def extend(self, strip: Strip) -> tuple[Counts, Counts]:
        """Join the objects with the next strip; return the new numbers of objects and of its components."""
        count, first_W = len(self.area_N), strip.labels[0]
        class_M = np.append(self.class_N, strip.class_C[1:])
        touch_W = (self.row_W > 0) & (first_W > 0) & (self.class_N[self.row_W] == strip.class_C[first_W])
        pair = self.row_W[touch_W], first_W[touch_W] + (count - 1)
        edges = coo_array((np.ones(len(pair[0]), np.bool_), pair), shape=(len(class_M), len(class_M)))
        total, number_M = connected_components(edges, directed=False)  # node 0, of no edge, is 0 again
        areas = np.append(self.area_N, np.bincount(strip.labels.ravel(), minlength=strip.count + 1)[1:])
        self.area_N = np.bincount(number_M, areas, total).astype(np.int64)
        closed_M = np.append(self.closed_N, np.zeros(strip.count, np.bool_))
        self.class_N, self.closed_N = np.zeros(total, np.uint8), np.zeros(total, np.bool_)
        self.class_N[number_M], self.closed_N[number_M] = class_M, closed_M
        of_components = np.append(0, number_M[count:])
        self.row_W = of_components[strip.labels[-1]]
        return number_M[:count], of_components

    def keep(self, wanted_N: NDArray[np.bool_]) -> Counts:
        """Forget all other objects; return the new numbers."""
        wanted_N[0] = True
        number_N = np.cumsum(wanted_N) - 1
        self.row_W = number_N[self.row_W]
        self.area_N, self.class_N = self.area_N[wanted_N], self.class_N[wanted_N]
        self.closed_N = self.closed_N[wanted_N]
        return number_N


def _sum_pairs(one: NDArray[Any], other: NDArray[Any], weight: Counts | None) -> Counts:
    """Return each pair of numbers once, with the sum of its weights (None: 1 each), as (3, pairs)."""
    base = int(other.max(initial=0)) + 1
    key = one.astype(np.int64) * base + other
    if weight is None:  # pixels in reading order: runs of one pair
        starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))[: key.size]
        key, weight = key[starts], np.diff(np.append(starts, key.size))
    pairs, index = np.unique(key, return_inverse=True)
    total = np.bincount(index, weight, len(pairs)).astype(np.int64)
    return np.stack([pairs // base, pairs % base, total])
