"""Sizes and windows, and the law of tiling: every pixel of the raster is kept exactly once."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import Placement, grid, halo_windows

sides = st.integers(1, 90)
sizes = st.builds(Size, sides, sides)


def _times_kept(placements: Iterable[Placement], size: Size) -> np.ndarray:
    """How often each pixel is kept; fails where a kept part leaves the raster or its own window."""
    kept = np.zeros((size.height, size.width), int)
    for placement in placements:
        assert Window.of(size).contains(placement.keep), placement
        assert placement.read.contains(placement.keep), placement
        assert placement.keep.size.pixels > 0, placement
        kept[placement.keep.slices()] += 1
    return kept


def _most_windows(length: int, window: int, step: int) -> int:
    """Along one axis: no more than ceil((length − window) / step) + 1."""
    return 1 if length <= window else -(-(length - window) // step) + 1


@given(sizes, st.integers(1, 30), st.integers(1, 30), st.integers(0, 29))
@example(Size(101, 203), 11, 13, 0)
@example(Size(101, 203), 11, 13, 5)
@example(Size(1, 1), 11, 13, 3)
@example(Size(5, 203), 11, 13, 10)
def test_grid_keeps_every_pixel_exactly_once(size: Size, height: int, width: int, overlap: int) -> None:
    tile, overlap = Size(height, width), min(overlap, height - 1, width - 1)
    tiles = list(grid(size, tile, overlap))
    assert (_times_kept(tiles, size) == 1).all()
    assert {placement.read.size for placement in tiles} == {tile}
    rows = _most_windows(size.height, height, height - overlap)
    assert len(tiles) == rows * _most_windows(size.width, width, width - overlap)


@given(sizes, st.integers(2, 30), st.integers(1, 29))
def test_grid_stays_in_the_scene_and_overlaps_enough(size: Size, side: int, overlap: int) -> None:
    overlap = min(overlap, side - 1)
    reads = [placement.read for placement in grid(size, Size(side, side), overlap)]
    for length, axis in ((size.height, "row"), (size.width, "col")):
        starts = sorted({getattr(read, axis) for read in reads})
        assert starts[0] == 0
        assert starts[-1] == max(0, length - side)
        assert all(b - a <= side - overlap for a, b in pairwise(starts))


@pytest.mark.parametrize("overlap", [-1, 11, 40])
def test_grid_refuses_an_overlap_that_does_not_fit(overlap: int) -> None:
    with pytest.raises(ValueError, match=rf"0 … 10 pixels, got {overlap}"):
        list(grid(Size(101, 203), Size(11, 13), overlap))


halos = st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 21), st.integers(1, 40))


def _windows(size: Size, stride: int, halo: int, room: int) -> tuple[Size, list[Placement]]:
    """A window with `room` more than two halos, and its placements."""
    window = Size(2 * (halo + stride) + room, 2 * (halo + stride) + room + 3)
    return window, list(halo_windows(size, window, halo, stride))


@given(sizes, halos)
def test_halo_windows_are_no_more_than_needed(size: Size, halo: tuple[int, int, int]) -> None:
    stride, radius, _ = halo
    window, placements = _windows(size, *halo)
    padded, largest = size.round_up(stride), window.round_up(stride)
    step = 2 * (-(-radius // stride) * stride)
    rows = _most_windows(padded.height, largest.height, largest.height - step)
    assert len(placements) <= rows * _most_windows(padded.width, largest.width, largest.width - step)
    # One shape for all: one compiled model does them all.
    (read,) = {placement.read.size for placement in placements}
    assert read.height <= largest.height
    assert read.width <= largest.width


@given(sizes, halos, st.data())
def test_halo_windows_keep_every_pixel_of_a_part_once_with_a_halo_on_the_grid_of_the_whole(
    size: Size, halo: tuple[int, int, int], data: st.DataObject
) -> None:
    """Also where the area does not begin at 0, as a mosaic seen from one of its files."""
    stride, radius, room = halo
    area = Window(data.draw(st.integers(-50, 50)), data.draw(st.integers(-50, 50)), size.height, size.width)
    row, col = data.draw(st.integers(0, size.height - 1)), data.draw(st.integers(0, size.width - 1))
    height, width = data.draw(st.integers(1, size.height - row)), data.draw(st.integers(1, size.width - col))
    part = Window(area.row + row, area.col + col, height, width)
    window = Size(2 * (radius + stride) + room, 2 * (radius + stride) + room + 3)
    padded = Window(area.row, area.col, size.round_up(stride).height, size.round_up(stride).width)
    kept = np.zeros((height, width), int)
    for place in halo_windows(area, window, radius, stride, part):
        assert padded.contains(place.read)
        assert (place.read.row - area.row) % stride == (place.read.col - area.col) % stride == 0
        assert place.read.height % stride == place.read.width % stride == 0
        read, keep = place.read, place.keep
        assert read.contains(keep)
        assert keep.size.pixels > 0
        assert read.row == area.row or keep.row - read.row >= radius
        assert read.col == area.col or keep.col - read.col >= radius
        assert read.row_stop == padded.row_stop or read.row_stop - keep.row_stop >= radius
        assert read.col_stop == padded.col_stop or read.col_stop - keep.col_stop >= radius
        kept[place.keep.relative_to(part).slices()] += 1
    assert (kept == 1).all()


def test_windows_are_no_larger_than_so_many_need_to_be() -> None:
    def sides(length: int) -> tuple[int, int]:
        places = list(halo_windows(Size(length, 1), Size(512, 512), 96, 16))
        return len(places), places[0].read.height

    assert sides(512) == (1, 512)
    assert sides(6000) == (19, 512)  # 19 · (496 − 192) + 192 pixels would do for 5968 only
    assert sides(600) == (2, 400)
    assert sides(1100) == (3, 496)


def test_a_window_that_is_all_halo_is_refused() -> None:
    with pytest.raises(ValueError, match="64×64 pixels keeps"):
        list(halo_windows(Size(200, 200), Size(64, 64), 30, 16))


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


@pytest.mark.parametrize("make", [lambda: Size(-1, 3), lambda: Window(0, 0, 3, -1)])
def test_negative_sides_are_refused(make) -> None:
    with pytest.raises(ValueError, match="negative side"):
        make()
