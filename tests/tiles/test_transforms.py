"""Listed transforms: built by name, with label and validity moved along; the settings are their shorthand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import albumentations
import cv2
import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE
from segmenter.tiles.augment import Augmenter, Tile
from segmenter.tiles.transforms import known_transforms, shorthand, stages_of
from tests.helpers.made_statistics import statistics_of


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


def test_shorthands_are_transforms_that_a_recipe_may_list() -> None:
    flips, affine, colour = shorthand(flags())
    names = [one.name for one in (*flips, *affine, *colour)]
    assert names == [
        *("D4", "Affine", "RandomBrightnessContrast", "HueSaturationValue", "GaussianBlur", "GaussNoise")
    ]
    assert set(names) <= set(known_transforms())
    written_out = listed(*(one.model_dump() for one in (*flips, *affine, *colour)))
    assert len(stages_of(written_out)) == 1 + len(names)


def test_a_shorthand_has_its_probability_and_is_drawn_apart_from_the_others() -> None:
    """Each as often as asked, and two together as often as independent draws would be, of 400."""
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
        {"name": "Perspective", "scale": 0.2},
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


def test_what_comes_in_from_outside_is_ignored_and_reflections_keep_their_label() -> None:
    image, _, label = tile()
    label[:], valid = 2, np.ones_like(label, bool)
    outside = Augmenter(listed({"name": "Rotate", "limit": [45, 45], "p": 1}), statistics_of())(
        (image, valid, label), 1
    )
    assert (outside[2] == IGNORE).any()
    assert not outside[1].all()
    mirrored = {"name": "Rotate", "limit": [45, 45], "p": 1, "border_mode": cv2.BORDER_REFLECT_101}
    inside = Augmenter(listed(mirrored), statistics_of())((image, valid, label), 1)
    assert (inside[2] == 2).all()
    assert inside[1].all()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_colour_of_any_type_keeps_type_and_range_and_label(dtype: str) -> None:
    names = ("RandomGamma", "GaussianBlur", "UnsharpMask", "PlasmaShadow")
    noise = {"name": "GaussNoise", "p": 1.0, "std_range": [0.01, 0.1]}
    config = listed(noise, *({"name": name, "p": 1.0} for name in names))
    augmenter = Augmenter(config, statistics_of(4, dtype, *((100, 60) if dtype == "uint8" else (1300, 750))))
    before = tile(dtype, 4)
    image, valid, label = augmenter(before, 3)
    assert (image.dtype, image.shape) == (before[0].dtype, before[0].shape)
    assert image.std() > 5
    if dtype != "uint8":  # six deviations are the range, and gamma and shadows stay in it
        assert np.abs(image.astype(float) - before[0])[valid].max() < 6 * 750
    assert not np.array_equal(image, before[0])
    np.testing.assert_array_equal(label, before[2])
    np.testing.assert_array_equal(valid, before[1])


def test_each_transform_has_its_probability_and_one_seed_gives_one_result_in_any_thread() -> None:
    config = listed(
        {"name": "HorizontalFlip", "p": 0.25},
        {"name": "ElasticTransform", "p": 0.5},
        {"name": "ShiftScaleRotate", "p": 0.5},  # which the library has advice on
    )
    augmenter, content = Augmenter(config, statistics_of()), tile()
    serial = [augmenter(content, seed)[0].tobytes() for seed in range(120)]
    with ThreadPoolExecutor(4) as pool:
        threaded = [image.tobytes() for image, _, _ in pool.map(lambda s: augmenter(content, s), range(120))]
    assert serial == threaded
    flips = Augmenter(listed({"name": "HorizontalFlip", "p": 0.25}), statistics_of())
    flipped = sum(not np.array_equal(flips(content, seed)[0], content[0]) for seed in range(400))
    assert 70 < flipped < 130  # 100 ± 8.7


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
        (
            {"name": "RandomGama"},
            r"transforms.0: albumentations 2.0.8 has no transform RandomGama; did you mean R",
        ),
        ({"name": "randomgamma"}, r"no transform randomgamma; did you mean RandomGamma"),
        ({"name": "Compose"}, r"has no transform Compose; "),
        ({"name": "DualTransform"}, r"has no transform DualTransform; "),
        ({"name": "CenterCrop3D", "size": [1, 9, 9]}, r"has no transform CenterCrop3D; "),
        (
            {"name": "RandomGamma", "gama_limit": 3},
            r"transforms.0 \(RandomGamma\): unknown parameter gama_limit; .* did you mean gamma_limit\?",
        ),
        ({"name": "RandomGamma", "gamma_limit": "x"}, r"\(RandomGamma\): gamma_limit: .*got 'x'"),
        ({"name": "RandomCrop"}, r"\(RandomCrop\): height: Field required; width: Field required"),
        ({"name": "Affine", "fill_mask": 0}, r"\(Affine\): fill_mask: .* leave it out, got 0"),
        ({"name": "Affine", "mask_interpolation": 1}, r"mask_interpolation: .* leave it out, got 1"),
        ({"name": "Affine", "fill_mask": None}, r"\(Affine\): fill_mask: .*got None"),
        ({"name": "Lambda"}, r"Lambda is not for tiles with labels: it takes functions"),
        ({"name": "Mosaic"}, r"use the setting augmentation.mosaic"),
        ({"name": "HistogramMatching"}, r"needs hm_metadata, which tiles do not have"),
        ({"name": "BBoxSafeRandomCrop"}, r"needs boxes around objects, which tiles do not have"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_unknown_names_and_parameters_are_refused_in_one_line(transform: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        stages_of(listed(transform))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_transform_that_fails_on_a_tile_is_named() -> None:
    """The check before training cannot foresee every tile."""
    augmenter = Augmenter(listed({"name": "CLAHE", "p": 1}), statistics_of(4))
    with pytest.raises(ConfigError, match=r"augmentation.transforms.0 \(CLAHE\): fails on a tile: CLAHE"):
        augmenter(tile(bands=4), 0)
    smaller = Augmenter(listed({"name": "RandomCrop", "height": 20, "width": 20, "p": 1}), statistics_of())
    with pytest.raises(ConfigError, match=r"\(RandomCrop\): expected a tile of \(49, 49, 3\)"):
        smaller(tile(), 0)
    larger = {"name": "PadIfNeeded", "min_height": 64, "min_width": 64, "p": 1}
    with pytest.raises(ConfigError, match=r"\(PadIfNeeded\): expected a tile of \(49, 49, 3\)"):
        Augmenter(listed(larger), statistics_of())(tile(), 0)


@pytest.mark.parametrize(
    "transform",
    [
        {"name": "RandomResizedCrop", "size": [128, 128]},
        {"name": "RandomSizedCrop", "min_max_height": [90, 110], "size": [128, 128]},
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
