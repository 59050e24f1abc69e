"""Augmentation: label and validity move with the image, nothing is invented, one seed gives one result."""

from itertools import product
from typing import Any

import albumentations
import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE
from segmenter.tiles.augment import Augmenter
from segmenter.tiles.kernels import Planes, transform_tile, turn
from segmenter.tiles.statistics import BandStatistics
from segmenter.tiles.store import Tile
from tests.helpers.made_statistics import statistics_of

NONE = AugmentationConfig(d4=False, brightness=0, contrast=0)
ALL = AugmentationConfig(scale=0.3, rotation=45, blur=0.5)


def tile(dtype: str = "uint8", bands: int = 3, side: int = 33) -> Tile:
    rng = np.random.default_rng(5)
    image = rng.integers(0, 200, (side, side, bands)).astype(dtype)
    label = rng.integers(0, 6, (side, side)).astype(np.uint8)
    label[:3] = IGNORE
    return image, rng.random((side, side)) > 0.1, label


def test_nothing_asked_nothing_changed() -> None:
    before = tile()
    for a, b in zip(Augmenter(NONE, statistics_of())(before, 1), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("dtype", "bands"),
    [
        *(("uint8", 1), ("uint16", 3), ("int16", 4), ("float32", 6), ("float64", 3)),
        *(("int8", 3), ("int32", 1), ("uint64", 5)),  # which OpenCV does not know
    ],
)
def test_every_type_and_number_of_bands(dtype: str, bands: int) -> None:
    image, valid, label = Augmenter(ALL, statistics_of(bands, dtype))(tile(dtype, bands), 3)
    assert (image.dtype, image.shape) == (np.dtype(dtype), (33, 33, bands))
    assert (valid.dtype, label.dtype) == (np.dtype(bool), np.dtype(np.uint8))
    assert image.std() > 1  # not clipped to 0 … 1


def test_what_cannot_lose_a_class_keeps_every_pixel() -> None:
    before = tile()
    after = Augmenter(ALL, statistics_of())(before, 9, geometry_that_loses_nothing=True)
    np.testing.assert_array_equal(np.bincount(after[2].ravel()), np.bincount(before[2].ravel()))


def image(dtype: str = "uint8", bands: int = 3, shape: tuple[int, int] = (33, 33)) -> np.ndarray:
    values = np.random.default_rng(4).integers(0, 256, (*shape, bands))
    values[:4] = values[:4, :, :1]  # grey
    values[4:6] = 255
    return values.astype(dtype)


def mask(side: int = 33) -> np.ndarray:
    rng = np.random.default_rng(5)
    valid = rng.integers(0, 2, (side, side))
    return np.stack([np.where(valid, rng.integers(0, 7, (side, side)), IGNORE), valid], axis=-1).astype("u1")


def planes() -> Planes:
    return mask()[..., 0], mask()[..., 1]


@pytest.mark.parametrize("dtype", ["uint8", "float64", "uint32", "bool"])
def test_turns_are_those_of_numpy_for_any_type_and_number_of_bands(dtype: str) -> None:
    for bands, turns, mirrored in product((0, 1, 2, 3, 4, 5, 13), range(4), (False, True)):
        before = image(dtype, max(1, bands), (5, 9))
        before = before if bands else before[..., 0]
        moved = np.rot90(before, turns)
        after = turn(before, turns, mirrored)
        np.testing.assert_array_equal(after, moved[:, ::-1] if mirrored else moved)
        assert after.dtype == before.dtype
        assert after.shape == moved.shape


@pytest.mark.parametrize(
    ("dtype", "bands", "probability"),
    [("uint8", 3, 0.4), ("uint8", 1, 1.0), ("float32", 3, 1.0), ("float32", 5, 0.4)],
)
def test_a_stage_draws_what_the_library_draws(dtype: str, bands: int, probability: float) -> None:
    hue: list[Any] = [albumentations.HueSaturationValue(10, 51, (-9, 20), p=probability)]
    noise = 0.1 if dtype == "uint8" else 0.01
    stages = [
        [albumentations.D4(p=probability)],
        [albumentations.Affine(scale=(0.8, 1.2), rotate=(-20, 20), fill_mask=IGNORE, p=probability)],
        [
            albumentations.RandomBrightnessContrast(0.2, 0.3, p=probability),
            *(hue if bands == 3 else []),
            albumentations.GaussianBlur(blur_limit=(3, 5), p=probability),
            albumentations.GaussNoise(std_range=(0.0, noise), p=probability),
        ],
        [albumentations.RandomGamma(p=probability)],
    ]
    # Floats in the middle: the library clips them to 0 … 1, and the kernels do not.
    start = image(dtype, bands) if dtype == "uint8" else 0.4 + image(dtype, bands) / 1275
    start, differing = start.astype(dtype), set()
    for transforms, seed in product(stages, range(12)):
        compose = albumentations.Compose(transforms)
        compose.set_random_seed(seed)
        expected = compose(image=start, mask=mask())
        found, moved = transform_tile(compose, seed, start, planes())
        tolerance = 0 if dtype == "uint8" else 1e-6
        np.testing.assert_allclose(found, expected["image"], rtol=0, atol=tolerance)
        np.testing.assert_array_equal(np.stack(moved, axis=-1), expected["mask"])
        differing.add(found.tobytes())
    assert len(differing) > 12


