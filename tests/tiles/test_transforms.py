"""Listed transforms: built by name, probed on the data, with label and validity moved along."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import albumentations
import cv2
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
from segmenter.tiles.store import Tile
from segmenter.tiles.transforms import stages_of
from tests.helpers.made_statistics import statistics_of
from tests.helpers.refusals import refused


def tile(dtype: str = "uint8", bands: int = 3, side: int = 49) -> Tile:
    rng = np.random.default_rng(5)
    image = (rng.integers(0, 200, (side, side, bands)) * (1 if dtype == "uint8" else 13)).astype(dtype)
    label = rng.integers(0, 6, (side, side)).astype(np.uint8)
    label[:3] = IGNORE
    valid = rng.random((side, side)) > 0.1
    label[~valid] = IGNORE  # as the store gives tiles
    return image, valid, label


def listed(*transforms: Any) -> AugmentationConfig:
    return AugmentationConfig.model_validate(list(transforms))


def flags() -> AugmentationConfig:
    return AugmentationConfig(
        scale=0.3, rotation=40, brightness=0.2, contrast=0.3, hue=20, saturation=0.3, blur=0.5, noise=0.1
    )


def test_shorthands_compute_what_the_fixed_settings_did() -> None:
    """To the bit: the same transforms, written out with the library alone, each group with its own seed."""
    groups = [
        [albumentations.D4(p=1.0)],
        [
            albumentations.Affine(
                scale=(0.7, 1.3), rotate=(-40, 40), interpolation=cv2.INTER_LINEAR, fill_mask=IGNORE, p=1.0
            )
        ],
        [
            albumentations.RandomBrightnessContrast(brightness_limit=0.2, contrast_limit=0.3, p=1.0),
            albumentations.HueSaturationValue(
                hue_shift_limit=10, sat_shift_limit=76.5, val_shift_limit=0, p=1.0
            ),
            albumentations.GaussianBlur(blur_limit=(3, 5), p=0.5),
            albumentations.GaussNoise(std_range=(0.0, 0.1), p=1.0),
        ],
    ]
    augmenter = Augmenter(flags(), statistics_of())
    for seed in (0, 1, 7, 2**32 - 1):
        image, _, label = tile(side=65)
        before = image, np.ones_like(label, np.bool_), label
        mask, inside = np.stack([label, np.ones_like(label)], axis=-1), np.ones((*label.shape, 1), np.float32)
        for number, group in enumerate(groups):
            compose = albumentations.Compose(group, additional_targets={"inside": "image"})
            compose.set_random_seed((seed + number) % 2**32)
            more = {"mask": mask, "inside": inside} if number < 2 else {}
            moved = compose(image=image, **more)
            image, mask = moved["image"], moved.get("mask", mask)
            inside = moved.get("inside", inside)
        found = augmenter(before, seed)
        # Where what lies outside is not mixed in, by rotation or then by the blur.
        sure = cv2.erode((inside.reshape(label.shape) == 1).astype(np.uint8), np.ones((7, 7))) > 0
        assert sure.sum() > 500
        np.testing.assert_array_equal(found[0][sure], image[sure])
        np.testing.assert_array_equal(found[1], mask[..., 1] == 1)
        np.testing.assert_array_equal(found[2], mask[..., 0])


def test_a_shorthand_has_its_probability_and_is_drawn_apart_from_the_others() -> None:
    colour = {"hue": 40, "saturation": 0.3}
    probability = {"brightness_contrast": 0.5, "hue_saturation": 0.3}
    config = AugmentationConfig.model_validate({"d4": False, **colour, "probability": probability})
    augmenter, (image, valid, label) = Augmenter(config, statistics_of()), tile()
    image[..., 1:] = image[..., :1]  # grey has no hue
    image[0] = (200, 40, 40)
    bright_N, hue_N = np.zeros((2, 400), bool)
    for seed in range(400):
        after = augmenter((image, valid, label), seed)[0]
        bright_N[seed] = not np.array_equal(after[1:], image[1:])
        hue_N[seed] = not np.array_equal(after[0, :, 1], after[0, :, 2])
    assert abs(bright_N.mean() - 0.5) < 0.1
    assert abs(hue_N.mean() - 0.3) < 0.1
    assert abs((bright_N & hue_N).mean() - 0.15) < 0.072  # four deviations

    moved = {"d4": False, "rotation": 40, "probability": {"affine": 0.25}}
    turning = Augmenter(AugmentationConfig.model_validate(moved), statistics_of())
    turned = sum(not np.array_equal(turning(tile(), seed)[2], tile()[2]) for seed in range(400))
    assert 65 < turned < 135


@pytest.mark.parametrize(
    "spatial",
    [
        {"name": "ElasticTransform", "alpha": 60},
        {"name": "Rotate", "limit": 60},
        {"name": "RandomGridShuffle", "grid": [3, 3]},
        {"name": "Affine", "translate_percent": 0.3},
        {"name": "CoarseDropout", "fill": 0},
        {"name": "Rotate", "border_mode": cv2.BORDER_REFLECT_101},
    ],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_what_moves_pixels_moves_label_and_validity(spatial: dict[str, Any]) -> None:
    """The image shows the label by nearest neighbour: wherever there is a class, it is that of the image."""
    image, valid, label = tile(side=65)
    label = np.kron(label[:9, :9] % 5, np.ones((8, 8), np.uint8))[:65, :65]
    label[~valid] = IGNORE
    image[..., 0], image[..., 1] = label, valid
    extra = {"interpolation": 0} if spatial["name"] not in ("RandomGridShuffle", "CoarseDropout") else {}
    augmenter = Augmenter(listed({**spatial, **extra, "p": 1.0}), statistics_of())
    changed = 0
    for seed in range(8):
        moved, moved_valid, moved_label = augmenter((image, valid, label), seed)
        assert set(np.unique(moved_label)) <= {0, 1, 2, 3, 4, IGNORE}
        np.testing.assert_array_equal(moved[..., 0][moved_valid], moved_label[moved_valid])
        assert (moved_label[~moved_valid] == IGNORE).all()
        changed += not np.array_equal(moved_label, label)
    assert changed >= 7


def test_what_cannot_lose_a_class_skips_listed_transforms_that_may() -> None:
    config = listed(
        {"name": "Affine", "scale": [3, 4], "p": 1},
        {"name": "VerticalFlip", "p": 1},
        {"name": "InvertImg", "p": 1},
    )
    augmenter = Augmenter(config, statistics_of())
    assert augmenter.border_at_risk == 0.25  # before: 0, nothing but flips and colour
    before = tile()
    after = augmenter(before, 9, geometry_that_loses_nothing=True)
    np.testing.assert_array_equal(after[2], before[2][::-1])
    there = before[1][::-1]
    np.testing.assert_array_equal(after[0][there], 255 - before[0][::-1][there])
    assert not np.array_equal(augmenter(before, 9)[2], before[2][::-1])
    flips = listed({"name": "VerticalFlip", "p": 1}, {"name": "InvertImg"})
    assert Augmenter(flips, statistics_of()).border_at_risk == 0


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ({"name": "randomgamma"}, "mean RandomGamma"),
        *(({"name": name}, f"transform {name};") for name in ("Compose", "DualTransform")),
        ({"name": "CenterCrop3D", "size": [1, 9, 9]}, "transform CenterCrop3D;"),
        ({"name": "RandomGamma", "gama_limit": 3}, "gama_limit; .* gamma_limit"),
        ({"name": "RandomGamma", "gamma_limit": "x"}, r"gamma_limit: .*got 'x'"),
        ({"name": "RandomCrop"}, "height: .*; width: "),
        ({"name": "Affine", "fill_mask": None}, "fill_mask: .*got None"),
        ({"name": "Affine", "mask_interpolation": 1}, "mask_interpolation: "),
        ({"name": "Lambda"}, "takes functions"),
        ({"name": "Mosaic"}, "augmentation.mosaic"),
        ({"name": "HistogramMatching"}, "needs hm_metadata"),
        ({"name": "BBoxSafeRandomCrop"}, "needs boxes"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_unknown_names_and_parameters_are_refused_in_one_line(transform: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        stages_of(listed(transform))
    assert len(str(caught.value)) < 500


def test_a_transform_that_fails_on_a_tile_is_named() -> None:
    augmenter = Augmenter(listed({"name": "CLAHE", "p": 1}), statistics_of(4))
    with refused(ConfigError, where="augmentation.transforms.0 (CLAHE)", fault="tile: CLAHE"):
        augmenter(tile(bands=4), 0)
    for name, size in (("RandomCrop", {"height": 20, "width": 20}), ("PadIfNeeded", {"min_height": 64})):
        resizing = Augmenter(listed({"name": name, **size, "p": 1}), statistics_of())
        with refused(ConfigError, where=f"augmentation.transforms.0 ({name})", got="uint8"):
            resizing(tile(), 0)


@pytest.mark.parametrize(
    "transform",
    [
        {"name": "RandomResizedCrop", "size": [128, 128]},
        {"name": "CropAndPad", "percent": [-0.25, -0.2]},
        {"name": "Affine", "scale": [0.8, 1.2]},
    ],
    ids=lambda transform: str(transform["name"]),
)
def test_a_label_that_is_resized_lies_where_its_image_does(transform: dict[str, Any]) -> None:
    """Of an edge between dark and bright: the columns between that of the image and that of the label."""
    image = np.zeros((128, 128, 3), np.uint8)
    image[:, 64:] = 200
    label = (image[..., 0] > 0).astype(np.uint8)
    augmenter = Augmenter(listed({**transform, "p": 1}), statistics_of())
    apart = []
    for seed in range(120):
        moved, valid, classes = augmenter((image, np.ones_like(label, np.bool_), label), seed)
        if valid[64].all() and 0 < classes[64].sum() < 128:
            apart.append(moved[64, :, 0].sum() / 200 - classes[64].sum())
    assert len(apart) > 20
    assert abs(np.mean(apart)) < 0.12  # half a column, by OpenCV's plain nearest neighbour


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
    names = ("GridDistortion", "GaussNoise", "CoarseDropout", "RandomGridShuffle")
    check(
        data,
        *({"name": name} for name in names),
        {"name": "RandomGamma", "gamma_limit": [80, 120]},
        {"name": "PixelDropout", "dropout_prob": 0.3},
        {"name": "CoarseDropout", "fill_mask": None, "hole_height_range": [0.3, 0.3]},
        {"name": "RandomResizedCrop", "size": [SIDE, SIDE]},
        {"name": "Rotate", "border_mode": 4},
    )


@pytest.mark.parametrize(
    ("data", "transform", "where"),
    [
        ("rgbi", {"name": "CLAHE"}, "augmentation.transforms.1 (CLAHE)"),
        ("heights", {"name": "HueSaturationValue"}, "augmentation.transforms.1 (HueSaturationValue)"),
        ("reflectance", {"name": "MedianBlur"}, "augmentation.transforms.1 (MedianBlur)"),
        ("rgb", {"name": "ToFloat"}, "augmentation.transforms.1 (ToFloat)"),
        ("rgb", {"name": "RandomCrop", "height": 32, "width": 32}, "augmentation.transforms.1 (RandomCrop)"),
        ("heights", {"name": "ToRGB"}, "augmentation.transforms.1 (ToRGB)"),
        ("rgb", {"name": "Affine", "translate_percent": [2, 2]}, "augmentation.transforms.1 (Affine)"),
    ],
)
def test_what_does_not_go_with_the_data_is_refused_in_one_line(
    data: str, transform: dict[str, Any], where: str
) -> None:
    with refused(ConfigError, where=where) as caught:
        check(data, {"name": "D4"}, transform)
    assert str(caught.value).startswith(f"augmentation.transforms.1 ({transform['name']}): ")


class Faulty(albumentations.DualTransform):
    """A transform whose changes of image and label are set."""

    _targets = albumentations.NoOp._targets
    changes: Any = (None, None)

    def apply(self, img: Any, **params: Any) -> Any:
        return img if self.changes[0] is None else self.changes[0](img).astype(img.dtype)

    def apply_to_mask(self, mask: Any, **params: Any) -> Any:
        return mask if self.changes[1] is None else self.changes[1](mask).astype(np.uint8)


@pytest.mark.parametrize(
    ("image", "label", "data", "fault"),
    [
        (lambda img: img[::-1], None, "rgb", "moves image"),
        (None, lambda mask: mask[:, ::-1], "reflectance", "moves image"),
        (None, lambda mask: (mask.astype(int) + np.roll(mask, 4, 0)) // 2, "rgb", "invents label"),
        (lambda img: np.clip(img, 0, 1), None, "float", "4 bands of float32"),
        (lambda img: np.where(img > np.median(img), np.nan, img), None, "float", "numbers (NaN"),
        (lambda img: np.roll(img, np.random.randint(1000), 2), None, "rgb", "two results"),
    ],
    ids=["image moves", "label moves", "ids are mixed", "clipped", "not a number", "random anew"],
)
def test_faults_that_make_no_noise_are_found(
    image: Any, label: Any, data: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = transforms._image_transforms()
    monkeypatch.setattr(transforms, "_image_transforms", lambda: {**known, "Faulty": Faulty})
    monkeypatch.setattr(Faulty, "changes", (image, label))
    np.random.seed(1)
    with refused(ConfigError, where="augmentation.transforms.0 (Faulty)", fault=fault):
        check(data, {"name": "Faulty"})
    check(data, {"name": "HorizontalFlip"})


def test_the_first_training_image_is_what_it_is_checked_on(
    make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    image = rng.integers(200, 4000, (97, 61, 4)).astype(np.uint16)
    scene = Scene("a", make_geotiff("a.tif", image), make_geotiff("b.tif", image[..., 0]), "a", "train")
    dataset = Dataset("made", scene.image.parent, (scene,), make_classes(3))
    config = AugmentationConfig.model_validate([{"name": "Equalize"}])
    with refused(ConfigError, where="(Equalize)", fault="4 bands of uint16"):
        check_augmentation(config, dataset, 32)
    with refused(ConfigError, where="augmentation.hue, augmentation.saturation", got="4 of uint16"):
        check_augmentation(AugmentationConfig(hue=10), dataset, 32)
    check_augmentation(AugmentationConfig(), Dataset("none", dataset.root, (), make_classes(3)), 32)


@pytest.mark.parametrize("data", ["rgb", pytest.param("reflectance", marks=pytest.mark.slow)])
def test_every_transform_of_the_library_is_refused_or_keeps_labels_true(data: str) -> None:
    dtype, mean, std = DATA[data]
    rng, passed = np.random.default_rng(0), []
    image = (rng.random((SIDE, SIDE, len(mean))) * np.array(mean)).astype(dtype)
    label = np.where(np.arange(SIDE) < SIDE // 2, 3, 5).astype(np.uint8) * np.ones((SIDE, 1), np.uint8)
    tile = image, np.ones((SIDE, SIDE), np.bool_), label
    for name in sorted(set(transforms._image_transforms()) - set(transforms._UNFIT)):
        try:
            check(data, {"name": name})
        except ConfigError:
            continue
        statistics = BandStatistics.of(dtype, np.array(mean, float), np.array(std, float))
        augmenter = Augmenter(AugmentationConfig.model_validate([{"name": name, "p": 1}]), statistics)
        passed.append(name)
        for seed in range(2):
            _, valid, moved = augmenter(tile, seed)
            assert set(np.unique(moved)) <= {3, 5, IGNORE}, name
            assert (moved[~valid] == IGNORE).all(), name
    assert len(passed) > 40, passed
    assert {"ElasticTransform", "GridDropout", "PixelDropout", "TimeMasking", "XYMasking"} <= set(passed)
