"""Windows: every pixel of a raster is kept once; resampling, against a dense computation."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segmenter.grid.geometry import Size, Window
from segmenter.grid.resampling import as_type, count_of, resample, sources, step_of, taps
from segmenter.grid.windows import Placement, grid, halo_windows
from tests.helpers.dense_resampling import dense_resampled

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


STEPS = [Fraction(5), Fraction(7, 3), Fraction(1021, 1000), Fraction(1), Fraction(3, 4), Fraction(2, 9)]


@pytest.mark.parametrize("rows", STEPS, ids=str)
@pytest.mark.parametrize("cols", STEPS[::2], ids=str)
def test_values_are_means_over_areas_or_lie_between_centres(
    rng: np.random.Generator, rows: Fraction, cols: Fraction
) -> None:
    """Weighted over the pixels that have data."""
    image = rng.integers(0, 60_000, (31, 43, 2)).astype(np.uint16)
    valid = rng.random((31, 43)) > 0.3
    valid[10:20, 5:30] = False
    image[~valid] = 0
    size = count_of(31, rows), count_of(43, cols)
    found, there = resample(image, valid, taps(0, size[0], 31, rows), taps(0, size[1], 43, cols))
    values, places = dense_resampled(image, valid, rows, cols)
    np.testing.assert_array_equal(there, places)
    np.testing.assert_allclose(found, values, rtol=2e-5, atol=1e-3)
    assert not there.all()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_window_has_the_bits_of_the_whole(rng: np.random.Generator, step: Fraction, dtype: str) -> None:
    image = (rng.random((61, 61, 3)) * 250).astype(dtype)
    valid = np.ones((61, 61), np.bool_)
    valid[:7, 40:] = False
    image[~valid] = 0
    count = count_of(61, step)
    whole, there = resample(image, valid, taps(0, count, 61, step), taps(0, count, 61, step))
    assert not there.all()
    for first, stop in [(0, 1), (count // 3, count // 2 + 1), (count - 2, count)]:
        low, high = sources(first, stop, 61, step)
        part = taps(first, stop, 61, step).shifted(-low, high - low)
        found, some = resample(image[low:high, low:high], valid[low:high, low:high], part, part)
        assert found.tobytes() == whole[first:stop, first:stop].tobytes()
        np.testing.assert_array_equal(some, there[first:stop, first:stop])


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_every_pixel_with_data_gets_back_a_value(rng: np.random.Generator, step: Fraction) -> None:
    """Forth and back: a pixel with data, alone as it may be, depends on a pixel of the grid that has data."""
    valid = rng.random((47, 53)) > 0.97
    valid[0, 0] = valid[46, 52] = True
    steps, back = (count_of(47, step), count_of(53, step)), 1 / step
    image = valid[..., None].astype(np.float32)
    there, some = resample(image, valid, taps(0, steps[0], 47, step), taps(0, steps[1], 53, step))
    rows, cols = taps(0, 47, steps[0], back), taps(0, 53, steps[1], back)
    values, known = resample(there, some, rows, cols)
    assert known[valid].all()
    np.testing.assert_allclose(values[valid], 1, rtol=1e-6)


def test_steps_are_fractions_next_to_a_ratio() -> None:
    assert step_of(0.5 / 0.1) == 5
    assert step_of(0.3 / 0.1) == 3
    assert step_of(0.1 / 0.3) == Fraction(1, 3)
    for ratio in np.geomspace(1 / 64, 256, 57):
        assert abs(float(step_of(ratio)) / ratio - 1) < 1e-3


def test_whole_numbers_are_rounded_and_kept_in_their_range() -> None:
    assert as_type(np.array([-3.0, 1.5, 2.5, 300.0]), "uint8").tolist() == [0, 2, 2, 255]
    assert as_type(np.array([2.0**63]), "int64").tolist() == [2**63 - 1024]
