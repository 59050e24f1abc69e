"""Resampling onto finer and coarser grids: against a dense computation, and the same bits in any window."""

from fractions import Fraction

import numpy as np
import pytest

from segmenter.grid.resampling import as_type, count_of, resampled, sources, step_of, taps
from tests.helpers.dense_resampling import dense_resampled

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
    found, there = resampled(image, valid, taps(0, size[0], 31, rows), taps(0, size[1], 43, cols))
    values, places = dense_resampled(image, valid, rows, cols)
    np.testing.assert_array_equal(there, places)
    np.testing.assert_allclose(found, values, rtol=2e-5, atol=1e-3)
    assert not there.all()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_window_has_the_bits_of_the_whole(rng: np.random.Generator, step: Fraction, dtype: str) -> None:
    """Whatever else is computed at once, and whether it has holes."""
    image = (rng.random((61, 61, 3)) * 250).astype(dtype)
    valid = np.ones((61, 61), np.bool_)
    valid[:7, 40:] = False
    image[~valid] = 0
    count = count_of(61, step)
    whole, there = resampled(image, valid, taps(0, count, 61, step), taps(0, count, 61, step))
    assert not there.all()
    for first, stop in [(0, 1), (count // 3, count // 2 + 1), (count - 2, count)]:
        low, high = sources(first, stop, 61, step)
        part = taps(first, stop, 61, step).shifted(-low, high - low)
        found, some = resampled(image[low:high, low:high], valid[low:high, low:high], part, part)
        assert found.tobytes() == whole[first:stop, first:stop].tobytes()
        np.testing.assert_array_equal(some, there[first:stop, first:stop])


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_every_pixel_with_data_gets_back_a_value(rng: np.random.Generator, step: Fraction) -> None:
    """There and back: a pixel with data, alone as it may be, depends on a pixel of the grid that has data."""
    valid = rng.random((47, 53)) > 0.97
    valid[0, 0] = valid[46, 52] = True
    steps, back = (count_of(47, step), count_of(53, step)), 1 / step
    image = valid[..., None].astype(np.float32)
    there, some = resampled(image, valid, taps(0, steps[0], 47, step), taps(0, steps[1], 53, step))
    rows, cols = taps(0, 47, steps[0], back), taps(0, 53, steps[1], back)
    values, known = resampled(there, some, rows, cols)
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
