"""Interval of mIoU as a value, and the blocks of a map that it may be over; `bootstrap` computes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window

_FINEST = 128
"""Pixels of the smallest side: a window of 512 px, cut into 16 pieces, is counted in three times the time."""
_MOST, _MOST_BYTES = 256, 1 << 23
"""Bounds of a scene's blocks, and of their memory: of more than 63 classes, blocks are fewer."""


class Blocks:
    """Blocks of a part of a raster, from its top left corner; the last ones may be smaller.

    Attributes:
        side: pixels of a side: 128 times the least power of two that keeps the bounds.
        counts: (R, C, K, K + 1) pixels of each block, as `ConfusionMatrix.counts`.
    """

    def __init__(self, part: Window, classes: int) -> None:
        self.part, self.side = part, _FINEST
        most = max(1, min(_MOST, _MOST_BYTES // (8 * classes * (classes + 1))))
        while np.prod(shape := [-(-extent // self.side) for extent in (part.height, part.width)]) > most:
            self.side *= 2
        self.counts = np.zeros((*shape, classes, classes + 1), np.int64)

    def pieces(self, window: Window) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
        """Yield the place of each block that a window of the raster meets, and its pixels in the window."""
        for row, rows in _cuts(window.row - self.part.row, window.height, self.side):
            for col, cols in _cuts(window.col - self.part.col, window.width, self.side):
                yield (row, col), (rows, cols)

    def merged(self, side: int) -> NDArray[np.int64]:
        """Return the (N, K, K + 1) counts of blocks of a larger side, `side` being that times 2, 4, …"""
        counts, step = self.counts, side // self.side
        for axis in (0, 1):
            counts = np.add.reduceat(counts, np.arange(0, counts.shape[axis], step), axis=axis)
        return counts.reshape(-1, *counts.shape[2:])


def _cuts(first: int, length: int, side: int) -> Iterator[tuple[int, slice]]:
    """Yield the blocks' numbers along an axis, each with its share of a window's pixels."""
    for number in range(first // side, -(-(first + length) // side)):
        start, stop = number * side - first, (number + 1) * side - first
        yield number, slice(max(0, start), min(length, stop))


FEWEST, LEAST = 3, 10
"""Units below which there is no interval, and from which on they are drawn."""
INTERVAL = ("miou_interval", "miou_interval_over")
"""Keys in files of scores: its bounds, and the units that it is over."""

_STUDENT = "Student's t"


@dataclass(frozen=True)
class Interval:
    """95 % interval of mIoU.

    Attributes:
        bounds: lowest and highest mIoU; None: the design allows none.
        count: groups, scenes or blocks with labelled pixels.
        side: pixels of a block's side; None: they are scenes or groups.
        groups: True if they are groups of scenes.
        reason: why there are no bounds; empty: the units are too few.
        drawn: True: by percentiles of draws; False: by Student's t.
    """

    bounds: tuple[float, float] | None
    count: int
    side: int | None = None
    groups: bool = False
    reason: str = ""
    drawn: bool = True

    @property
    def span(self) -> str:
        """Bounds in percent; – if there are none."""
        return "–" if self.bounds is None else " to ".join(f"{100 * bound:.2f}" for bound in self.bounds)

    @property
    def units(self) -> str:
        """Number and kind of the units."""
        if self.side is not None:
            return f"{self.count} blocks of {self.side:,} px"
        return f"{self.count} {'groups' if self.groups else 'scenes'}"

    def __str__(self) -> str:
        if self.bounds is None:
            needed = FEWEST if self.side is None else LEAST
            return f"without an interval: {self.reason or f'{self.units} are labelled, {needed} needed'}"
        how = "bootstrap" if self.drawn else "Student's t, leaving out one at a time,"
        taken = "" if self.groups or self.side is not None else ", each taken for a place of its own"
        return f"from {self.span} (95 %, {how} over {self.units}{taken})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` is the inverse."""
        over: dict[str, Any] = {"groups" if self.groups else "scenes": self.count}
        over = over if self.side is None else {"blocks": self.count, "side": self.side}
        over |= {"reason": self.reason} if self.reason else {}
        over |= {} if self.drawn else {"by": _STUDENT}
        return dict(zip(INTERVAL, (self.bounds and list(self.bounds), over), strict=True))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], scenes: int) -> Interval | None:
        """Return the interval in a file of scores, None if it has none; earlier ones are over `scenes`."""
        if INTERVAL[0] not in data:
            return None
        bounds, over = data[INTERVAL[0]], data.get(INTERVAL[1], {"scenes": scenes})
        kind = next(key for key in ("blocks", "groups", "scenes") if key in over)
        side = int(over["side"]) if kind == "blocks" else None
        bounds = None if bounds is None else (float(bounds[0]), float(bounds[1]))
        how = str(over.get("reason", "")), over.get("by") != _STUDENT
        return cls(bounds, int(over[kind]), side, kind == "groups", *how)
