"""Random changes of a tile that move the label with the image.

Threads must not share a `Compose` of albumentations because of its random state, so each thread has a copy,
seeded again for every tile.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, shorten
from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE
from segmenter.grid.resampling import as_type
from segmenter.tiles.kernels import Planes, by_pixel, extend_valid, is_unbounded, transform_tile, unmix
from segmenter.tiles.statistics import BandStatistics
from segmenter.tiles.store import Tile
from segmenter.tiles.transforms import Stage, stages_of

_KEPT_BY_ANY = 0.5
"""Share of the side of the middle square that an unknown spatial transform is taken to keep in view."""

_CARRIERS = {"int8": "int16", **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "float64")}
"""Types that OpenCV does not interpolate → one that holds their values (of 64 bits, up to 2⁵³)."""

_DEVIATIONS = 6.0
"""Deviations of a band that colour changes take for its whole range: as 256 levels of 8-bit photographs."""
_MOST_DEVIATIONS = 16.0
"""Most deviations of a band in 256 levels; above, it fills its bytes less than photographs do."""
_FARTHEST = 64.0
"""Times the range beyond which a value is changed as one there: a saturated pixel must not overflow."""


@dataclass(frozen=True, eq=False)
class ColourRange:
    """Value range of each band that colour changes map to 0 … 1: six deviations around the mean.

    A range per tile would make a change's strength depend on the brightest pixel; one range for all bands
    would be too wide for bands of small values; the pixel type's range is ten times what reflectances use.
    """

    middle_C: NDArray[np.float64]
    range_C: NDArray[np.float64]

    @classmethod
    def of(cls, dtype: str, mean_C: NDArray[np.float64], spread_C: NDArray[np.float64]) -> ColourRange | None:
        """Return the range for images of this mean and deviation; None: 8-bit photographs, 0 … 255."""
        fills_bytes = dtype == "uint8" and (_MOST_DEVIATIONS * spread_C >= 255).all()
        return None if fills_bytes else cls(mean_C, _DEVIATIONS * spread_C)

    def shares(self, image_HWC: NDArray[Any], farthest: float = 0.0) -> NDArray[np.float32]:
        """Convert values to shares of the range, clipped to 0 … 1 or wider. A constant band is 0.5."""
        wide, wide_range = _wide(image_HWC.dtype), np.where(self.range_C > 0, self.range_C, np.inf)
        rows = image_HWC.reshape(len(image_HWC), -1) - self._row(self.middle_C, image_HWC, wide)
        rows /= self._row(wide_range, image_HWC, wide)
        rows += wide(0.5)
        return np.clip(rows, -farthest, 1 + farthest).astype(np.float32).reshape(image_HWC.shape)

    def moved(self, image_HWC: NDArray[Any], by_HWC: NDArray[np.float32]) -> NDArray[Any]:
        """Add shares of the range to the values, in their pixel type."""
        wide = _wide(image_HWC.dtype)
        by = by_HWC.reshape(len(image_HWC), -1) * self._row(self.range_C, image_HWC, wide)
        return as_type(image_HWC + by.reshape(image_HWC.shape), image_HWC.dtype.name)

    @staticmethod
    def _row(value_C: NDArray[np.float64], image_HWC: NDArray[Any], wide: Any) -> NDArray[Any]:
        """Return values repeated to (W × C,): NumPy broadcasts along rows faster than along three bands."""
        return np.tile(value_C.astype(wide), image_HWC.shape[1])


class Augmenter:
    """Applies the recipe's augmentation to a tile; one seed gives the same result in any thread."""

    def __init__(
        self,
        config: AugmentationConfig,
        statistics: BandStatistics,
    ) -> None:
        """Build the stages; `statistics` of the training images give pixel type and colour range.

        Raises:
            ConfigError: hue or saturation is set for images that are not 8-bit RGB, or a listed transform is
                unknown or has a wrong parameter.
        """
        hue, dtype = config.hue or config.saturation, statistics.dtype
        bands = len(statistics.mean_C)
        if hue and (bands != 3 or dtype != "uint8"):
            raise ConfigError(
                "augmentation.hue, augmentation.saturation",
                expected="8-bit images of 3 bands",
                got=f"{bands} of {dtype}",
                remedy="set both to 0",
            )
        self._config = config
        self._unit = None if hue else ColourRange.of(dtype, statistics.mean_C, statistics.spread_C)
        self._local = threading.local()
        self._built = stages_of(config)  # here, so that no thread waits for the import

    @property
    def border_at_risk(self) -> float:
        """Share of a tile's side, from each border, that spatial changes may move out of view.

        A square of side 1 rotated by φ covers the concentric square of side 1 / (cos φ + sin φ); zooming in
        by s divides that side by s. A listed transform may move anything: only the middle is likely to stay
        in view, and batches check the result.
        """
        angle = np.deg2rad(min(self._config.rotation, 45.0))
        share = 1 / ((1 + self._config.scale) * (np.cos(angle) + np.sin(angle)))
        if any(stage.asked_as and not stage.keeps_all for stage in self._built):
            share *= _KEPT_BY_ANY
        return float((1 - share) / 2)

    @property
    def outlines(self) -> bool:
        """True if the geometry never depends on the image, so labels can be changed without it."""
        return not any(stage.asked_as and stage.spatial for stage in self._built)

    def __call__(
        self, tile: Tile, seed: int, *, geometry_that_loses_nothing: bool = False, outline: bool = False
    ) -> Tile:
        """Change a tile at random; `seed` determines the result.

        Args:
            tile: image (H, W, C) of any dtype, valid (H, W), class ids (H, W); height equals width.
            geometry_that_loses_nothing: apply only flips and quarter turns, so that each class keeps its
                pixels.
            outline: apply only changes of label and validity, without an image.

        Raises:
            ConfigError: a listed transform fails on this tile.
        """
        image_HWC, valid_HW, label_HW = tile
        # 1 and 2: what is uncovered is filled with IGNORE, or by transforms without a fill for masks, with 0.
        planes: Planes = (label_HW, valid_HW.view(np.uint8) + np.uint8(1))
        wanted = [one for one in self._stages() if one.keeps_all or not geometry_that_loses_nothing]
        for number, stage in enumerate(wanted):
            if stage.compose is not None and (stage.spatial or not outline):
                seed_of_stage = (seed + number) % 2**32
                image_HWC, planes = self._apply(stage, seed_of_stage, image_HWC, planes, outline=outline)
        label_HW, uncovered_HW = planes[0], planes[1] - np.uint8(1) > 1
        if uncovered_HW.any():
            label_HW = np.where(uncovered_HW, np.uint8(IGNORE), label_HW)
        return np.ascontiguousarray(image_HWC), planes[1] == 2, label_HW

    def _apply(
        self, stage: Stage, seed: int, image_HWC: NDArray[Any], planes: Planes, *, outline: bool
    ) -> tuple[NDArray[Any], Planes]:
        """Apply a stage to image and planes; if a listed transform fails, raise an error that names it."""
        if not stage.asked_as:
            return self._apply_stage(stage, seed, image_HWC, planes, outline=outline)
        try:
            image, moved = self._apply_stage(stage, seed, image_HWC, planes, outline=outline)
        except Exception as error:
            why = in_one_line(error)
            raise ConfigError(stage.asked_as, f"fails on a tile: {why}", remedy="take it out") from None
        before = (image_HWC.shape, image_HWC.dtype, planes[0].shape)
        if (image.shape, image.dtype, moved[0].shape) != before:
            raise ConfigError(
                stage.asked_as,
                expected=f"a tile of {image_HWC.shape} {image_HWC.dtype} as before",
                got=f"{image.shape} {image.dtype}",
                remedy="take it out",
            )
        return image, moved

    def _apply_stage(
        self, stage: Stage, seed: int, image_HWC: NDArray[Any], planes: Planes, *, outline: bool
    ) -> tuple[NDArray[Any], Planes]:
        """Apply a stage to image and planes without mixing pixels that have no data into others."""
        valid_HW = planes[1] == 2
        if not stage.spatial:
            return recolour(stage, seed, image_HWC, valid_HW, self._unit), planes
        moved_HWC, planes = apply_stage(stage, seed, image_HWC, planes)
        if stage.interpolates and not outline:
            assert stage.compose is not None
            moved_HWC = unmix(stage.compose, image_HWC, valid_HW, moved_HWC, planes[1] == 2)
        return moved_HWC, planes

    def _stages(self) -> list[Stage]:
        if not hasattr(self._local, "stages"):
            self._local.stages = [replace(one, compose=copy.deepcopy(one.compose)) for one in self._built]
        return self._local.stages


