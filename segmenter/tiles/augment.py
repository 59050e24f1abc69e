"""Random changes of a tile, with the label moved along.

A `Compose` of albumentations is not safe to share between threads (its random state is), so each thread gets
its own, seeded anew for every tile.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import AugmentationConfig
from segmenter.errors import ConfigError, shortened
from segmenter.tiles.kernels import Planes, transformed
from segmenter.tiles.transforms import Stage, stages_of

if TYPE_CHECKING:
    from albumentations import Compose

_KEPT_BY_ANY = 0.5
"""Share of the side of the middle square that an unknown spatial transform is taken to keep in view."""

Tile = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]


class Augmenter:
    """Applies the recipe's augmentation to a tile; one seed gives one result, in any thread."""

    def __init__(self, config: AugmentationConfig, bands: int, dtype: str) -> None:
        """`bands` and `dtype` are those of the tiles.

        Raises:
            ConfigError: hue or saturation is asked for on what is not 8-bit RGB, or a listed transform is
                unknown or has a wrong parameter.
        """
        if (config.hue or config.saturation) and (bands != 3 or dtype != "uint8"):
            raise ConfigError(
                "augmentation.hue, augmentation.saturation: expected 8-bit images of 3 bands, got "
                f"{bands} of {dtype}; set both to 0"
            )
        self._config, self._dtype = config, np.dtype(dtype)
        self._local = threading.local()
        self._built = stages_of(config)  # here, so that no thread waits for the import

    @property
    def border_at_risk(self) -> float:
        """Share of a tile's side, from each border inwards, that spatial changes may move out of view.

        A square of side 1 turned by φ covers the concentric square of side 1 / (cos φ + sin φ) and, zoomed
        in by s, that of 1 / s of it. A listed transform may move anything: only what lies in the middle is
        likely to stay, and batches look at what did.
        """
        angle = np.deg2rad(min(self._config.rotation, 45.0))
        kept = 1 / ((1 + self._config.scale) * (np.cos(angle) + np.sin(angle)))
        if any(stage.asked_as and not stage.keeps_all for stage in self._built):
            kept *= _KEPT_BY_ANY
        return float((1 - kept) / 2)

    @property
    def outlines(self) -> bool:
        """Whether where pixels go never depends on the image: label and validity can do without it."""
        return not any(stage.asked_as and stage.spatial for stage in self._built)

    def __call__(
        self, tile: Tile, seed: int, *, geometry_that_loses_nothing: bool = False, outline: bool = False
    ) -> Tile:
        """The tile changed at random, keyed by `seed`.

        Args:
            tile: image (H, W, C) of any dtype, valid (H, W), class ids (H, W); height equals width.
            geometry_that_loses_nothing: only flips and quarter turns, so that each class keeps its pixels.
            outline: only what moves label and validity; the image stays none.

        Raises:
            ConfigError: a listed transform fails on this tile.
        """
        image_HWC, valid_HW, label_HW = tile
        planes: Planes = (label_HW, valid_HW.view(np.uint8))
        wanted = [one for one in self._stages() if one.keeps_all or not geometry_that_loses_nothing]
        for number, stage in enumerate(wanted):
            if stage.compose is not None and (stage.spatial or not outline):
                image_HWC, planes = self._applied(stage, (seed + number) % 2**32, image_HWC, planes)
        # IGNORE fills what was uncovered: not valid either.
        return np.ascontiguousarray(image_HWC), planes[1] == 1, planes[0]

    def _applied(
        self, stage: Stage, seed: int, image_HWC: NDArray[Any], planes: Planes
    ) -> tuple[NDArray[Any], Planes]:
        """Image and planes after a stage; whoever lists a transform is told where it fails."""
        if not stage.asked_as:
            return apply_stage(stage, seed, image_HWC, planes)
        try:
            image, moved = apply_stage(stage, seed, image_HWC, planes)
        except Exception as error:
            why = in_one_line(error)
            raise ConfigError(f"{stage.asked_as}: fails on a tile: {why}; take it out") from None
        before = (image_HWC.shape, image_HWC.dtype, planes[0].shape)
        if (image.shape, image.dtype, moved[0].shape) != before:
            raise ConfigError(
                f"{stage.asked_as}: expected a tile of {image_HWC.shape} {image_HWC.dtype} as before, got "
                f"{image.shape} {image.dtype}; take it out"
            )
        return image, moved

    def _stages(self) -> list[Stage]:
        """This thread's own."""
        if not hasattr(self._local, "stages"):
            self._local.stages = [replace(one, compose=copy.deepcopy(one.compose)) for one in self._built]
        return self._local.stages


def apply_stage(
    stage: Stage, seed: int, image_HWC: NDArray[Any], planes: Planes
) -> tuple[NDArray[Any], Planes]:
    """Image, and class ids and validity, after the transforms of a stage, drawn from `seed`."""
    assert stage.compose is not None
    if stage.spatial:
        return transformed(stage.compose, seed, image_HWC, planes)
    return _coloured(image_HWC, stage.compose, seed), planes


def in_one_line(error: Exception) -> str:
    """What a library says of an error, short."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, 200)


def _coloured(image_HWC: NDArray[Any], colour: Compose, seed: int) -> NDArray[Any]:
    """Photometric changes; what is not 8-bit is brought to the tile's own range 0 … 1 and back.

    albumentations clips float images to [0, 1] and refuses other integers; a fixed range per dtype
    would wash out 16-bit reflectances, which use a small part of theirs.
    """
    dtype = image_HWC.dtype
    if dtype == np.uint8:
        return transformed(colour, seed, image_HWC)[0]
    low, high = float(image_HWC.min()), float(image_HWC.max())
    if high <= low:
        return image_HWC
    unit = ((image_HWC - np.float32(low)) / np.float32(high - low)).astype(np.float32)
    changed = transformed(colour, seed, unit)[0].astype(np.float32) * (high - low) + low
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.clip(np.rint(changed), limits.min, limits.max).astype(dtype)
    return changed.astype(dtype)
