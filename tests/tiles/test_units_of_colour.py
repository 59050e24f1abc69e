"""Colour changes go by each band's own deviation over the training set, whatever its numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE
from segmenter.tiles.augment import Augmenter, Tile, Unit, _wide
from segmenter.tiles.statistics import BandStatistics

SIDE = 64
MEAN, STD = np.array([3000, 0.3, 12, 285.0]), np.array([800, 0.2, 9, 5.0])
"""Reflectance × 10,000, an index in −1 … 1, a slope in degrees, a temperature in kelvins."""
DEFAULT: dict[str, Any] = {"d4": False}
NOISE = {"d4": False, "brightness": 0, "contrast": 0, "noise": 0.1}
LISTED = ("RandomGamma", "PlasmaShadow", "UnsharpMask", "RandomToneCurve", "Sharpen", "GaussianBlur")


def config_of(config: Any) -> AugmentationConfig:
    listed = [{"name": config, "p": 1.0}] if isinstance(config, str) else config
    return AugmentationConfig.model_validate(listed)


def augmenter(config: Any, mean: Any = MEAN, std: Any = STD, dtype: str = "float32") -> Augmenter:
    return Augmenter(config_of(config), BandStatistics.of(dtype, np.asarray(mean), np.asarray(std)))


def tile(mean: Any = MEAN, std: Any = STD, dtype: str = "float32") -> Tile:
    rng = np.random.default_rng(4)
    image = rng.normal(mean, std, (SIDE, SIDE, len(mean)))
    if np.dtype(dtype).kind in "iu":
        image = np.clip(np.rint(image), np.iinfo(dtype).min, np.iinfo(dtype).max)
    return image.astype(dtype), np.ones((SIDE, SIDE), np.bool_), np.zeros((SIDE, SIDE), np.uint8)


def shifts(change: Augmenter, before: Tile, std: Any, draws: int = 200) -> NDArray[np.float64]:
    """(draws, bands): by how many of its deviations each band's mean moves."""
    mean = before[0].mean(axis=(0, 1), dtype=np.float64)
    after = (change(before, seed)[0].mean(axis=(0, 1), dtype=np.float64) for seed in range(draws))
    return np.array([(found - mean) / std for found in after])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_band_moves_by_the_same_number_of_its_deviations(dtype: str) -> None:
    """At the defaults as far as photographs of 8 bits do: by 0.8 deviations, 1.8 at most."""
    moved = shifts(augmenter(DEFAULT, dtype=dtype), tile(dtype=dtype), STD)
    assert np.ptp(moved, axis=1).max() < 0.05
    assert 0.6 < np.sqrt((moved**2).mean()) < 1
    assert 1.3 < np.abs(moved).max() < 1.9


def test_photographs_move_about_as_far() -> None:
    mean, std = np.array([110, 105, 95.0]), np.array([45, 42, 40.0])
    moved = shifts(augmenter(DEFAULT, mean, std, "uint8"), tile(mean, std, "uint8"), std)
    assert 0.6 < np.sqrt((moved**2).mean()) < 1
    assert np.abs(moved).max() < 1.9


@pytest.mark.parametrize(
    ("dtype", "mean", "std"),
    [("uint16", 1500, 300), ("int16", -40, 25), ("uint8", 12, 4), ("int32", 4_500_000, 60)],
)
def test_so_do_whole_numbers_in_a_small_part_of_their_type(dtype: str, mean: int, std: int) -> None:
    """Also 8 bits, where a photograph's 51 levels would be a dozen deviations."""
    moved = shifts(augmenter(DEFAULT, [mean], [std], dtype), tile([mean], [std], dtype), std)
    assert 0.5 < np.sqrt((moved**2).mean()) < 1
    assert np.abs(moved).max() < 1.9


@pytest.mark.parametrize("config", [DEFAULT, NOISE, {**DEFAULT, "blur": 1}, *LISTED], ids=str)
def test_units_and_zero_points_do_not_matter(config: Any) -> None:
    """Kelvins are changed as degrees are, and reflectance × 10,000 as reflectance."""
    scale, offset = np.array([1e-4, 300, 0.01, 1.8]), np.array([0, -20, 5, -459.67])
    before, other = tile(dtype="float64"), augmenter(config, MEAN * scale + offset, STD * scale, "float64")
    rescaled = (before[0] * scale + offset, *before[1:])
    for seed in range(6):
        found = other(rescaled, seed)[0]
        expected = augmenter(config, dtype="float64")(before, seed)[0] * scale + offset
        np.testing.assert_allclose((found - expected) / (STD * scale), 0, atol=2e-5)