def apply_stage(
    stage: Stage, seed: int, image_HWC: NDArray[Any], planes: Planes
) -> tuple[NDArray[Any], Planes]:
    """Return image, class ids and validity after a stage's transforms, seeded with `seed`."""
    assert stage.compose is not None
    if not stage.spatial:
        return transform_tile(stage.compose, seed, image_HWC)[0], planes
    carrier = None if stage.keeps_all else _CARRIERS.get(image_HWC.dtype.name)
    if carrier is None:
        return transform_tile(stage.compose, seed, image_HWC, planes)
    moved, planes = transform_tile(stage.compose, seed, image_HWC.astype(carrier), planes)
    return as_type(moved, image_HWC.dtype.name), planes


def recolour(
    stage: Stage, seed: int, image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_], unit: ColourRange | None
) -> NDArray[Any]:
    """Return the image after a stage of colour changes.

    The library clips floats to 0 … 1 and accepts only 8-bit integers. It gets clipped values, and its changes
    are added to the originals, so values beyond the range keep their distances. Pixels without data are
    filled from the nearest data: their 0 would spread in a blur, or be a tile's darkest value.
    """
    assert stage.compose is not None
    if not valid_HW.any():
        return image_HWC
    if not by_pixel(stage.compose):
        image_HWC = extend_valid(image_HWC, valid_HW)
    if unit is None:
        return transform_tile(stage.compose, seed, image_HWC)[0]
    share_HWC = unit.shares(image_HWC, _FARTHEST if is_unbounded(stage.compose) else 0.0)
    changed_HWC = transform_tile(stage.compose, seed, share_HWC.copy())[0]
    return unit.moved(image_HWC, changed_HWC - share_HWC)


def in_one_line(error: Exception) -> str:
    """Return a library's error as one short line."""
    return shorten(" ".join(str(error).split()) or type(error).__name__, 200)


def _wide(dtype: np.dtype[Any]) -> Any:
    """Return the type in which values of a pixel type can be computed without losing digits."""
    return np.float32 if dtype.itemsize <= 2 or dtype == np.float32 else np.float64
