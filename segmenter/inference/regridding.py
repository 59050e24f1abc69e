"""Predictions on a model's grid, regridded to a raster's own pixels.

Probabilities are interpolated (coarser grid) or averaged (finer grid) before the class is chosen: borders
between classes follow the raster's pixels, not the grid's. A raster pixel with data overlaps at least one
grid pixel with data; the raster decides which pixels have data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.machine import usable_cores
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.resampling import resample, sources, taps
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.raster.resampled import GridColumns

ON_THE_GRID = ExtraOutputs(probabilities="float16")
"""Outputs asked of the model: two bytes a class, for each pixel of the grid."""
_VALUES_AT_ONCE = 1 << 22
"""Probabilities on the raster's pixels, or on the grid's where that is finer, that are made at once by all
threads."""
_THREADS = 2
"""As a processor is slower than several GPUs that see a coarser grid. Four wait for Python's lock: they take
up to twice as long, eight three times (`studies/regridding.py`)."""

Valid = Callable[[Window], NDArray[np.bool_]]


class Regridder:
    """Regridding of one raster's windows, in the order of `predictor.classify_all`.

    Memory: 4 K bytes for each pixel of a row of windows over a column of the grid, plus the rest of the
    previous row: the grid rows over one raster row.

    Args:
        columns: columns of the grid, with the same columns in raster pixels.
        wanted: outputs besides class ids.
        classes: number of classes K.
        valid: returns the mask of data for windows in raster pixels.
    """

    def __init__(self, columns: GridColumns, wanted: ExtraOutputs, classes: int, valid: Valid) -> None:
        self._grid, self._wanted, self._classes, self._valid = columns.grid, wanted, classes, valid
        self._own, self._over = columns.own.remaining(0), columns.remaining(0)
        self._next_column()

    def _next_column(self) -> None:
        own, over = next(self._own, None), next(self._over, None)
        if own is None or over is None:
            return
        self._column, self._under = own, over
        self._top, self._row = over.row, own.row  # of the grid's rows that are kept; of what is given next
        self._kept = self._blank(0)
        self._band: tuple[NDArray[Any], NDArray[np.bool_]] | None = None

    def _blank(self, rows: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        shape = rows, self._under.width
        return np.zeros((*shape, self._classes), np.float16), np.zeros(shape, np.bool_)

    def take(self, window: Window, found: Prediction) -> Iterator[tuple[Window, Prediction]]:
        """Take the next window of the grid; yield finished rows.

        Yields:
            Complete rows of a column in raster pixels, which no further window changes.
        """
        if self._band is None:
            self._band = self._blank(window.height)
        assert found.probabilities is not None
        across = slice(window.col - self._under.col, window.col_stop - self._under.col)
        self._band[0][:, across] = found.probabilities
        self._band[1][:, across] = found.ids != IGNORE
        if window.col_stop < self._under.col_stop:
            return
        pairs = zip(self._kept, self._band, strict=True)
        kept, valid = (np.concatenate(pair) if len(pair[0]) else pair[1] for pair in pairs)
        self._kept, self._band = (kept, valid), None
        yield from self._complete(window.row_stop)
        if window.row_stop == self._under.row_stop:
            self._next_column()

    def _complete(self, bottom: int) -> Iterator[tuple[Window, Prediction]]:
        """Yield the raster rows that do not depend on the grid's rows from `bottom` on."""
        stop, threads = self._ready(bottom), min(_THREADS, usable_cores())
        waiting: deque[tuple[Window, Future[Prediction]]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            for rows in self._pieces(stop):
                valid_HW = self._valid(rows)
                for part in _across(rows, threads * max(1, -(-self._values(rows) // _VALUES_AT_ONCE))):
                    valid = valid_HW[part.relative_to(rows).slices()]
                    waiting.append((part, pool.submit(self._predict, part, valid)))
                while len(waiting) > threads:
                    part, prediction = waiting.popleft()
                    yield part, prediction.result()
            for part, prediction in waiting:
                yield part, prediction.result()
        self._row = stop
        if stop < self._column.row_stop:
            first = self._over_row(stop)[0]
            self._kept = (
                self._kept[0][first - self._top :].copy(),
                self._kept[1][first - self._top :].copy(),
            )
            self._top = first

    def _pieces(self, stop: int) -> Iterator[Window]:
        """Yield windows of rows up to `stop` that are computed at once."""
        step = max(1, _VALUES_AT_ONCE // self._values(Window(0, 0, 1, self._column.width)))
        for row in range(self._row, stop, step):
            yield Window(row, self._column.col, min(step, stop - row), self._column.width)

    def _values(self, rows: Window) -> int:
        """Return the number of probabilities in some rows of a column, on the finer of raster and grid."""
        wide = max(self._column.width, self._under.width)
        return math.ceil(max(Fraction(1), 1 / self._grid.rows) * rows.height) * wide * self._classes

    def _over_row(self, row: int) -> tuple[int, int]:
        own = row - self._grid.extent.row
        return sources(own, own + 1, self._grid.size.height, 1 / self._grid.rows)

    def _ready(self, bottom: int) -> int:
        """Return the first raster row that is not ready, by bisection: later rows need later grid rows."""
        low, high = self._row, self._column.row_stop
        if bottom >= self._under.row_stop:
            return high
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._over_row(middle)[1] <= bottom else (low, middle)
        return low

    def _predict(self, window: Window, valid_HW: NDArray[np.bool_]) -> Prediction:
        if not valid_HW.any():
            return Prediction.blank(window.size, self._wanted, self._classes)
        grid, own = self._grid, window.relative_to(self._grid.extent)
        first, last = sources(own.row, own.row_stop, grid.size.height, 1 / grid.rows)
        rows = taps(own.row, own.row_stop, grid.size.height, 1 / grid.rows).shifted(-first, last - first)
        left, right = sources(own.col, own.col_stop, grid.size.width, 1 / grid.cols)
        cols = taps(own.col, own.col_stop, grid.size.width, 1 / grid.cols).shifted(-left, right - left)
        part = (
            slice(first - self._top, last - self._top),
            slice(left - self._under.col, right - self._under.col),
        )
        probabilities_HWK, _ = resample(self._kept[0][part], self._kept[1][part], rows, cols)
        return Prediction.of_probabilities(probabilities_HWK, self._wanted).masked(valid_HW)


def _across(rows: Window, parts: int) -> Iterator[Window]:
    """Yield rows cut into parts from left to right; column weights of a part serve all its rows."""
    wide = -(-rows.width // parts)
    for col in range(rows.col, rows.col_stop, wide):
        yield Window(rows.row, col, rows.height, min(wide, rows.col_stop - col))
