"""Smooth mode: the weights of all windows sum to 1 on every pixel, and rows come out as they are complete."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segmenter.base.errors import ConfigError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.inference.blending import WEIGHTS, Blend, blend_windows, window_weights
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import Tiling
from tests.helpers.array_raster import ArrayRaster, scene
from tests.helpers.exact_network import exact_network
from tests.helpers.whole_prediction import blended

kinds = st.sampled_from(sorted(WEIGHTS))
sides = st.integers(1, 150)


@given(sides, sides, kinds, st.sampled_from([0, 10, 25, 50, 75, 90]), st.sampled_from([1, 4, 8]), st.data())
@example(1, 1, "hann", 50, 8, None)
@example(101, 149, "linear", 75, 8, None)
def test_weights_sum_to_1_on_every_pixel(
    height: int, width: int, kind: Any, overlap: int, stride: int, data: st.DataObject | None
) -> None:
    side = data.draw(st.integers(1, 70)) if data else 40
    area = Window(-8, 16, height, width)
    padded = area.size.round_up(stride)
    total = np.zeros((padded.height, padded.width))
    places = list(blend_windows(area, Size(side, side), Blend(overlap, kind), stride, area))
    for place in places:
        assert place.read.size == Size(len(place.rows), len(place.cols))
        assert (place.read.row - area.row) % stride == (place.read.col - area.col) % stride == 0
        assert min(place.rows.min(), place.cols.min()) > 0
        total[place.read.relative_to(area).slices()] += np.outer(place.rows, place.cols)
    kept = total[:height, :width]  # what pads the raster belongs to nobody
    np.testing.assert_allclose(kept, 1, atol=2e-6)
    if data is not None:
        row, col = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        part = Window(area.row + row, area.col + col, height - row, data.draw(st.integers(1, width - col)))
        some = {p.read: p for p in blend_windows(area, Size(side, side), Blend(overlap, kind), stride, part)}
        touching = [p for p in places if p.read.intersection(part).size.pixels]
        assert list(some) == [p.read for p in touching]  # those of the whole, with the same weights
        for place in touching:
            np.testing.assert_array_equal(place.rows, some[place.read].rows)
            np.testing.assert_array_equal(place.cols, some[place.read].cols)


def test_blending_is_the_weighted_mean_of_the_windows(rng: np.random.Generator) -> None:
    """Against the textbook's way, with whole-raster sums and counts in float64."""
    raster = ArrayRaster(rng.integers(0, 255, (101, 203, 2), np.uint8))
    raster.valid[:, 150:] = False
    predict = exact_network(5, 8, wanted=ExtraOutputs(True, "float16"))
    exact = exact_network(5, 8, wanted=ExtraOutputs(probabilities="float16"))
    tiling = Tiling(Size(40, 48), 0, 8, 3, Blend(50, "hann"))
    sums, counts = np.zeros((104, 208, 7)), np.zeros((104, 208, 1))
    weights = np.outer(window_weights("hann", 40), window_weights("hann", 48))[..., None]
    for top in (0, 16, 32, 48, 64):
        for left in (*range(0, 160, 24), 160):
            image, valid = raster.read(Window(top, left, 40, 48))
            sums[top : top + 40, left : left + 48] += (
                weights * exact(image[None], valid[None]).probabilities[0]
            )
            counts[top : top + 40, left : left + 48] += weights
    mean = (sums / counts)[:101, :203]
    found = blended(raster, tiling, predict)
    assert (found.ids != np.where(raster.valid, mean.argmax(-1), IGNORE)).mean() < 1e-3  # ties by rounding
    np.testing.assert_allclose(found.probabilities, np.where(raster.valid[..., None], mean, 0), atol=1e-3)


@given(st.data())
def test_a_part_is_that_part_of_the_whole_bit_for_bit(data: st.DataObject) -> None:
    """Also where an earlier run has done rows of it."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    height, width = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 120))
    raster, predict = scene(rng, height, width), exact_network(3, 8, wanted=ExtraOutputs(True, "float16"))
    row, col = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    part = Window(row, col, data.draw(st.integers(1, height - row)), data.draw(st.integers(1, width - col)))
    done = data.draw(st.integers(0, part.height - 1))
    tiling = Tiling(Size(40, 32), 0, 8, data.draw(st.integers(1, 4)), Blend(50, data.draw(kinds)))
    whole, found = blended(raster, tiling, predict), blended(raster, tiling, predict, part, done)
    rows = slice(row + done, part.row_stop)
    for name in ("ids", "confidence", "probabilities"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name)[rows, col : part.col_stop])


def test_a_senseless_overlap_is_refused() -> None:
    with pytest.raises(ConfigError, match="--overlap"):
        Blend(100)
