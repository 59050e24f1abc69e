"""No value without data, nor one from outside the tile, has a part in a pixel that counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE
from segmenter.tiles.augment import Augmenter, Tile
from segmenter.tiles.gsd import resampled
from segmenter.tiles.kernels import extended
from tests.helpers.made_statistics import statistics_of

SIDE = 67
STILL = {"brightness": 0, "contrast": 0, "d4": False}
SPATIAL: list[Any] = [
    *(
        {**STILL, "rotation": 20},
        {**STILL, "scale": 0.4},
        {**STILL, "rotation": 180, "scale": 0.3, "d4": True},
    ),
    *(
        [{"name": name}]
        for name in ("ElasticTransform", "GridDistortion", "OpticalDistortion", "Perspective")
    ),
    *([{"name": name}] for name in ("ThinPlateSpline", "SafeRotate", "ShiftScaleRotate")),
    [{"name": "ElasticTransform", "alpha": 80, "sigma": 8}],
    [{"name": "PiecewiseAffine", "scale": [0.03, 0.05]}],
    [{"name": "Affine", "shear": [-20, 20], "translate_percent": [-0.2, 0.2]}],
    [{"name": "Affine", "scale": [0.99, 0.999]}],
    [{"name": "Rotate", "limit": [0.1, 0.4]}],
    [{"name": "Rotate", "limit": 40, "fill": 77}],
    [{"name": "Rotate", "limit": 40, "border_mode": 4}],
    [{"name": "RandomResizedCrop", "size": [SIDE, SIDE], "scale": [0.3, 0.6]}],
    [{"name": "RandomResizedCrop", "size": [SIDE, SIDE], "scale": [0.3, 0.6], "interpolation": 3}],
    [{"name": "CropAndPad", "percent": [-0.2, 0.2]}],
    [{"name": "GridElasticDeform", "num_grid_xy": [4, 4], "magnitude": 8}],
]
COLOUR: list[Any] = [
    {**STILL, "blur": 1},
    *(
        [{"name": name}]
        for name in ("MotionBlur", "MedianBlur", "Blur", "GaussianBlur", "Defocus", "ZoomBlur")
    ),
]
TYPES = ("uint8", "uint16", "int16", "int32", "float32", "float64")


def made(dtype: str, *, whole: bool = False) -> Tile:
    """Values far from 0, with a hole, an edge and single pixels without data, which are 0 and ignored."""
    rng = np.random.default_rng(8)
    low, high = (150, 200) if dtype == "uint8" else (9000, 10000)
    image = rng.integers(low, high + 1, (SIDE, SIDE, 3)).astype(dtype)
    valid, label = np.ones((SIDE, SIDE), np.bool_), np.full((SIDE, SIDE), 3, np.uint8)
    if not whole:
        valid[20:31, 11:40] = valid[:, :5] = False
        valid[rng.random(valid.shape) < 0.02] = False
    image[~valid], label[~valid] = 0, IGNORE
    return image, valid, label


def statistics(dtype: str) -> Any:
    return statistics_of(3, dtype, *((175, 30) if dtype == "uint8" else (9500, 290)))


def augmenter(config: Any, dtype: str) -> Augmenter:
    if isinstance(config, list):
        config = [{**one, "p": 1.0} for one in config]
    return Augmenter(AugmentationConfig.model_validate(config), statistics(dtype))


def beyond(tile: Tile, before: Tile) -> float:
    """By how much pixels that count leave the range of those that counted, as a share of their values."""
    known, found = before[0][before[1]].astype(float), tile[0][tile[1] & (tile[2] != IGNORE)].astype(float)
    assert len(found) > 100
    return max(known.min() - found.min(), found.max() - known.max()) / known.max()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("config", [*SPATIAL, *COLOUR], ids=str)
def test_every_pixel_that_counts_lies_within_the_values_that_count(config: Any, dtype: str) -> None:
    changed = 0
    for whole in (False, True):
        before, change = made(dtype, whole=whole), augmenter(config, dtype)
        for seed in range(6):
            after = change(before, seed)
            assert beyond(after, before) <= 1e-6
            assert (after[2][~after[1]] == IGNORE).all()
            changed += not np.array_equal(after[0], before[0])
    assert changed >= 10


@pytest.mark.parametrize("config", SPATIAL, ids=str)
def test_a_tile_without_its_image_keeps_the_same_pixels(config: Any) -> None:
    """What classes a batch holds is counted on outlines, where no transform looks at the image."""
    before, change = made("uint16"), augmenter(config, "uint16")
    outline = np.zeros((SIDE, SIDE, 1), np.uint16), *before[1:]
    for seed in range(4):
        for found, expected in zip(
            change(outline, seed, outline=True)[1:], change(before, seed)[1:], strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_pixels_without_data_are_not_there_for_blur_that_comes_after_a_rotation() -> None:
    """The corners that the rotation uncovers, above all."""
    config = {**STILL, "rotation": 45, "blur": 1}
    for dtype in TYPES:
        before, change = made(dtype, whole=True), augmenter(config, dtype)
        assert max(beyond(change(before, seed), before) for seed in range(6)) <= 1e-6


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("side", [40, 50, 67, 90, 130])
def test_nor_at_another_scale_of_the_ground(dtype: str, side: int) -> None:
    before = made(dtype)
    assert beyond(resampled(before, side), before) <= 1e-6


def test_flips_of_tiles_with_holes_keep_their_bits() -> None:
    before, change = made("uint16"), augmenter({**STILL, "d4": True}, "uint16")
    for seed in range(8):
        after = change(before, seed)
        np.testing.assert_array_equal(np.sort(after[0].reshape(-1)), np.sort(before[0].reshape(-1)))


def test_what_lacks_is_extended_by_the_nearest() -> None:
    """Within the error of the distances, a few percent; what has data stays."""
    image, valid, _ = made("uint16")
    valid[:] = True
    valid[25:45, 25:45] = False
    found = extended(image, valid)
    np.testing.assert_array_equal(found[valid], image[valid])
    rows, cols = np.nonzero(valid)
    for row, col in ((25, 30), (44, 30), (30, 26), (41, 43)):
        distance = np.hypot(rows - row, cols - col)
        near = distance <= distance.min() * 1.05
        assert any(
            (image[r, c] == found[row, col]).all() for r, c in zip(rows[near], cols[near], strict=True)
        )
    nothing = np.zeros_like(valid)
    assert extended(image, nothing) is image
