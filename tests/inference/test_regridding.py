"""Predictions brought back from a grid: memory is that of the formula, and pieces do not show."""

import tracemalloc
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import Columns
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.inference.regridding import ON_THE_GRID, Regridder
from segmenter.raster.resampled import GridColumns, ModelGrid

CLASSES = 3


def everywhere(window: Window) -> np.ndarray:
    return np.ones((window.height, window.width), np.bool_)


def windows(column: Window, side: int) -> Iterator[Window]:
    """Of a column, row by row."""
    for row in range(column.row, column.row_stop, side):
        for col in range(column.col, column.col_stop, side):
            yield Window(row, col, side, side).intersection(column)


def given(window: Window, seed: int) -> Prediction:
    rng = np.random.default_rng([seed, window.row, window.col])
    probabilities = rng.random((window.height, window.width, CLASSES), np.float32)
    return Prediction.of_probabilities(probabilities / probabilities.sum(axis=2, keepdims=True), ON_THE_GRID)


def brought_back(columns: GridColumns, side: int) -> np.ndarray:
    """(H, W, K) on the raster's own pixels."""
    part = columns.own.part
    found = np.full((part.height, part.width, CLASSES), np.nan, np.float16)
    back = Regridder(columns, ExtraOutputs(probabilities="float16"), CLASSES, everywhere)
    for column in columns.left(0):
        whole = given(column, 7).probabilities
        for window in windows(column, side):
            pixels = whole[window.relative_to(column).slices()]
            ids = np.zeros(pixels.shape[:2], np.uint8)
            for own, prediction in back.take(window, Prediction(ids, probabilities=pixels)):
                found[own.relative_to(part).slices()] = prediction.probabilities
    return found


@pytest.mark.parametrize("step", [Fraction(7, 3), Fraction(3, 7), Fraction(1, 12)])
def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch, step: Fraction) -> None:
    """However few values are made at once: parts of a row, where one row alone has more."""
    part = Window(0, 0, 21, 130)
    columns = GridColumns(Columns(part, 130), ModelGrid(part, step, step))
    whole = brought_back(columns, 10_000)
    assert np.isfinite(whole).all()
    for values in (7, 400, 5000):
        monkeypatch.setattr("segmenter.inference.regridding._VALUES_AT_ONCE", values)
        np.testing.assert_array_equal(brought_back(columns, 32), whole)


def test_memory_is_that_of_a_row_of_windows_however_much_finer_the_grid_is() -> None:
    """4 K bytes for each of its pixels and those over one row of the raster's, beside a bounded piece."""
    side, fine = 512, 64
    part = Window.of(Size(9, 512))
    columns = GridColumns(Columns(part, 512), ModelGrid(part, Fraction(1, fine), Fraction(1, fine)))
    (column,) = columns.left(0)
    assert column.size == Size(9 * fine, 512 * fine)
    prediction = given(Window(0, 0, side, side), 0)
    below = given(Window(0, 0, fine, side), 0)
    back = Regridder(columns, ExtraOutputs(), CLASSES, everywhere)
    rows = 0
    tracemalloc.start()
    for window in windows(column, side):
        rows += sum(
            own.height * own.width
            for own, _ in back.take(window, prediction if window.height == side else below)
        )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == part.size.pixels
    held = 4 * CLASSES * column.width * (side + fine + 2)
    validity = column.width * 2 * (side + fine)
    assert peak < held + validity + 3 * 4 * (1 << 22)
