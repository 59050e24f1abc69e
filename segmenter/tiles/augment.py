"""Random changes of a tile, with the label moved along. The only module that imports albumentations.

albumentations 2.0.8 is the last release under the MIT licence and no longer maintained: all that the
program asks of it passes through `Augmenter`, so that it can be replaced. A `Compose` is not safe to share
between threads (its random state is), so each thread gets its own, seeded anew for every tile.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import AugmentationConfig
from segmenter.errors import ConfigError
from segmenter.labels import IGNORE

if TYPE_CHECKING:
    from albumentations import Compose

Tile = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]


class Augmenter:
    """Applies the recipe's augmentation to a tile; one seed gives one result, in any thread."""

    def __init__(self, config: AugmentationConfig, bands: int, dtype: str) -> None:
        """`bands` and `dtype` are those of the tiles.

        Raises:
            ConfigError: hue or saturation is asked for on what is not 8-bit RGB.
        """
        if (config.hue or config.saturation) and (bands != 3 or dtype != "uint8"):
            raise ConfigError(
                "augmentation.hue, augmentation.saturation: expected 8-bit images of 3 bands, got "
                f"{bands} of {dtype}; set both to 0"
            )
        self._config, self._dtype = config, np.dtype(dtype)
        self._local = threading.local()
        _libraries()  # here, so that no thread waits for the import

    @property
    def border_at_risk(self) -> float:
        """Share of a tile's side, from each border inwards, that turning and zooming may move out of view.

        A square of side 1 turned by φ covers the concentric square of side 1 / (cos φ + sin φ) and, zoomed
        in by s, that of 1 / s of it.
        """
        angle = np.deg2rad(min(self._config.rotation, 45.0))
        kept = 1 / ((1 + self._config.scale) * (np.cos(angle) + np.sin(angle)))
        return float((1 - kept) / 2)

    def __call__(self, tile: Tile, seed: int, *, geometry_that_loses_nothing: bool = False) -> Tile:
        """The tile changed at random, keyed by `seed`.

        Args:
            tile: image (H, W, C) of any dtype, valid (H, W), class ids (H, W); height equals width.
            geometry_that_loses_nothing: only flips and quarter turns, so that each class keeps its pixels.
        """
        image_HWC, valid_HW, label_HW = tile
        geometry, colour = self._transforms()
        if geometry_that_loses_nothing:
            geometry = geometry[:1]
        # One byte holds label and validity together: a further mask would get the same fill value.
        for number, transform in enumerate(geometry):
            transform.set_random_seed((seed + number) % 2**32)
            mask = np.stack([label_HW, valid_HW.astype(np.uint8)], axis=-1)
            moved = transform(image=image_HWC, mask=mask)
            image_HWC, label_HW = moved["image"], np.ascontiguousarray(moved["mask"][..., 0])
            valid_HW = moved["mask"][..., 1] == 1  # IGNORE fills what was uncovered: not valid either
        if colour is not None:
            colour.set_random_seed((seed + len(geometry)) % 2**32)
            image_HWC = self._coloured(image_HWC, colour)
        return np.ascontiguousarray(image_HWC), valid_HW, label_HW

    def _coloured(self, image_HWC: NDArray[Any], colour: Compose) -> NDArray[Any]:
        """Photometric changes; what is not 8-bit is brought to the tile's own range 0 … 1 and back.

        albumentations clips float images to [0, 1] and refuses other integers; a fixed range per dtype
        would wash out 16-bit reflectances, which use a small part of theirs.
        """
        if self._dtype == np.uint8:
            return colour(image=image_HWC)["image"]
        low, high = float(image_HWC.min()), float(image_HWC.max())
        if high <= low:
            return image_HWC
        unit = ((image_HWC - np.float32(low)) / np.float32(high - low)).astype(np.float32)
        changed = colour(image=unit)["image"].astype(np.float32) * (high - low) + low
        return (
            np.rint(changed).astype(self._dtype) if self._dtype.kind in "iu" else changed.astype(self._dtype)
        )

    def _transforms(self) -> tuple[list[Compose], Compose | None]:
        if not hasattr(self._local, "transforms"):
            self._local.transforms = _geometry(self._config), _colour(self._config)
        return self._local.transforms


@functools.cache
def _libraries() -> tuple[Any, Any]:
    """albumentations and OpenCV, imported at first use: whoever augments must not forget their settings."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # importing must not ask the network for news
    import albumentations
    import cv2

    cv2.setNumThreads(0)  # the pipeline has its own threads; OpenCV's would fight them for the same cores
    return albumentations, cv2


def _geometry(config: AugmentationConfig) -> list[Compose]:
    """Flips and turns first, alone: the part that loses no pixel."""
    A, cv2 = _libraries()
    turns = [A.D4(p=1.0)] if config.d4 else []
    composes = [A.Compose(turns)]
    if config.scale or config.rotation:
        affine = A.Affine(
            scale=(1 - config.scale, 1 + config.scale),
            rotate=(-config.rotation, config.rotation),
            interpolation=cv2.INTER_LINEAR,
            mask_interpolation=cv2.INTER_NEAREST,
            fill=0,
            fill_mask=IGNORE,  # the default fills with class 0
            p=1.0,
        )
        composes.append(A.Compose([affine]))
    return composes


def _colour(config: AugmentationConfig) -> Compose | None:
    A, _ = _libraries()
    transforms: list[Any] = []
    if config.brightness or config.contrast:
        transforms.append(
            A.RandomBrightnessContrast(
                brightness_limit=config.brightness, contrast_limit=config.contrast, p=1.0
            )
        )
    if config.hue or config.saturation:
        # OpenCV's 8-bit hue runs over 0 … 179: two degrees a step.
        transforms.append(
            A.HueSaturationValue(
                hue_shift_limit=config.hue / 2,
                sat_shift_limit=255 * config.saturation,
                val_shift_limit=0,
                p=1.0,
            )
        )
    if config.blur:
        transforms.append(A.GaussianBlur(blur_limit=(3, 5), p=config.blur))
    if config.noise:
        transforms.append(A.GaussNoise(std_range=(0.0, config.noise), p=1.0))
    return A.Compose(transforms) if transforms else None