SIDE = 64
MEAN, STD = np.array([3000, 0.3, 12, 285.0]), np.array([800, 0.2, 9, 5.0])
"""Reflectance × 10,000, an index in −1 … 1, a slope in degrees, a temperature in kelvins."""
DEFAULT: dict[str, Any] = {"d4": False}
NOISE = {"d4": False, "brightness": 0, "contrast": 0, "noise": 0.1}
LISTED = ("RandomGamma", "PlasmaShadow", "RandomToneCurve", "Sharpen")


def config_of(config: Any) -> AugmentationConfig:
    listed = [{"name": config, "p": 1.0}] if isinstance(config, str) else config
    return AugmentationConfig.model_validate(listed)


def augmenter(config: Any, mean: Any = MEAN, std: Any = STD, dtype: str = "float32") -> Augmenter:
    return Augmenter(config_of(config), BandStatistics.of(dtype, np.asarray(mean), np.asarray(std)))


def drawn_tile(mean: Any = MEAN, std: Any = STD, dtype: str = "float32") -> Tile:
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


def test_each_band_moves_by_the_same_number_of_its_deviations() -> None:
    """At the defaults as far as photographs of 8 bits do: by 0.8 deviations, 1.8 at most."""
    mean, std = np.array([110, 105, 95.0]), np.array([45, 42, 40.0])
    moved = shifts(augmenter(DEFAULT), drawn_tile(), STD)
    assert np.ptp(moved, axis=1).max() < 0.05
    assert 1.3 < np.abs(moved).max() < 1.9
    photographs = shifts(augmenter(DEFAULT, mean, std, "uint8"), drawn_tile(mean, std, "uint8"), std)
    assert np.abs(photographs).max() < 1.9
    for each in (moved, photographs):
        assert 0.6 < np.sqrt((each**2).mean()) < 1


@pytest.mark.parametrize("config", [DEFAULT, NOISE, {**DEFAULT, "blur": 1}, *LISTED], ids=str)
def test_units_and_zero_points_do_not_matter(config: Any) -> None:
    scale, offset = np.array([1e-4, 300, 0.01, 1.8]), np.array([0, -20, 5, -459.67])
    before, other = (
        drawn_tile(dtype="float64"),
        augmenter(config, MEAN * scale + offset, STD * scale, "float64"),
    )
    rescaled = (before[0] * scale + offset, *before[1:])
    for seed in range(6):
        found = other(rescaled, seed)[0]
        expected = augmenter(config, dtype="float64")(before, seed)[0] * scale + offset
        np.testing.assert_allclose((found - expected) / (STD * scale), 0, atol=2e-5)


