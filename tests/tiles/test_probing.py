"""The probe: a listed transform that fails on the data, clips it or moves the label wrongly is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.tiles import transforms
from segmenter.tiles.augment import Augmenter
from segmenter.tiles.probing import check_augmentation, check_transforms
from segmenter.tiles.statistics import BandStatistics
from tests.helpers.made_statistics import statistics_of

SIDE = 48
DATA = {
    "rgb": ("uint8", [110, 100, 90], [45, 40, 40]),
    "rgbi": ("uint8", [110, 100, 90, 130], [45, 40, 40, 50]),
    "reflectance": ("uint16", [900, 1100, 1000, 2500], [300, 300, 400, 800]),
    "float": ("float32", [900.0, -20, 0.3, 5], [300.0, 8, 0.1, 1]),
    "heights": ("int16", [-40], [300]),
}


def check(data: str, *listed: dict[str, Any]) -> None:
    dtype, mean, std = DATA[data]
    config = AugmentationConfig.model_validate(list(listed))
    check_transforms(config, SIDE, dtype, np.array(mean, float), np.array(std, float))


@pytest.mark.parametrize("data", DATA)
def test_what_goes_with_every_type_passes(data: str) -> None:
    check(
        data,
        {"name": "RandomGamma", "gamma_limit": [80, 120]},
        {"name": "ElasticTransform", "alpha": 30},
        {"name": "Perspective"},
        {"name": "GridDistortion"},
        {"name": "GaussNoise"},
        {"name": "PixelDropout", "dropout_prob": 0.3},
        {"name": "CoarseDropout"},
        {"name": "CoarseDropout", "fill_mask": None, "hole_height_range": [0.3, 0.3]},
        {"name": "RandomResizedCrop", "size": [SIDE, SIDE]},
        {"name": "RandomGridShuffle"},
        {"name": "Rotate", "border_mode": 4},
    )


@pytest.mark.parametrize(
    ("data", "transform", "said"),
    [
        (
            "rgbi",
            {"name": "CLAHE"},
            r"\(CLAHE\): fails on tiles of 4 bands of uint8: CLAHE .* 3-channel images",
        ),
        ("rgbi", {"name": "HueSaturationValue"}, r"fails on tiles of 4 bands of uint8"),
        ("heights", {"name": "HueSaturationValue"}, r"warns on tiles of 1 band of int16: .* grayscale"),
        (
            "reflectance",
            {"name": "MedianBlur"},
            r"works in 8 bits: of [\d,]+ values .* of uint16 it leaves \d+;",
        ),
        ("float", {"name": "ImageCompression"}, r"works in 8 bits: .* of float32"),
        ("heights", {"name": "Posterize"}, r"works in 8 bits"),
        ("rgb", {"name": "ToFloat"}, r"makes float32 of uint8 on tiles of 3 bands of uint8"),
        ("float", {"name": "FromFloat"}, r"makes uint8 of tiles of 4 bands of float32"),
        ("rgb", {"name": "RandomScale"}, r"expected tiles of 48 × 48 pixels after it, got \d+ × \d+"),
        ("rgb", {"name": "RandomCrop", "height": 32, "width": 32}, r"48 × 48 pixels after it, got 32 × 32"),
        ("rgb", {"name": "RandomCrop", "height": 64, "width": 64}, r"\(RandomCrop\): fails on tiles .*size"),
        ("heights", {"name": "ToRGB"}, r"expected 1 band after it, got 3"),
        ("rgb", {"name": "ConstrainedCoarseDropout"}, r"warns on tiles of 3 bands of uint8: Neither"),
        ("rgb", {"name": "Affine", "translate_percent": [2, 2]}, r"leaves no labelled pixel"),
    ],
)
def test_what_does_not_go_with_the_data_is_refused_in_one_line(
    data: str, transform: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check(data, {"name": "D4"}, transform)
    assert str(caught.value).startswith(f"augmentation.transforms.1 ({transform['name']}): ")
    assert "\n" not in str(caught.value)


class _Made(albumentations.DualTransform):
    """Base of transforms with a fault."""

    _targets = albumentations.NoOp._targets

    def apply(self, img: Any, **params: Any) -> Any:
        return img

    def apply_to_mask(self, mask: Any, **params: Any) -> Any:
        return mask


class ImageOnlyMoves(_Made):
    def apply(self, img: Any, **params: Any) -> Any:
        return img[::-1].copy()


class LabelOnlyMoves(_Made):
    def apply_to_mask(self, mask: Any, **params: Any) -> Any:
        return mask[:, ::-1].copy()


class MixesIds(_Made):
    def apply_to_mask(self, mask: Any, **params: Any) -> Any:
        return ((mask.astype(int) + np.roll(mask, 4, 0)) // 2).astype(np.uint8)


class Clips(_Made):
    def apply(self, img: Any, **params: Any) -> Any:
        return np.clip(img, 0, 255 if img.dtype.kind in "iu" else 1).astype(img.dtype)


class NotANumber(_Made):
    def apply(self, img: Any, **params: Any) -> Any:
        return np.where(img > np.median(img), np.float32(np.nan), img).astype(img.dtype)


class GlobalRandomness(_Made):
    def apply(self, img: Any, **params: Any) -> Any:
        return np.roll(img, np.random.randint(1000), 2)


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        (ImageOnlyMoves, "rgb", r"moves image and label apart on tiles of 3 bands of uint8: \d+% of"),
        (ImageOnlyMoves, "float", r"moves image and label apart"),
        (LabelOnlyMoves, "reflectance", r"moves image and label apart"),
        (MixesIds, "rgb", r"invents label values \(\d+"),
        (Clips, "reflectance", r"clips tiles of 4 bands of uint16: a range of [\d.]+ .* becomes one of "),
        (Clips, "float", r"clips tiles of 4 bands of float32"),
        (NotANumber, "float", r"no numbers \(NaN or infinite\)"),
        (GlobalRandomness, "rgb", r"gives two results for one seed"),
    ],
)
def test_faults_that_make_no_noise_are_found(
    kind: type[Any], data: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = transforms._known()
    monkeypatch.setattr(transforms, "_known", lambda: {**known, kind.__name__: kind})
    np.random.seed(1)
    with pytest.raises(ConfigError, match=said):
        check(data, {"name": kind.__name__})
    check(data, {"name": "HorizontalFlip"})


def test_the_first_training_image_is_what_it_is_checked_on(
    make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    image = rng.integers(200, 4000, (97, 61, 4)).astype(np.uint16)
    scene = Scene("a", make_geotiff("a.tif", image), make_geotiff("b.tif", image[..., 0]), "a", "train")
    dataset = Dataset("made", scene.image.parent, (scene,), make_classes(3))
    config = AugmentationConfig.model_validate([{"name": "Equalize"}])
    with pytest.raises(ConfigError, match=r"\(Equalize\): fails on tiles of 4 bands of uint16"):
        check_augmentation(config, dataset, 32)
    with pytest.raises(ConfigError, match=r"expected 8-bit images of 3 bands, got 4 of uint16"):
        check_augmentation(AugmentationConfig(hue=10), dataset, 32)
    check_augmentation(AugmentationConfig(), Dataset("none", dataset.root, (), make_classes(3)), 32)


@pytest.mark.parametrize("data", ["rgb", "reflectance"])
def test_every_transform_of_the_library_is_refused_or_keeps_labels_true(data: str) -> None:
    """All that a recipe can list by name alone: no class comes in that the tile has not, above all not 0."""
    dtype, mean, std = DATA[data]
    rng, passed = np.random.default_rng(0), []
    image = (rng.random((SIDE, SIDE, len(mean))) * np.array(mean)).astype(dtype)
    label = np.where(np.arange(SIDE) < SIDE // 2, 3, 5).astype(np.uint8) * np.ones((SIDE, 1), np.uint8)
    tile = image, np.ones((SIDE, SIDE), np.bool_), label
    for name in transforms.known_transforms():
        try:
            check(data, {"name": name})
        except ConfigError:
            continue
        statistics = BandStatistics.of(dtype, np.array(mean, float), np.array(std, float))
        augmenter = Augmenter(AugmentationConfig.model_validate([{"name": name, "p": 1}]), statistics)
        passed.append(name)
        for seed in range(4):
            _, valid, moved = augmenter(tile, seed)
            assert set(np.unique(moved)) <= {3, 5, IGNORE}, name
            assert (moved[~valid] == IGNORE).all(), name
    assert len(passed) > 40, passed
    assert {"ElasticTransform", "GridDropout", "PixelDropout", "TimeMasking", "XYMasking"} <= set(passed)


@pytest.mark.parametrize(
    "listed",
    [
        {"name": "GridElasticDeform", "num_grid_xy": [4, 4], "magnitude": 8},
        {"name": "FrequencyMasking", "freq_mask_param": 20},
    ],
    ids=lambda listed: str(listed["name"]),
)
def test_what_a_transform_uncovers_or_drops_is_ignored(listed: dict[str, Any]) -> None:
    """Also where it fills masks with 0, which is a class."""
    check("rgb", listed)
    augmenter = Augmenter(AugmentationConfig.model_validate([{**listed, "p": 1}]), statistics_of())
    image = np.full((SIDE, SIDE, 3), 90, np.uint8)
    tile = image, np.ones((SIDE, SIDE), np.bool_), np.full((SIDE, SIDE), 3, np.uint8)
    lost = 0
    for seed in range(12):
        _, valid, moved = augmenter(tile, seed)
        np.testing.assert_array_equal(moved == IGNORE, ~valid)
        assert set(np.unique(moved)) <= {3, IGNORE}
        lost += int((~valid).sum())
    assert lost > 100
