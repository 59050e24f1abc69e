"""Sizes and windows: plain integer laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.grid.geometry import Size, Window

windows = st.builds(
    Window, st.integers(-30, 30), st.integers(-30, 30), st.integers(0, 30), st.integers(0, 30)
)


def _mask(window: Window) -> np.ndarray:
    """The window's pixels in a canvas that holds every window of `windows`."""
    canvas = np.zeros((100, 100), bool)
    canvas[window.shifted(30, 30).slices()] = True
    return canvas


@given(windows, windows)
def test_intersection_is_the_common_pixels(a: Window, b: Window) -> None:
    assert np.array_equal(_mask(a.intersection(b)), _mask(a) & _mask(b))
    assert _mask(a).sum() == a.size.pixels


@given(windows, windows)
def test_contains_means_every_pixel(a: Window, b: Window) -> None:
    inside = not (_mask(b) & ~_mask(a)).any()
    assert a.contains(b) == inside or b.size.pixels == 0


@given(windows, windows)
def test_relative_to_keeps_the_same_pixels(a: Window, b: Window) -> None:
    relative = a.relative_to(b)
    assert relative.size == a.size
    assert relative.shifted(b.row, b.col) == a


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 64))
def test_round_up_is_the_smallest_multiple(height: int, width: int, multiple: int) -> None:
    size = Size(height, width).round_up(multiple)
    assert size.height % multiple == size.width % multiple == 0
    assert 0 <= size.height - height < multiple
    assert 0 <= size.width - width < multiple


def test_window_of_a_size_starts_at_the_origin() -> None:
    window = Window.of(Size(101, 203))
    assert (window.row, window.col, window.row_stop, window.col_stop) == (0, 0, 101, 203)
    assert window.size == Size(101, 203)


def test_rows_come_before_columns_in_text() -> None:
    assert str(Size(101, 203)) == "203×101"
    assert str(Window(5, 7, 11, 13)) == "rows 5–15, columns 7–19"


@pytest.mark.parametrize("make", [lambda: Size(-1, 3), lambda: Window(0, 0, 3, -1)])
def test_negative_sides_are_refused(make) -> None:
    with pytest.raises(ValueError, match="no negative side"):
        make()