@pytest.mark.parametrize("config", [DEFAULT, NOISE, "RandomGamma", "PlasmaShadow"], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_no_pixel_decides_how_far_another_moves(config: Any, dtype: str) -> None:
    mean, std = ([110.0] * 3, [40.0] * 3) if dtype == "uint8" else ([9500.0] * 3, [300.0] * 3)
    change, before = augmenter(config, mean, std, dtype), drawn_tile(mean, std, dtype)
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
    before = drawn_tile()
    before[0][9, 9], before[0][20, 20] = 65535, -1e29
    for seed in range(6):
        after = augmenter(config)(before, seed)[0]
        assert np.isfinite(after).all()
        assert (after[9, 9] > MEAN + 10 * STD).all() or "blur" in str(config).lower()
        far = np.ones((SIDE, SIDE), np.bool_)
        far[:30, :30] = False
        assert (np.abs(after - MEAN)[far] < 9 * STD + 60 * STD * ("blur" in str(config).lower())).all()


def test_a_constant_band_stays() -> None:
    before = drawn_tile()
    before[0][..., 1] = 7
    statistics = BandStatistics.of("float32", np.array([3000, 7, 12, 285.0]), STD * [1, 0, 1, 1])
    after = Augmenter(config_of(DEFAULT), statistics)(before, 1)[0]
    assert (after[..., 1] == 7).all()
    assert (after[..., 0] != before[0][..., 0]).any()


ODD_SIDE = 67
STILL = {"brightness": 0, "contrast": 0, "d4": False}
SPATIAL: list[Any] = [
    *(
        {**STILL, "rotation": 20},
        {**STILL, "scale": 0.4},
        {**STILL, "rotation": 180, "scale": 0.3, "d4": True},
    ),
    *(
        [{"name": name}]
        for name in ("ElasticTransform", "GridDistortion", "Perspective", "ThinPlateSpline", "SafeRotate")
    ),
    pytest.param([{"name": "PiecewiseAffine", "scale": [0.03, 0.05]}], marks=pytest.mark.slow),
    [{"name": "Affine", "shear": [-20, 20], "translate_percent": [-0.2, 0.2]}],
    [{"name": "Affine", "scale": [0.99, 0.999]}],
    [{"name": "Rotate", "limit": 40, "fill": 77}],
    [{"name": "Rotate", "limit": 40, "border_mode": 4}],
    [{"name": "RandomResizedCrop", "size": [ODD_SIDE, ODD_SIDE], "scale": [0.3, 0.6], "interpolation": 3}],
    [{"name": "CropAndPad", "percent": [-0.2, 0.2]}],
    [{"name": "GridElasticDeform", "num_grid_xy": [4, 4], "magnitude": 8}],
]
COLOUR: list[Any] = [
    {**STILL, "blur": 1},
    {**STILL, "rotation": 45, "blur": 1},
    *([{"name": name}] for name in ("MotionBlur", "MedianBlur", "GaussianBlur", "Defocus", "ZoomBlur")),
]
TYPES = ("uint8", "uint16", "float64")
"""One of each kind; the slow tests have the others."""


def made(dtype: str, *, whole: bool = False) -> Tile:
    """Values far from 0, with a hole, an edge and single pixels without data, which are 0 and ignored."""
    rng = np.random.default_rng(8)
    low, high = (150, 200) if dtype == "uint8" else (9000, 10000)
    image = rng.integers(low, high + 1, (ODD_SIDE, ODD_SIDE, 3)).astype(dtype)
    valid, label = np.ones((ODD_SIDE, ODD_SIDE), np.bool_), np.full((ODD_SIDE, ODD_SIDE), 3, np.uint8)
    if not whole:
        valid[20:31, 11:40] = valid[:, :5] = False
        valid[rng.random(valid.shape) < 0.02] = False
    image[~valid], label[~valid] = 0, IGNORE
    return image, valid, label


def statistics(dtype: str) -> Any:
    return statistics_of(3, dtype, *((175, 30) if dtype == "uint8" else (9500, 290)))


def augmenter_of(config: Any, dtype: str) -> Augmenter:
    if isinstance(config, list):
        config = [{**one, "p": 1.0} for one in config]
    return Augmenter(AugmentationConfig.model_validate(config), statistics(dtype))


def beyond(tile: Tile, before: Tile) -> float:
    """By how much pixels that count leave the range of those that counted, as a share of their values."""
    known, found = before[0][before[1]].astype(float), tile[0][tile[1] & (tile[2] != IGNORE)].astype(float)
    assert len(found) > 100
    return max(known.min() - found.min(), found.max() - known.max()) / known.max()


@pytest.mark.parametrize(
    "dtype", [*TYPES, *(pytest.param(name, marks=pytest.mark.slow) for name in ("int16", "int32", "float32"))]
)
@pytest.mark.parametrize("config", [*SPATIAL, *COLOUR], ids=str)
def test_every_pixel_that_counts_lies_within_the_values_that_count(config: Any, dtype: str) -> None:
    changed = 0
    for whole in (False, True):
        before, change = made(dtype, whole=whole), augmenter_of(config, dtype)
        for seed in range(3):
            after = change(before, seed)
            assert beyond(after, before) <= 1e-6
            assert (after[2][~after[1]] == IGNORE).all()
            changed += not np.array_equal(after[0], before[0])
    assert changed >= 5


@pytest.mark.parametrize("config", SPATIAL, ids=str)
def test_a_tile_without_its_image_keeps_the_same_pixels(config: Any) -> None:
    """The classes of a batch are counted on outlines, where no transform looks at the image."""
    before, change = made("uint16"), augmenter_of(config, "uint16")
    outline = np.zeros((ODD_SIDE, ODD_SIDE, 1), np.uint16), *before[1:]
    for seed in range(4):
        for found, expected in zip(
            change(outline, seed, outline=True)[1:], change(before, seed)[1:], strict=True
        ):
            np.testing.assert_array_equal(found, expected)
