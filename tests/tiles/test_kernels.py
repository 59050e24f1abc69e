"""Kernels of OpenCV give the bits of what they stand for: NumPy's turns, albumentations' transforms."""

from __future__ import annotations

from itertools import product
from typing import Any

import albumentations
import numpy as np
import pytest
from albumentations.augmentations.geometric.functional import d4
from albumentations.augmentations.pixel.functional import shift_hsv

from segmenter.grid.labels import IGNORE, class_pixels
from segmenter.tiles.kernels import Planes, counted, shifted_hsv, transformed, turned


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


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64", "uint32", "bool"])
def test_turns_are_those_of_numpy_for_any_type_and_number_of_bands(dtype: str) -> None:
    for bands, turns, mirrored in product((0, 1, 2, 3, 4, 5, 13), range(4), (False, True)):
        before = image(dtype, max(1, bands), (5, 9))
        before = before if bands else before[..., 0]
        moved = np.rot90(before, turns)
        after = turned(before, turns, mirrored)
        np.testing.assert_array_equal(after, moved[:, ::-1] if mirrored else moved)
        assert after.dtype == before.dtype
        assert after.shape == moved.shape


def test_the_squares_symmetries_are_the_librarys() -> None:
    """By the library's own seeds: which of the eight a seed means, and what each does."""
    compose, seen = albumentations.Compose([albumentations.D4(p=1.0)]), set()
    for seed in range(40):
        compose.set_random_seed(seed)
        expected = compose(image=image(), mask=mask())
        found, moved = transformed(compose, seed, image(), planes())
        np.testing.assert_array_equal(found, expected["image"])
        np.testing.assert_array_equal(np.stack(moved, axis=-1), expected["mask"])
        seen.add(found.tobytes())
    assert len(seen) == 8
    for element in ("e", "r90", "r180", "r270", "v", "hvt", "h", "t"):
        assert d4(image(), element).tobytes() in seen


@pytest.mark.parametrize("hue", [0, 3.25, -7.9, 90.0, -200.5])
def test_hue_saturation_and_value_are_shifted_as_the_library_does(hue: float) -> None:
    for saturation, value in product((0, 51.0, -0.4, -30.6, 0.5, 255.0), (0, -12.5, 40.49)):
        expected = shift_hsv(image(), hue, saturation, value)
        np.testing.assert_array_equal(shifted_hsv(image(), hue, saturation, value), expected)


@pytest.mark.parametrize("probability", [1.0, 0.4])
@pytest.mark.parametrize(("dtype", "bands"), [("uint8", 3), ("uint8", 1), ("float32", 3), ("float32", 5)])
def test_a_stage_draws_what_the_library_draws(dtype: str, bands: int, probability: float) -> None:
    """Whole stages, with transforms that are left out at random, against `Compose`."""
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
        found, moved = transformed(compose, seed, start, planes())
        tolerance = 0 if dtype == "uint8" else 1e-6
        np.testing.assert_allclose(found, expected["image"], rtol=0, atol=tolerance)
        np.testing.assert_array_equal(np.stack(moved, axis=-1), expected["mask"])
        differing.add(found.tobytes())
    assert len(differing) > 12


def test_classes_are_counted() -> None:
    label, large = mask()[..., 0].copy(), np.full((4099, 4097), 3, np.uint8)  # more than a float32 counts
    for ids in (label, label[::2, 1::3], np.full((7, 5), IGNORE, np.uint8), large):
        np.testing.assert_array_equal(counted(ids, 6), class_pixels(ids, 6))
        assert counted(ids, 6).dtype == np.int64
