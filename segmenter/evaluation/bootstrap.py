"""Interval of mIoU by bootstrap over scenes, or over blocks of the ground, never over pixels.

Neighbouring pixels err together, and their number would make any interval narrow. From `LEAST` labelled
scenes on, scenes are drawn with replacement. Of fewer, square blocks of all scenes are drawn, of the largest
side that leaves `LEAST` labelled ones: the interval is then for ground like that of these scenes.

The interval is that of percentiles (Efron 1979, doi 10.1214/aos/1176344552), expanded by Student's t for few
units (Hesterberg 2015, doi 10.1080/00031305.2015.1089789). Where errors reach over a block's edge, the
variance V(s) of draws of blocks of side s is too small by a share of order 1/s, which 2 V(s) - V(s/2) removes
(Politis and Romano 1995, doi 10.1111/j.1467-9892.1995.tb00223.x): an interval of blocks is widened by the
root of that over V(s), never narrowed. `studies/miou_intervals.md` has the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window

if TYPE_CHECKING:
    from segmenter.evaluation.protocol import Protocol
    from segmenter.evaluation.scores import ConfusionMatrix

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


LEAST = 10
"""Scenes or blocks below which draws tell nothing."""
_DRAWS, _AT_ONCE = 2000, 100
INTERVAL = ("miou_interval", "miou_interval_over")
"""Keys in files of scores: its bounds, and the units that it is over."""

Units = NDArray[np.float64]
"""(N, 2, K) pixels of scenes or blocks that are of a class in truth and map, and in either of them."""


@dataclass(frozen=True)
class Interval:
    """95 % interval of mIoU.

    Attributes:
        bounds: lowest and highest mIoU; None: the units are too few.
        count: scenes or blocks with labelled pixels.
        side: pixels of a block's side; None: they are scenes.
    """

    bounds: tuple[float, float] | None
    count: int
    side: int | None = None

    @property
    def span(self) -> str:
        """Bounds in percent; – if there are none."""
        return "–" if self.bounds is None else " to ".join(f"{100 * bound:.2f}" for bound in self.bounds)

    def __str__(self) -> str:
        units = f"{self.count} scenes" if self.side is None else f"{self.count} blocks of {self.side:,} px"
        if self.bounds is None:
            return f"without an interval: {units} are labelled, {LEAST} needed"
        return f"from {self.span} (95 %, bootstrap over {units})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` is the inverse."""
        over = {"scenes": self.count} if self.side is None else {"blocks": self.count, "side": self.side}
        return dict(zip(INTERVAL, (self.bounds and list(self.bounds), over), strict=True))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], scenes: int) -> Interval | None:
        """Return the interval in a file of scores, None if it has none; earlier ones are over `scenes`."""
        if INTERVAL[0] not in data:
            return None
        bounds, over = data[INTERVAL[0]], data.get(INTERVAL[1], {"scenes": scenes})
        side = int(over["side"]) if "side" in over else None
        count = int(over["scenes" if side is None else "blocks"])
        return cls(None if bounds is None else (float(bounds[0]), float(bounds[1])), count, side)


def forget_blocks(scenes: Sequence[ConfusionMatrix]) -> None:
    """Free the memory of all blocks if the scenes are enough themselves."""
    if sum(scene.pixels > 0 for scene in scenes) >= LEAST:
        for scene in scenes:
            scene.blocks = None


def miou_interval(scenes: Sequence[ConfusionMatrix], protocol: Protocol) -> Interval | None:
    """Return the interval of the mIoU of all scenes together; the same for the same counts.

    None if nothing is labelled, or of fewer than `LEAST` scenes whose blocks were not counted.
    """
    scenes = [scene for scene in scenes if scene.pixels]
    if not scenes:
        return None
    counted = [scenes[0].classes.names.index(name) for name in protocol.classes]
    if len(scenes) >= LEAST:
        units = np.concatenate([_units(scene.counts[None], counted) for scene in scenes])
        return Interval(_bounds([units]), len(units))
    blocks = [scene.blocks for scene in scenes if scene.blocks is not None]
    if len(blocks) < len(scenes):
        return None
    side, levels = max(each.side for each in blocks), list[Units]()
    while len(units := np.concatenate([_units(each.merged(side), counted) for each in blocks])) >= LEAST:
        levels.append(units)
        side *= 2
    if not levels:
        return Interval(None, len(units), side)
    return Interval(_bounds(levels), len(levels[-1]), side // 2)


def _units(counts: NDArray[np.int64], counted: Sequence[int]) -> Units:
    """Return those with labelled pixels of (N, K, K + 1) counts, for the protocol's classes."""
    matrix = counts[:, counted][:, :, counted]
    truth = counts[:, counted, :-1].sum(axis=2)
    both = np.diagonal(matrix, axis1=1, axis2=2)
    units = np.stack([both, truth + matrix.sum(axis=1) - both], axis=1)
    return units[truth.any(axis=1)].astype(np.float64)  # sums of whole numbers are exact below 2^53


def _bounds(levels: Sequence[Units]) -> tuple[float, float] | None:
    """Return the interval over the last of units of growing sides; None if they are fewer than `LEAST`."""
    count = len(levels[-1])
    if count < LEAST:
        return None
    from scipy.special import ndtr, stdtrit  # here: all that reads scores would wait for it

    drawn = _drawn(levels[-1])
    tail = 100 * ndtr(stdtrit(count - 1, 0.025) * math.sqrt(count / (count - 1)))
    low, middle, high = np.percentile(drawn, (tail, 50, 100 - tail))
    wider = 1.0
    if len(levels) > 1 and (variance := _variance(drawn, count)):
        finer = _variance(_drawn(levels[-2]), len(levels[-2]))
        wider = math.sqrt(min(2.0, max(1.0, 2 - finer / variance)))
    low, high = middle - wider * (middle - low), middle + wider * (high - middle)
    return max(0.0, float(low)), min(1.0, float(high))


def _drawn(units: Units) -> NDArray[np.float64]:
    """Return the mIoU of each draw of as many units with replacement."""
    count, rng, found = len(units), np.random.default_rng(0), []
    for _ in range(_DRAWS // _AT_ONCE):
        draws = rng.multinomial(count, np.full(count, 1 / count), _AT_ONCE).astype(np.float64)
        both, either = np.moveaxis((draws @ units.reshape(count, -1)).reshape(_AT_ONCE, 2, -1), 1, 0)
        iou = np.divide(both, either, out=np.zeros(both.shape), where=either > 0)
        found.append(iou.sum(axis=1) / (either > 0).sum(axis=1))
    return np.concatenate(found)


def _variance(drawn: NDArray[np.float64], count: int) -> float:
    return float(drawn.var()) * count / (count - 1)
