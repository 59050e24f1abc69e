"""Augmentation: label and validity move with the image, nothing is invented, one seed gives one result."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE
from segmenter.tiles.augment import Augmenter, Tile
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


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
@pytest.mark.parametrize("bands", [1, 3, 4, 6])
def test_every_type_and_number_of_bands(dtype: str, bands: int) -> None:
    image, valid, label = Augmenter(ALL, statistics_of(bands, dtype))(tile(dtype, bands), 3)
    assert (image.dtype, image.shape) == (np.dtype(dtype), (33, 33, bands))
    assert (valid.dtype, label.dtype) == (np.dtype(bool), np.dtype(np.uint8))
    assert image.std() > 1  # not clipped to 0 … 1


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("bands", [1, 3, 5])
def test_types_that_opencv_does_not_know_are_those_that_it_does(dtype: str, bands: int) -> None:
    """Zoomed, turned, recoloured: as 16-bit integers, but for a half that is rounded the other way."""
    config = AugmentationConfig(scale=0.3, rotation=45)
    image, valid, label = tile("int16", bands)
    image = image // 4 + 40  # so that no change leaves a type
    for seed in range(4):
        known, found = (
            Augmenter(config, statistics_of(bands, name, 65, 8))((image.astype(name), valid, label), seed)
            for name in ("int16", dtype)
        )
        assert found[0].dtype == dtype
        assert np.abs(found[0].astype(np.int64) - known[0])[found[1]].max() <= 1
        assert known[0].std() > 1
        for a, b in zip(found[1:], known[1:], strict=True):
            np.testing.assert_array_equal(a, b)


def test_flips_and_turns_move_image_label_and_validity_together() -> None:
    config = AugmentationConfig(brightness=0, contrast=0)
    image, valid, label = tile()
    image[..., 0], image[..., 1] = label, valid  # so that the image says where each pixel came from
    seen = set()
    for seed in range(40):
        moved, moved_valid, moved_label = Augmenter(config, statistics_of())((image, valid, label), seed)
        np.testing.assert_array_equal(moved[..., 0], moved_label)
        np.testing.assert_array_equal(moved[..., 1].astype(bool), moved_valid)
        np.testing.assert_array_equal(np.bincount(moved_label.ravel()), np.bincount(label.ravel()))
        seen.add(moved_label.tobytes())
    assert len(seen) == 8  # all of the square's symmetries


def test_uncovered_corners_are_ignored_and_not_valid() -> None:
    config = AugmentationConfig(d4=False, rotation=45, brightness=0, contrast=0)
    image, _, label = tile(side=65)
    valid = np.ones_like(label, bool)
    label[:] = 2
    for seed in range(5):
        _, moved_valid, moved_label = Augmenter(config, statistics_of())((image, valid, label), seed)
        np.testing.assert_array_equal(moved_valid, moved_label != IGNORE)
        assert set(np.unique(moved_label)) <= {2, IGNORE}  # no class is invented, class 0 least of all
    assert (~moved_valid).any()


def test_what_cannot_lose_a_class_keeps_every_pixel() -> None:
    before = tile()
    after = Augmenter(ALL, statistics_of())(before, 9, geometry_that_loses_nothing=True)
    np.testing.assert_array_equal(np.bincount(after[2].ravel()), np.bincount(before[2].ravel()))


def test_one_seed_gives_one_result_in_any_thread() -> None:
    augmenter, content = Augmenter(ALL, statistics_of()), tile()
    serial = [augmenter(content, seed)[0].tobytes() for seed in range(200)]
    with ThreadPoolExecutor(4) as pool:
        threaded = [image.tobytes() for image, _, _ in pool.map(lambda s: augmenter(content, s), range(200))]
    assert serial == threaded
    assert len(set(serial)) > 190


def test_hue_is_refused_for_what_has_none() -> None:
    with pytest.raises(ConfigError, match=r"expected 8-bit images of 3 bands, got 4 of uint16"):
        Augmenter(AugmentationConfig(hue=10), statistics_of(4, "uint16"))
