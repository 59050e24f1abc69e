"""Probe of listed transforms: each is applied to a synthetic tile of the data's bands, type and size.

Many transforms are made for 8-bit RGB: they fail on other images, clip them or round them to 256 values, some
silently. Otherwise such a fault would end a training, or spoil it in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, counted, shorten
from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset
from segmenter.raster import open_raster
from segmenter.tiles.augment import Augmenter, ColourRange, apply_stage, in_one_line
from segmenter.tiles.kernels import is_unbounded, transform_tile
from segmenter.tiles.pasting import named_classes
from segmenter.tiles.statistics import BandStatistics
from segmenter.tiles.transforms import Stage, libraries, stages_of

_SAMPLE = 512
"""Pixels of the first training image that are looked at, each way, for the range of its values."""
_SEEDS, _SEEDS_OF_LARGE = 6, 2
_LARGE = 1024
"""Side in pixels from which a tile gets fewer draws, and only some of its values are looked at."""
_IDS = (2, 4, 7, 250)
"""Class ids of the probe, with gaps: an id between two of them was interpolated, one below was filled in."""
_LEVELS = (0.0, 1.8, -1.8, 0.9)
"""Brightness of these classes, in deviations; not in the order of the ids, so that no maximum fits both."""
_LEAST_RANGE = 0.05
"""Share of its range that an image must keep in the best of the draws."""
_FEW_VALUES, _MANY_VALUES = 260, 520
"""Numbers of distinct values: at most after 8 bits, and at least before, to detect it."""
_ALIGNED = 0.8
"""Share of the pixels well inside a class that must show it; drawn-over pixels cost some."""
_SLACK = 0.01

Moved = tuple[NDArray[Any], NDArray[np.uint8]]


@dataclass(frozen=True)
class _Probe:
    """Synthetic tile: image (H, W, C), label and validity (H, W, 2), and text on its bands and type.

    Attributes:
        unit: range that colour changes see as 0 … 1; None: values unchanged.
    """

    image_HWC: NDArray[Any]
    mask_HW2: NDArray[np.uint8]
    what: str
    unit: ColourRange | None


def check_augmentation(config: AugmentationConfig, dataset: Dataset, side: int) -> None:
    """Refuse an augmentation that does not fit the training images; reads only a part of the first one.

    Args:
        side: side of the tiles in pixels.
    """
    if config.copy_paste is not None:
        named_classes(config.copy_paste, dataset.classes.names)
    scenes = dataset.of("train")
    if not scenes or not (config.transforms or config.hue or config.saturation):
        return
    stages_of(config)  # unknown names need no image
    with open_raster(scenes[0].image, dataset.bands) as raster:
        image_HWC, valid_HW = raster.read(Window.middle(raster.info.size, _SAMPLE))
    pixels_NC = image_HWC[valid_HW] if valid_HW.any() else image_HWC.reshape(-1, image_HWC.shape[2])
    mean_C, std_C = pixels_NC.mean(axis=0, dtype=np.float64), pixels_NC.std(axis=0, dtype=np.float64)
    check_transforms(config, side, str(image_HWC.dtype), mean_C, std_C)


def check_transforms(
    config: AugmentationConfig,
    side: int,
    dtype: str,
    mean_C: NDArray[np.float64],
    std_C: NDArray[np.float64],
) -> None:
    """Run `check_augmentation` for tiles of a type and with a mean and deviation of each band."""
    Augmenter(config, BandStatistics.of(dtype, mean_C, std_C))
    if not config.transforms:
        return
    always = tuple(one.model_copy(update={"p": 1.0}) for one in config.transforms)
    probe = _probe(side, dtype, mean_C, std_C)
    stages = stages_of(config.model_copy(update={"transforms": always}))
    for stage in stages[-len(always) :]:
        _try(stage, probe)


def _try(stage: Stage, probe: _Probe) -> None:
    """Refuse a transform by its effect on the probe."""
    draws = list(_draws(stage, probe))
    for fault in (*_shapes(draws, probe), *_values(stage, draws, probe)):
        raise _refusal(stage, fault)
    if stage.spatial:
        for fault in _labels(draws, probe):
            raise _refusal(stage, fault)


def _refusal(stage: Stage, fault: str) -> ConfigError:
    return ConfigError(stage.asked_as, fault.rstrip("."), remedy="change its parameters, or take it out")


def _probe(side: int, dtype: str, mean_C: NDArray[np.float64], std_C: NDArray[np.float64]) -> _Probe:
    """Return blocks of four classes, each with its own brightness and some noise, in the data's range."""
    rng, bands = np.random.default_rng(0), len(mean_C)
    cells = -(-side // max(6, side // 6))
    kinds = rng.permuted(np.arange(cells * cells) % len(_IDS)).reshape(cells, cells)
    block = np.ones((-(-side // cells),) * 2, np.uint8)
    kind_HW = np.kron(kinds, block)[:side, :side]
    spread_C = np.where(std_C > 0, std_C, np.maximum(1e-3, np.abs(mean_C) * 0.1))
    noise_HWC = rng.standard_normal((side, side, bands), np.float32)
    parts_HWC = np.array(_LEVELS, np.float32)[kind_HW][..., None] + np.float32(0.15) * noise_HWC
    image: NDArray[Any] = mean_C.astype(np.float32) + spread_C.astype(np.float32) * parts_HWC
    if (kind := np.dtype(dtype)).kind in "iu":
        image = np.clip(np.rint(image), np.iinfo(kind).min, np.iinfo(kind).max)
    label_HW = np.array(_IDS, np.uint8)[kind_HW]
    valid_HW = np.ones_like(label_HW)
    label_HW[:1], valid_HW[:, :1] = IGNORE, 0
    mask_HW2 = np.stack([np.where(valid_HW == 1, label_HW, IGNORE), valid_HW], axis=-1)
    what = f"tiles of {counted(bands, 'band')} of {dtype}"
    # Whether the whole training set fills its bytes, one image does not tell.
    unit = None if dtype == "uint8" else ColourRange.of(dtype, mean_C, spread_C)
    return _Probe(image.astype(kind), mask_HW2.astype(np.uint8), what, unit)


def _draws(stage: Stage, probe: _Probe) -> Iterator[Moved]:
    """Apply a transform to the probe with several seeds; colour changes see all but 8-bit data as 0 … 1."""
    assert stage.compose is not None
    large = probe.image_HWC.shape[0] > _LARGE
    for seed in range(_SEEDS_OF_LARGE if large else _SEEDS):
        twice = []
        for _ in range(1 + (seed < 2)):
            image, mask = probe.image_HWC.copy(), probe.mask_HW2.copy()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    if stage.spatial or probe.unit is None:
                        image, planes = apply_stage(stage, seed, image, (mask[..., 0], mask[..., 1]))
                        twice.append((image, np.stack(planes, axis=-1)))
                    else:
                        twice.append((transform_tile(stage.compose, seed, probe.unit.shares(image))[0], mask))
                except Exception as error:
                    raise _refusal(stage, f"fails on {probe.what}: {in_one_line(error)}") from None
            # It warns where it does nothing, for want of colours or boxes.
            if told := [str(one.message) for one in caught if issubclass(one.category, UserWarning)]:
                raise _refusal(stage, f"warns on {probe.what}: {shorten(told[0], 200)}")
        if not all(a.tobytes() == b.tobytes() for a, b in zip(twice[0], twice[-1], strict=True)):
            raise _refusal(stage, "gives two results for one seed: a run with it cannot be repeated")
        yield twice[0]


def _shapes(draws: Sequence[Moved], probe: _Probe) -> Iterator[str]:
    """Yield a message for each unwanted change of size, bands or type."""
    side = probe.image_HWC.shape[0]
    for image, mask in draws:
        if image.ndim != 3 or image.shape[:2] != (side, side) or mask.shape != probe.mask_HW2.shape:
            got = " × ".join(map(str, image.shape[:2]))
            yield f"expected tiles of {side} × {side} pixels after it, got {got}"
        elif image.shape != probe.image_HWC.shape:
            yield f"expected {counted(probe.image_HWC.shape[2], 'band')} after it, got {image.shape[2]}"
        elif image.dtype not in (probe.image_HWC.dtype, np.float32) or mask.dtype != np.uint8:
            yield f"makes {image.dtype} of {probe.what}"
    if not any((mask[..., 1] == 1).any() for _, mask in draws):
        yield f"leaves no labelled pixel of {probe.what}"


def _values(stage: Stage, draws: Sequence[Moved], probe: _Probe) -> Iterator[str]:
    """Yield a message for each loss in the values: not finite, clipped, rounded."""
    unit = None if stage.spatial else probe.unit
    before = probe.image_HWC if unit is None else unit.shares(probe.image_HWC)
    clips = unit is not None and not (stage.compose and is_unbounded(stage.compose))
    for image, _ in draws:
        if image.dtype != before.dtype:
            yield f"makes {image.dtype} of {before.dtype} on {probe.what}"
        elif not np.isfinite(image).all():
            yield f"makes values that are no numbers (NaN or infinite) of {probe.what}"
        elif clips and (image.min() < -_SLACK or image.max() > 1 + _SLACK):
            yield (
                f"leaves the range of the values on {probe.what}: expected 0 to 1, as they are given, got "
                f"{image.min():.4g} to {image.max():.4g}"
            )
    widest = max(float(np.ptp(image.astype(np.float64))) for image, _ in draws)
    if widest < _LEAST_RANGE * (range_before := float(np.ptp(before.astype(np.float64)))):
        yield (
            f"clips {probe.what}: a range of {range_before:.4g} (of {float(before.min()):.4g} to "
            f"{float(before.max()):.4g}) becomes one of {widest:.4g}"
        )
    some = _thinning_slices(before)
    values, left = len(np.unique(before[some])), max(len(np.unique(image[some])) for image, _ in draws)
    if values > _MANY_VALUES and left < _FEW_VALUES:
        yield f"works in 8 bits: of {values:,} values in {probe.what} it leaves {left}"
    if stage.spatial and before.dtype.kind == "f" and (before.min() < 0 or before.max() > 1):
        piled = np.mean([np.isin(image[mask[..., 1] == 1], (0, 1)).mean() for image, mask in draws])
        within = all(image.min() >= 0 and image.max() <= 1 for image, _ in draws)
        if within and piled > _SLACK + np.isin(before, (0, 1)).mean():
            yield f"clips {probe.what} to 0 … 1: they hold {before.min():.4g} to {before.max():.4g}"


def _thinning_slices(image_HWC: NDArray[Any]) -> tuple[slice, slice]:
    """Return slices that take every n-th pixel of a large tile: sorting all would take minutes."""
    every = slice(None, None, max(1, image_HWC.shape[0] // _LARGE))
    return every, every


def _labels(draws: Sequence[Moved], probe: _Probe) -> Iterator[str]:
    """Yield a message if the label no longer matches the image."""
    for _, mask in draws:
        # Where it says itself that nothing is valid, the augmenter ignores the label.
        invented = np.setdiff1d(mask[..., 0][mask[..., 1] == 1], (*_IDS, IGNORE)).tolist()
        invented += np.setdiff1d(mask[..., 1], (0, 1, IGNORE)).tolist()
        if invented:
            values = ", ".join(map(str, invented[:3]))
            yield f"invents label values ({values}): it mixes class ids, or fills them in"
            return
    inside, aligned, unchanged = 0, 0, []
    for image, mask in draws:
        some = _thinning_slices(image)
        inner_HW = (_well_inside(mask[..., 0]) & (mask[..., 1] == 1))[some]
        inside += int(inner_HW.sum())
        alike_HW = _nearest_class(image[some], probe) == mask[..., 0][some]
        aligned += int(alike_HW[inner_HW].sum())
        same = (image == probe.image_HWC).all(axis=2).mean()
        unchanged.append(same if np.array_equal(mask, probe.mask_HW2) else 0.0)
    # What only draws over pixels leaves the rest as they are, to the bit.
    if inside and aligned < _ALIGNED * inside and np.mean(unchanged) < 1 - _ALIGNED:
        yield (
            f"moves image and label apart on {probe.what}: {aligned / inside:.0%} of the pixels well inside "
            "a class still show it"
        )


def _well_inside(label_HW: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return pixels with the same class up to two pixels around: others are interpolated."""
    _, cv2 = libraries()
    label_HW, square = np.ascontiguousarray(label_HW), np.ones((5, 5), np.uint8)
    even = cv2.erode(label_HW, square) == cv2.dilate(label_HW, square)
    return np.asarray(even & (label_HW != IGNORE))


def _nearest_class(image_HWC: NDArray[Any], probe: _Probe) -> NDArray[np.uint8]:
    """Return (H, W) class ids: for each pixel the class whose probe pixels are most similar."""
    means = [probe.image_HWC[probe.mask_HW2[..., 0] == i].astype(np.float64).mean(axis=0) for i in _IDS]
    scale_C = np.maximum(np.ptp(np.array(means), axis=0), 1e-9)
    distance = [(((image_HWC - mean) / scale_C) ** 2).mean(axis=2) for mean in means]
    return np.array(_IDS, np.uint8)[np.argmin(distance, axis=0)]
