"""Fit of a raster to a run, checked before computing: type, band names, and range of values.

A model sees only numbers: the same landscape in other units, or with bands in another order, gives a
plausible map that is wrong everywhere. The raster's band names are compared with the run's, and its values
with each band's mean and deviation in training. Means differ between landscapes, but a common factor or
offset of all bands is no property of a landscape.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import RasterError, SegmenterError
from segmenter.grid.geometry import Window
from segmenter.grid.windows import SAMPLE_SIDE, sample_windows
from segmenter.model.normalisation import Normalisation
from segmenter.raster import RasterInfo
from segmenter.raster.header import Readable, names_of, order_of, other_names
from segmenter.runs.ensemble import AnyRun, members
from segmenter.runs.run import Run

_INSIST = "to take it all the same: --insist, in Python insist=True"
_MOST_SAMPLED = 1000
"""Most inputs of a call whose values are checked in advance; of more, this number at even distances."""
_LEAST_PIXELS = 256
"""Fewer of them say nothing."""
_FAR, _NOTABLE = 10.0, 4.0
"""Deviations of training by which all bands' means are another quantity, and one band's is worth a line."""
_FACTOR, _NOTABLE_FACTOR = 6.0, 3.0
"""Common factor of all bands, or its inverse, that is another unit, and one that is worth a line."""
_CHANCE = 0.01
"""Share of calls on places alike to training that may be taken for others, if scenes differ normally."""
_LEAST_DEVIATION = 0.1
"""Deviations of training's pixels that scenes' means may always differ by."""
_ALIKE = 4.0
"""Ratio of the largest to the smallest of the bands' factors up to which they are one."""
_COLOURS = 0.25
"""Change of colours in training that makes maps in other light better (studies/new_place.md)."""
_OFFSETS = (1000.0, 0.1)
"""Offsets of reflectances since processing baseline 04.00 of Sentinel-2, times 10,000 and as they are."""