@pytest.mark.parametrize("config", [DEFAULT, NOISE, "RandomGamma", "PlasmaShadow"], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_no_pixel_decides_how_far_another_moves(config: Any, dtype: str) -> None:
    """A saturated one, or a hole without data, leaves the bits of the rest; beside zeros too."""
    mean, std = ([110.0] * 3, [40.0] * 3) if dtype == "uint8" else ([9500.0] * 3, [300.0] * 3)
    change, before = augmenter(config, mean, std, dtype), tile(mean, std, dtype)
    image, valid, label = (array.copy() for array in before)
    image[5, 7] = 255 if dtype == "uint8" else 65535
    image[40:] = 0
    valid[40:], label[40:] = False, IGNORE
    same = valid.copy()
    same[5, 7] = False
    for seed in range(8):
        whole, spoilt = change(before, seed)[0], change((image, valid, label), seed)[0]
        np.testing.assert_array_equal(spoilt[same], whole[same])


@pytest.mark.parametrize("config", [DEFAULT, {**DEFAULT, "blur": 1, "noise": 0.05}, *LISTED], ids=str)
def test_values_far_from_the_rest_stay_finite_and_far(config: Any) -> None:
    before = tile()
    before[0][9, 9], before[0][20, 20] = 65535, -1e29
    for seed in range(6):
        after = augmenter(config)(before, seed)[0]
        assert np.isfinite(after).all()
        assert (after[9, 9] > MEAN + 10 * STD).all() or "blur" in str(config).lower()
        far = np.ones((SIDE, SIDE), np.bool_)
        far[:30, :30] = False
        assert (np.abs(after - MEAN)[far] < 9 * STD + 60 * STD * ("blur" in str(config).lower())).all()


@pytest.mark.parametrize("at", [2.5, 4.0, -3.5])
def test_a_tile_at_the_end_of_the_range_keeps_its_contrast(at: float) -> None:
    """High mountains, a lake, snow: what is all beyond the range is not washed out."""
    before = tile(MEAN + at * STD, STD / 20)
    for seed in range(20):
        after = augmenter(DEFAULT)(before, seed)[0]
        kept = after.std(axis=(0, 1)) / before[0].std(axis=(0, 1))
        assert (kept > 0.75).all()
        assert (kept < 1.25).all()


def test_noise_is_a_share_of_each_bands_range() -> None:
    before = tile()
    found = [augmenter(NOISE)(before, seed)[0] - before[0] for seed in range(40)]
    spread = np.array([one.std(axis=(0, 1)) / STD for one in found])
    assert np.ptp(spread, axis=1).max() < 0.06
    assert 0.5 < spread.max() <= 0.62


def test_a_constant_band_stays() -> None:
    before = tile()
    before[0][..., 1] = 7
    statistics = BandStatistics.of("float32", np.array([3000, 7, 12, 285.0]), STD * [1, 0, 1, 1])
    after = Augmenter(config_of(DEFAULT), statistics)(before, 1)[0]
    assert (after[..., 1] == 7).all()
    assert (after[..., 0] != before[0][..., 0]).any()


def test_which_bytes_are_photographs() -> None:
    """Those whose bands fill the type; hue is asked for on nothing else."""
    wide, narrow = np.array([40.0] * 3), np.array([40, 40, 3.0])
    assert Unit.of("uint8", np.full(3, 100.0), wide) is None
    for dtype, spread in (("uint8", narrow), ("uint16", wide), ("int8", wide)):
        assert Unit.of(dtype, np.full(3, 100.0), spread) is not None
    hue = Augmenter(AugmentationConfig(hue=20), BandStatistics.of("uint8", np.full(3, 100.0), narrow))
    assert hue._unit is None


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        ("uint8", "float32"),
        ("int16", "float32"),
        ("float32", "float32"),
        ("int32", "float64"),
        ("float64", "float64"),
    ],
)
def test_pixels_are_computed_with_in_as_few_bytes_as_hold_their_digits(dtype: str, computed: str) -> None:
    assert np.dtype(_wide(np.dtype(dtype))) == computed
