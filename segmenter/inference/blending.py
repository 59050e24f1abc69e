"""Smooth mode: overlapping windows, weighted and summed. For models whose reach exceeds any halo.

The law of this module: **the weights of all windows sum to 1 on every pixel**. Windows lie on a rectangular
grid and their weights are products of one factor along rows and one along columns, so each axis is divided by
its sum in advance, without counts or divisions per pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError
from segmenter.grid.geometry import Size, Window
from segmenter.inference.events import Entry, Finished, Piece, Weighted
from segmenter.inference.prediction import ExtraOutputs, Prediction

_PIXELS_AT_ONCE = 1 << 20
"""Pixels yielded at once; processing their probabilities takes temporary memory."""

WEIGHTS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    # Of the distance from the window's centre to that of a pixel, as a share of half the side: below 1.
    "hann": lambda x: np.cos(np.pi / 2 * x) ** 2,
    "gaussian": lambda x: np.exp(-0.5 * (x / 0.25) ** 2),  # sigma is an eighth of the side, as in nnU-Net
    "linear": lambda x: 1 - np.abs(x),
}


@dataclass(frozen=True)
class Blend:
    """Settings of blending.

    Attributes:
        overlap: overlap of neighbouring windows, in percent of their side.
        weights: shape of a window's weight, which falls from its centre to its border but stays above 0.
    """

    overlap: float = 50
    weights: Literal["hann", "gaussian", "linear"] = "hann"

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 95:
            raise ConfigError("--overlap", expected="0 … 95 percent of a window", got=f"{self.overlap:g}")

    def step(self, side: int, stride: int) -> int:
        """Return the pixels from one window to the next, a multiple of the stride."""
        return max(stride, int(side * (100 - self.overlap) / 100) // stride * stride)


def window_weights(kind: str, side: int) -> NDArray[np.float64]:
    """Return weights along one side of a window, symmetric, largest in the middle, never zero."""
    return WEIGHTS[kind]((2 * np.arange(side) + 1 - side) / side)


def blend_windows(area: Window, window: Size, blend: Blend, stride: int, part: Window) -> Iterator[Weighted]:
    """Yield the windows over an area that touch one part of it, row by row.

    They are windows of the whole area, which is treated as padded below and right to a multiple of `stride`;
    they are aligned to the stride, and none reaches beyond the area. `keep` is a window's overlap with the
    part. Memory grows with the number of windows side by side, so a part should not be wide.
    """
    wanted, padded = part.intersection(area).relative_to(area), area.size.round_up(stride)
    side = window.round_up(stride)
    cols = list(_axis(padded.width, side.width, blend, stride, wanted.col, wanted.col_stop))
    for top, row_weights in _axis(padded.height, side.height, blend, stride, wanted.row, wanted.row_stop):
        for left, col_weights in cols:
            read = Window(top, left, len(row_weights), len(col_weights)).shifted(area.row, area.col)
            keep = read.intersection(part)
            if keep.size.pixels:
                yield Weighted(read, keep, row_weights, col_weights)


def _axis(
    length: int, window: int, blend: Blend, stride: int, first: int, last: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (start, weights) of the windows along an axis that touch first … last; weights sum to 1."""
    side = min(window, length)
    step = blend.step(side, stride)
    count = -(-(length - side) // step) + 1
    more = -(-side // step)  # windows to either side that overlap one
    weights = window_weights(blend.weights, side)
    for i in range(max(0, (first - side) // step), min(count - 1, last // step + 1) + 1):
        start, total = min(i * step, length - side), np.zeros(side)
        if start >= last or start + side <= first:
            continue
        # Always in the same order, whatever the part: the sum's bits depend on it.
        for other in range(max(0, i - more), min(count - 1, i + more) + 1):
            shift = min(other * step, length - side) - start
            if abs(shift) < side:
                total[max(shift, 0) : side + min(shift, 0)] += weights[max(-shift, 0) : side - max(shift, 0)]
        yield start, (weights / total).astype(np.float32)


class Blender:
    """Sum of the windows of jobs; yields rows when complete.

    Memory: K × window height × column width × 4 bytes for each job; several jobs run at a time only if their
    rasters are smaller than a batch.
    """

    def __init__(self, wanted: ExtraOutputs, classes: int) -> None:
        self._wanted, self._classes = wanted, classes
        self._bands: dict[int, _Band] = {}

    def take(
        self, entry: Entry[Any], weighted_HWK: NDArray[np.float32] | None
    ) -> Iterator[tuple[Window, Prediction]]:
        """Take the next entry of a job: a window with its weighted probabilities, or the job's end.

        Args:
            weighted_HWK: None if the window has no data, and at the end.

        Yields:
            Complete rows of the job's part, or of one of its columns.
        """
        key = id(entry.job)
        if not isinstance(entry, Piece):
            band = self._bands.pop(key, None)
            if band is not None and isinstance(entry, Finished):
                yield from band.give(band.part.row_stop, self._wanted)
            return
        band = self._bands.get(key)
        if band is not None and band.part != entry.part:  # the next column begins
            yield from band.give(band.part.row_stop, self._wanted)
            band = None
            del self._bands[key]  # before there is another one
        if band is None:
            band = self._bands[key] = _Band(entry.part, entry.place.read.height, self._classes)
        yield from band.give(entry.place.read.row, self._wanted)
        band.add(entry, weighted_HWK)


class _Band:
    """Incomplete rows of a part."""

    def __init__(self, part: Window, height: int, classes: int) -> None:
        self.part, self._top = part, part.row
        rows = min(height, part.height)
        self._sums = np.zeros((rows, part.width, classes), np.float32)
        self._valid = np.zeros((rows, part.width), np.bool_)

    def add(self, piece: Piece[Any], weighted_HWK: NDArray[np.float32] | None) -> None:
        into = piece.keep.shifted(-self._top, -self.part.col).slices()
        self._valid[into] = piece.valid
        if weighted_HWK is not None:
            self._sums[into] += weighted_HWK[piece.within.slices()]

    def give(self, row: int, wanted: ExtraOutputs) -> Iterator[tuple[Window, Prediction]]:
        """Yield the rows above `row`, which no further window will reach."""
        done = min(row, self.part.row_stop) - self._top
        if done <= 0:
            return
        step = max(1, _PIXELS_AT_ONCE // max(1, self.part.width))
        for first in range(0, done, step):
            rows = slice(first, min(first + step, done))
            window = Window(self._top + first, self.part.col, rows.stop - first, self.part.width)
            prediction = Prediction.of_probabilities(self._sums[rows], wanted)
            yield window, prediction.masked(self._valid[rows])
        self._shift(done)
        self._top += done

    def _shift(self, done: int) -> None:
        """Move the remaining rows to the top, in steps without overlap: NumPy would copy them first."""
        for array in (self._sums, self._valid):
            left = len(array) - done
            for first in range(0, left, done):
                count = min(done, left - first)
                array[first : first + count] = array[first + done : first + done + count]
            array[max(left, 0) :] = 0
