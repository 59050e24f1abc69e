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
from segmenter.labels import IGNORE
from segmenter.tiles.kernels import Planes, transformed
from segmenter.tiles.transforms import Stage, stages_of

if TYPE_CHECKING:
    from albumentations import Compose

_KEPT_BY_ANY = 0.5
"""Share of the side of the middle square that an unknown spatial transform is taken to keep in view."""

_CARRIERS = {"int8": "int16", **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "float64")}
"""Types that OpenCV does not interpolate → one that holds their values (of 64 bits, up to 2⁵³)."""

Tile = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]
Range = tuple[float, float]


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
        # 1 and 2: what is uncovered is filled with IGNORE, or by transforms without a fill for masks, with 0.
        planes: Planes = (label_HW, valid_HW.view(np.uint8) + np.uint8(1))
        recoloured = not outline and any(not stage.spatial for stage in self._built)
        within = _range(image_HWC, valid_HW) if recoloured and image_HWC.dtype != np.uint8 else None
        wanted = [one for one in self._stages() if one.keeps_all or not geometry_that_loses_nothing]
        for number, stage in enumerate(wanted):
            if stage.compose is not None and (stage.spatial or not outline):
                seed_of_stage = (seed + number) % 2**32
                image_HWC, planes = self._applied(stage, seed_of_stage, image_HWC, planes, within)
        label_HW, uncovered_HW = planes[0], planes[1] - np.uint8(1) > 1
        if uncovered_HW.any():
            label_HW = np.where(uncovered_HW, np.uint8(IGNORE), label_HW)
        return np.ascontiguousarray(image_HWC), planes[1] == 2, label_HW

    def _applied(
        self,
        stage: Stage,
        seed: int,
        image_HWC: NDArray[Any],
        planes: Planes,
        within: Range | None,
    ) -> tuple[NDArray[Any], Planes]:
        """Image and planes after a stage; whoever lists a transform is told where it fails."""
        if not stage.asked_as:
            return apply_stage(stage, seed, image_HWC, planes, within)
        try:
            image, moved = apply_stage(stage, seed, image_HWC, planes, within)
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
    stage: Stage, seed: int, image_HWC: NDArray[Any], planes: Planes, within: Range | None = None
) -> tuple[NDArray[Any], Planes]:
    """Image, and class ids and validity, after the transforms of a stage, drawn from `seed`.

    Args:
        within: of the tile's values; colours of what is not 8-bit need it.
    """
    assert stage.compose is not None
    if not stage.spatial:
        if within is None:
            return transformed(stage.compose, seed, image_HWC)[0], planes
        return _coloured(image_HWC, stage.compose, seed, within), planes
    carrier = None if stage.keeps_all else _CARRIERS.get(image_HWC.dtype.name)
    if carrier is None:
        return transformed(stage.compose, seed, image_HWC, planes)
    moved, planes = transformed(stage.compose, seed, image_HWC.astype(carrier), planes)
    return _whole(moved, image_HWC.dtype), planes


def in_one_line(error: Exception) -> str:
    """What a library says of an error, short."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, 200)


def _range(image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]) -> Range:
    """Smallest and largest value of what is valid; (0, 0) where nothing is."""
    data = image_HWC if valid_HW.all() else image_HWC[valid_HW]
    return (float(data.min()), float(data.max())) if data.size else (0.0, 0.0)


def _coloured(image_HWC: NDArray[Any], colour: Compose, seed: int, within: Range) -> NDArray[Any]:
    """Photometric changes; what is not 8-bit is brought from `within` to 0 … 1 and back.

    albumentations clips float images to [0, 1] and refuses other integers; a fixed range per dtype would wash
    out 16-bit reflectances, which use a small part of theirs. Beside values of 9,000 to 10,000 the 0 that
    fills what is not valid, or was uncovered, would make all changes ten times as strong: it is clipped.
    """
    low, high = within
    if high <= low:
        return image_HWC
    unit = ((image_HWC - np.float32(low)) / np.float32(high - low)).astype(np.float32)
    changed = transformed(colour, seed, np.clip(unit, 0, 1, out=unit))[0]
    return _whole(changed.astype(np.float32) * (high - low) + low, image_HWC.dtype)


def _whole(changed_HWC: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in an image's own type, rounded and kept within it."""
    if dtype.kind not in "iu":
        return changed_HWC.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(changed_HWC), limits.min, limits.max).astype(dtype)