@dataclass(frozen=True)
class BandMoments:
    """Mean and deviation of each band of a raster, over some evenly spaced windows, and those of each."""

    mean_C: NDArray[np.float64]
    std_C: NDArray[np.float64]
    pixels: int
    windows_WC: NDArray[np.float64]

    @classmethod
    def of(cls, raster: Readable, part: Window) -> BandMoments:
        """Read 16 windows from the top, or a small part at once; unreadable windows are left out."""
        samples: list[NDArray[np.float64]] = []
        for window in sample_windows(part):
            try:
                image, valid = raster.read(window)
            except SegmenterError:  # said when it is mapped
                continue
            step = max(1, max(window.height, window.width) // SAMPLE_SIDE)
            samples.append(image[::step, ::step][valid[::step, ::step]].astype(np.float64))
        samples = [values for values in samples if len(values)]
        if not samples:
            none = np.zeros(len(raster.bands))
            return cls(none, none, 0, none[None])
        values, means_WC = np.concatenate(samples), np.array([part.mean(axis=0) for part in samples])
        return cls(values.mean(axis=0), values.std(axis=0), len(values), means_WC)


def sample_inputs(paths: Sequence[Path]) -> frozenset[Path]:
    """Return the inputs of a call whose values are checked: all, or 1,000 at even distances."""
    count = min(len(paths), _MOST_SAMPLED)
    return frozenset(paths[i * len(paths) // count] for i in range(count))


def check_fit(
    run: AnyRun,
    raster: Readable,
    part: Window,
    *,
    insist: bool = False,
    sampled: Container[Path] | None = None,
    seen: list[BandMoments] | None = None,
) -> tuple[str, ...]:
    """Return warnings about a raster to be predicted with a run.

    Args:
        part: part of the raster to map.
        insist: warn instead of refusing the raster.
        sampled: files whose values are checked; None: all.
        seen: gets the sample of a raster whose values raise no doubt, for `other_light`.

    Raises:
        RasterError: type or unit of its values, or the order of its bands, differ from training.
    """
    info = raster.info
    told = _other_names(run, info, raster.bands)
    doubts = [*_other_type(run, info), *_other_order(run, info, raster.bands)]
    if sampled is None or info.path in sampled:
        sample = BandMoments.of(raster, part)
        fits = [compare_values(sample, member.scenes or member.normalisation) for member in members(run)]
        for refused, line in fits:
            (doubts if refused else told).extend([line] if line else [])
        if seen is not None and not any(line for _, line in fits):
            seen.append(sample)
    if doubts and not insist:
        raise RasterError(info.path, doubts[0], remedy=_INSIST)
    return tuple(dict.fromkeys((*doubts, *told)))


def _other_type(run: AnyRun, info: RasterInfo) -> list[str]:
    # Floats of another width hold the same measurement; integers of one may count something else.
    return [
        f"expected values of {each} as in the training images, got {info.dtype}; give them as the files of "
        "training hold them, not scaled"
        for each in sorted({member.dtype for member in members(run)})
        if each != info.dtype and not np.dtype(info.dtype).kind == np.dtype(each).kind == "f"
    ]


def _other_order(run: AnyRun, info: RasterInfo, bands: Sequence[int]) -> list[str]:
    names = names_of(info)
    for member in members(run):
        order = order_of(member.band_names, names, bands)
        if order is not None:
            mine = ", ".join(names[band - 1] or "unnamed" for band in bands)
            theirs = ", ".join(name or "unnamed" for name in member.band_names)
            mend = f"; in that order: --bands {','.join(map(str, order))}" if order else ""
            return [f"expected bands named {theirs} as in the training images, got {mine}{mend}"]
    return []


def _other_names(run: AnyRun, info: RasterInfo, bands: Sequence[int]) -> list[str]:
    names = [each for member in members(run) for each in other_names(member.band_names, info, bands)]
    return [f"a band is named {mine}, in training {theirs}" for theirs, mine in dict.fromkeys(names)]


def other_scales(run: AnyRun, metres: float | None) -> list[str]:
    """Return a line on each scale of training that is far from these metres a pixel; none if unknown."""
    lines = []
    for member in members(run):
        if not metres or not (theirs := member.metres_per_pixel):
            continue
        low, high = member.recipe.augmentation.scale_to or (theirs, theirs)
        if not low / 2 <= metres <= high * 2:
            seen = f"{theirs:.2g} m" if low == high else f"{low:.2g} to {high:.2g} m"
            lines.append(f"a pixel is {metres:.2g} m, the model was trained on {seen}")
    return list(dict.fromkeys(lines))


def compare_values(sample: BandMoments, trained: Normalisation) -> tuple[bool, str]:
    """Compare values with training; return True if the quantity differs, and a line on it, or empty text."""
    mean, std = np.array(trained.mean), np.array(trained.std)
    if sample.pixels < _LEAST_PIXELS or len(mean) != len(sample.mean_C):
        return False, ""
    both = f"band means are {_numbers(sample.mean_C)}, in training {_numbers(mean)} ± {_numbers(std)}"
    off = (sample.mean_C - mean) / std
    if (guess := _offset(sample, mean, std)) or (guess := _decibels(sample, mean, std)):
        return True, f"{both}: {guess}"
    factor = _common_factor(sample, mean, std)
    if factor is not None and not 1 / _NOTABLE_FACTOR <= factor <= _NOTABLE_FACTOR:
        refused = not 1 / _FACTOR <= factor <= _FACTOR
        return refused, f"{both}: all are about {factor:.3g} times as large; are they of another unit?"
    if (np.abs(off) > _FAR).all():
        return True, f"{both}: all are more than {_FAR:.0f} deviations off; are they of another unit?"
    if len(off) > 2 and _fits_reversed(sample, mean, std):
        return False, f"{both}: they fit better in reverse order; are they blue, green, red?"
    if (np.abs(off) > _NOTABLE).any():
        return False, both
    return False, ""


def other_light(run: AnyRun, seen: Sequence[BandMoments], pixels: int) -> str:
    """Return a line if the images of a call are of other light than all training scenes; else empty text.

    Several runs must agree. Of an area smaller than a scene nothing is said: it may hold one thing alone.

    Args:
        seen: samples of the images.
        pixels: pixels of all images.
    """
    lines = [_unlike(member, seen, pixels) for member in members(run)]
    return lines[0] if all(lines) else ""


def _unlike(run: Run, seen: Sequence[BandMoments], pixels: int) -> str:
    """Compare the mean of all images with the scenes' means, by Student's t of a scene that is added."""
    from scipy.special import stdtrit  # here: it takes as long as all else that a map's plan imports

    scenes = run.scene_means
    windows_WC = [sample.windows_WC for sample in seen if sample.pixels]
    if scenes is None or pixels < scenes.pixels or not windows_WC:
        return ""
    found_WC = np.concatenate(windows_WC)
    mean, least = found_WC.mean(axis=0), _LEAST_DEVIATION * np.array((run.scenes or run.normalisation).std)
    error = found_WC.var(axis=0) / len(found_WC)
    by_scene = np.array(scenes.deviation) ** 2 * (1 + 1 / scenes.scenes)
    off = np.abs(mean - scenes.mean) / np.maximum(np.sqrt(by_scene + error), least)
    beyond = (mean < scenes.low) | (mean > scenes.high)
    band = int(np.argmax(off * beyond))
    if not beyond[band] or off[band] <= stdtrit(scenes.scenes - 1, 1 - _CHANCE / 2 / len(mean)):
        return ""
    between = f"{scenes.low[band]:.3g} to {scenes.high[band]:.3g}"
    line = (
        f"of other light, season or land than all {scenes.scenes} scenes of training, maps may be poor: "
        f"band {band + 1} has a mean of {mean[band]:.3g}, these scenes {between}"
    )
    changed = run.recipe.augmentation
    if min(changed.brightness, changed.contrast) < _COLOURS and not changed.transforms:
        line += (
            f"; a training with augmentation.brightness and contrast of {_COLOURS:g} bears other light better"
        )
    return line


def _common_factor(
    sample: BandMoments, mean_C: NDArray[np.float64], std_C: NDArray[np.float64]
) -> float | None:
    """Return the common factor of all bands, in mean and deviation; None if they have none."""
    told = np.abs(mean_C) > std_C / 2  # a mean near 0 has no ratio
    factors = np.concatenate([sample.std_C / std_C, sample.mean_C[told] / mean_C[told]])
    if not (factors > 0).all() or factors.max() > _ALIKE * factors.min():
        return None
    return float(np.exp(np.log(factors).mean()))


def _offset(sample: BandMoments, mean_C: NDArray[np.float64], std_C: NDArray[np.float64]) -> str:
    """Return text on a well-known number that was added to all bands; empty if no number fits."""
    more = sample.mean_C - mean_C
    spread = sample.std_C / std_C
    common = float(more.mean())
    alike = bool((np.abs(more - common) < 0.2 * abs(common)).all() and ((spread > 0.5) & (spread < 2)).all())
    is_offset = any(math.isclose(abs(common), each, rel_tol=0.15) for each in _OFFSETS)
    if len(more) < 2 or not alike or not is_offset or not (np.abs(more) > std_C).all():
        return ""
    return f"each is about {common:+.3g} off; Sentinel-2 has such an offset since processing baseline 04.00"


def _decibels(sample: BandMoments, mean_C: NDArray[np.float64], std_C: NDArray[np.float64]) -> str:
    """Return text if values are never negative but those of training are; else empty text."""
    negative, positive = (mean_C < -std_C).all(), (sample.mean_C >= 0).all()
    return "are they linear, and those of training decibels?" if negative and positive else ""


def _fits_reversed(sample: BandMoments, mean_C: NDArray[np.float64], std_C: NDArray[np.float64]) -> bool:
    orders = sample.mean_C, np.concatenate([sample.mean_C[2::-1], sample.mean_C[3:]])
    misses = [float((((order - mean_C) / std_C) ** 2).sum()) for order in orders]
    return misses[0] > len(mean_C) and misses[1] < misses[0] / 9


def _numbers(values_C: NDArray[np.float64]) -> str:
    factors = ", ".join(f"{value:.3g}" for value in values_C[:4])
    return factors + (", …" if len(values_C) > 4 else "")
