"""Mean and deviation of each band over the training scenes, to normalise and augment any pixel type.

The rule of this module: **windows are chosen at random, independent of position**, so that no scene size
coincides with a grid; a band's nodata values are left out of its statistics.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from segmenter.base.errors import DatasetError
from segmenter.base.keyed_folder import KeyedFolder, read_sealed
from segmenter.base.sealed import seal
from segmenter.base.terminal import say
from segmenter.base.threads import in_threads
from segmenter.grid.geometry import Size, Window
from segmenter.grid.scenes import Dataset, Scene, SceneMeans
from segmenter.grid.windows import grid, row_strips
from segmenter.raster import RasterInfo, ask_for_bands, open_raster
from segmenter.raster.header import Names, names_of, order_of, used_names
from segmenter.raster.stamps import stamp_of
from segmenter.raster.validity import void_in_bands
from segmenter.tiles.index import cache_folder, key_of, relative_paths

_WINDOW = Size(512, 512)
_STRIP_PIXELS = 1 << 20
"""Pixels read at once: a three-band image takes some 75 bytes a pixel in float64, 75 MiB a thread."""
_MOST_SCENES = 4096
MOST_PIXELS = 64 << 20
"""Pixels that statistics are taken from, about, at most; enough for four digits of any band's deviation."""
_SAMPLE_PIXELS = 1 << 18
"""Pixels, about, that are kept to tell usual values from saturated ones."""
_TAILS = 0.01
"""Share of a band's values, at either end, that may be saturated."""
_SEED = 20
_LEAST_SCENES = 8
"""Fewer of them do not tell how much scenes differ."""
_NAMES = ("mean", "std", "min", "max", "spread")
_RULE = 4
"""Number of the rule which pixels are read, which of them are data, and what of them is kept."""


@dataclass(frozen=True)
class BandStatistics:
    """Mean and deviation of the training images, for normalisation.

    Attributes:
        mean_C, std_C: mean and deviation of each band, over pixels with data; a constant band has deviation
            1, so that it normalises to 0.
        pixels: number of pixels used.
        dtype: pixel type of all images.
        min_C, max_C: minimum and maximum of each band, over the same pixels.
        spread_C: deviation of each band after clipping its highest and lowest percent: the unit of colour
            changes, insensitive to a few saturated pixels.
        scenes: means of the scenes; None: fewer than 8 have data in every band.
    """

    mean_C: NDArray[np.float64]
    std_C: NDArray[np.float64]
    pixels: int
    dtype: str
    min_C: NDArray[np.float64]
    max_C: NDArray[np.float64]
    spread_C: NDArray[np.float64]
    scenes: SceneMeans | None = None

    @classmethod
    def of(cls, dtype: str, mean_C: NDArray[np.float64], std_C: NDArray[np.float64]) -> BandStatistics:
        """Return statistics of synthetic images, from mean and deviation alone."""
        return cls(mean_C, std_C, 1, dtype, mean_C - std_C, mean_C + std_C, std_C)


@dataclass(frozen=True)
class _Moments:
    """Count, mean, sum of squared differences from the mean, minimum and maximum of each band."""

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, values_NC: NDArray[Any]) -> _Moments:
        """Compute moments of (N, C) pixels in float64: small integers by histogram, others in two passes."""
        count = np.full(values_NC.shape[1], len(values_NC))
        if not len(values_NC):
            none = np.zeros(values_NC.shape[1])
            return cls(count, none, none, none + np.inf, none - np.inf)
        if values_NC.dtype.kind in "iu" and values_NC.dtype.itemsize <= 2:
            parts = [_histogram_moments(values_NC[:, band]) for band in range(values_NC.shape[1])]
            mean, squares, low, high = np.array(parts).T
            return cls(count, mean, squares, low, high)
        values = values_NC.astype(np.float64)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        return cls(count, mean, squares, values.min(axis=0), values.max(axis=0))

    @classmethod
    def by_band(cls, values_NC: NDArray[Any], void_NC: NDArray[np.bool_] | None) -> _Moments:
        """Compute moments as `of` does, leaving out each band's void values."""
        if void_NC is None:
            return cls.of(values_NC)
        parts = [cls.of(values_NC[~void_NC[:, c], c : c + 1]) for c in range(values_NC.shape[1])]
        return cls(*(np.concatenate(column) for column in zip(*(astuple(p) for p in parts), strict=True)))

    def merged(self, other: _Moments) -> _Moments:
        """Merge the moments of two pixel sets without cancellation (Chan, Golub & LeVeque 1979, eq. 2.1)."""
        count = self.count + other.count
        some = np.maximum(count, 1)
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / some)
        squares = self.squares + other.squares + delta**2 * (self.count * other.count / some)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return _Moments(count, mean, squares, low, high)


def _histogram_moments(values_N: NDArray[Any]) -> tuple[float, float, float, float]:
    """Return mean, squared differences, minimum, maximum of integers, 20 times as fast as in float64."""
    least = int(np.iinfo(values_N.dtype).min)
    counts = np.bincount(values_N.astype(np.intp) - least)
    levels = np.arange(len(counts), dtype=np.float64) + least
    mean = float(counts @ levels / len(values_N))
    present = levels[counts > 0]
    return mean, float(counts @ np.square(levels - mean)), float(present[0]), float(present[-1])


def band_statistics(
    dataset: Dataset, *, most_pixels: int = MOST_PIXELS, progress: bool = True
) -> BandStatistics:
    """Return band statistics over the training scenes, without pixels that have no data.

    Exact if the scenes have at most `most_pixels` pixels. Otherwise about that many are read, in windows of
    some 512×512 pixels, a share of each scene (of 4096 scenes, if there are more), at random but the same
    each time. Cached beside the index until a file changes.

    Raises:
        DatasetError: scenes differ in type or number of bands, or have no pixel with data.
        RasterError: a file cannot be read.
    """
    scenes = _some(dataset.of("train"), _MOST_SCENES)
    if not scenes:
        raise DatasetError(dataset.root, expected="train scenes to take statistics of, there are none")
    folder, name = KeyedFolder(cache_folder(dataset)), f"bands-{_key(dataset, scenes, most_pixels)}.json"
    cached = folder.load(name, _load)
    if cached is not None:
        return cached
    infos = _same_kind(dataset, scenes)
    jobs = _jobs(scenes, [info.size for info in infos], most_pixels)
    each, sample_NC = _moments(dataset, jobs, progress)
    moments = functools.reduce(_Moments.merged, each)
    if not moments.count.all():
        lacking = ", ".join(str(i + 1) for i in np.flatnonzero(moments.count == 0))
        what = f"data in band {lacking}" if moments.count.any() else "data in every band"
        raise DatasetError(dataset.root, f"no train scene has a pixel with {what}")
    scene_means = _scene_means(each, (info.size for info in infos))
    statistics = replace(_statistics(moments, infos[0].dtype, sample_NC), scenes=scene_means)
    folder.save(name, _bytes_of(statistics))
    return statistics


def _jobs(scenes: Sequence[Scene], sizes: Sequence[Size], most_pixels: int) -> list[tuple[Scene, Window]]:
    """Return the windows to read: all rows if not too many, else a random share of each scene's.

    Scenes and their windows are shuffled before windows are taken at even distances: each scene keeps its
    share, and the distance cannot coincide with rows, columns or the order of files.
    """
    pairs = list(zip(scenes, sizes, strict=True))
    total = sum(size.pixels for size in sizes)
    if total <= most_pixels:
        return [(scene, strip) for scene, size in pairs for strip in row_strips(size, _STRIP_PIXELS)]
    rng = np.random.default_rng(_SEED)
    windows: list[tuple[int, Window]] = []
    for i in rng.permutation(len(pairs)).tolist():
        placed = [placement.keep for placement in grid(sizes[i], _WINDOW)]
        windows += [(i, placed[j]) for j in rng.permutation(len(placed))]
    most = max(1, len(windows) * most_pixels // total)
    taken = [windows[i * len(windows) // most] for i in range(most)]
    return [(scenes[i], window) for i, window in sorted(taken, key=lambda one: (one[0], one[1].row))]


def _statistics(moments: _Moments, dtype: str, sample_NC: NDArray[np.float64]) -> BandStatistics:
    constant = moments.low == moments.high
    if constant.any():
        numbers = ", ".join(str(i + 1) for i in np.flatnonzero(constant))
        say(f"band {numbers} has one value everywhere; its deviation is taken as 1", aside=True)
    std = np.where(constant, 1.0, np.sqrt(moments.squares / moments.count))
    spread = np.array([_spread(*band) for band in zip(sample_NC.T, std, strict=True)])
    pixels = int(moments.count.max())
    return BandStatistics(moments.mean, std, pixels, dtype, moments.low, moments.high, spread)


def _scene_means(each: Sequence[_Moments], sizes: Iterable[Size]) -> SceneMeans | None:
    """Return the means of the scenes, to six digits, equal on any machine; None of fewer than 8."""
    means_SC = np.array([one.mean for one in each if one.count.all()])
    if len(means_SC) < _LEAST_SCENES:
        return None
    found = (means_SC.mean(axis=0), means_SC.std(axis=0, ddof=1), means_SC.min(axis=0), means_SC.max(axis=0))
    rounded = (tuple(float(f"{value:.6g}") for value in values_C) for values_C in found)
    return SceneMeans(len(means_SC), int(np.median([size.pixels for size in sizes])), *rounded)


def _spread(sample_N: NDArray[np.float64], std: float) -> float:
    """Return the deviation of a band's sample with clipped ends, to four digits, equal on any machine."""
    sample_N = sample_N[~np.isnan(sample_N)]
    if not len(sample_N):
        return std
    clipped = np.clip(sample_N, *np.quantile(sample_N, (_TAILS, 1 - _TAILS)))
    return float(f"{min(std, clipped.std()):.4g}")


def _moments(
    dataset: Dataset, jobs: Sequence[tuple[Scene, Window]], progress: bool
) -> tuple[list[_Moments], NDArray[np.float64]]:
    """Return moments of each scene's windows, and a sample of pixels, NaN where void; each is opened once."""
    by_scene: dict[Scene, list[Window]] = {}
    for scene, window in jobs:
        by_scene.setdefault(scene, []).append(window)
    place = {scene: i for i, scene in enumerate(by_scene)}
    every = max(1, sum(window.size.pixels for _, window in jobs) // _SAMPLE_PIXELS)

    def read(scene: Scene) -> tuple[_Moments, NDArray[np.float64]]:
        total: _Moments | None = None
        samples = []
        with open_raster(scene.image, dataset.bands) as raster:
            for number, window in enumerate(by_scene[scene]):
                image, valid = raster.read(window)
                void = void_in_bands(image, valid, raster.void_values)
                values_NC, void_NC = image[valid], None if void is None else void[valid]
                part = _Moments.by_band(values_NC, void_NC)
                total = part if total is None else total.merged(part)
                some = slice(
                    np.random.default_rng([_SEED, place[scene], number]).integers(every), None, every
                )
                samples.append(values_NC[some].astype(np.float64))
                if void_NC is not None:
                    samples[-1][void_NC[some]] = np.nan
        assert total is not None
        return total, np.concatenate(samples)

    scenes = list(by_scene)
    results = list(in_threads(read, scenes, description="band statistics", unit="scene", progress=progress))
    return [part for part, _ in results], np.concatenate([sample for _, sample in results])


def _same_kind(dataset: Dataset, scenes: Sequence[Scene]) -> list[RasterInfo]:
    """Return the headers of the scenes; all must have one type and number of bands."""

    def header(scene: Scene) -> tuple[RasterInfo, tuple[int, ...]]:
        with open_raster(scene.image, dataset.bands) as raster:
            return raster.info, raster.bands

    headers = list(in_threads(header, scenes, description="headers", unit="scene", progress=False))
    first, bands = headers[0][0], len(headers[0][1])
    wanted = next(filter(None, (used_names(info, used) for info, used in headers)), ())
    for info, used in headers:
        count = len(used)
        if order_of(wanted, names_of(info), used) is not None:
            raise DatasetError(
                info.path,
                expected=f"bands named {', '.join(map(str, wanted))} as other scenes have",
                got=", ".join(map(str, used_names(info, used))),
                remedy="bring the bands of all files into one order",
            )
        if count != bands and dataset.bands is None:
            raise DatasetError(
                info.path,
                expected=f"{bands} bands as {first.path.name}",
                got=count,
                remedy=ask_for_bands(min(count, bands)),
            )
        if info.dtype != first.dtype or count != bands:
            raise DatasetError(
                info.path,
                expected=f"{bands} bands of {first.dtype} as {first.path} has",
                got=f"{count} of {info.dtype}",
                remedy="choose dataset.bands, or convert the files to one type",
            )
    return [info for info, _ in headers]


def band_names(dataset: Dataset) -> Names:
    """Return the names of the bands that the model sees, from the first training image."""
    with open_raster(dataset.of("train")[0].image, dataset.bands) as raster:
        return used_names(raster.info, raster.bands)


def check_kinds(dataset: Dataset) -> None:
    """Refuse training and validation images that differ in type, number or order of bands.

    Reads the headers of scenes that `band_statistics` did not use.

    Raises:
        DatasetError: naming the first image that differs.
    """
    train = dataset.of("train")
    _same_kind(dataset, [*(train if len(train) > _MOST_SCENES else train[:1]), *dataset.of("validation")])


def _some(scenes: Sequence[Scene], most: int) -> Sequence[Scene]:
    """Return at most `most` of the scenes, chosen at random, in their order."""
    if len(scenes) <= most:
        return scenes
    return [scenes[i] for i in np.sort(np.random.default_rng(_SEED).permutation(len(scenes))[:most])]


def _key(dataset: Dataset, scenes: Sequence[Scene], most_pixels: int) -> str:
    files = [(relative_paths(dataset, s)[0], stamp_of(s.image).key) for s in scenes]
    return key_of({"files": files, "bands": dataset.bands, "most_pixels": most_pixels, "rule": _RULE})


def _load(path: Path) -> BandStatistics:
    cached = json.loads(read_sealed(path))
    arrays = {f"{name}_C": np.array(cached[name], np.float64) for name in _NAMES}
    scenes = TypeAdapter(SceneMeans | None).validate_python(cached["scenes"])
    return BandStatistics(pixels=cached["pixels"], dtype=cached["dtype"], scenes=scenes, **arrays)


def _bytes_of(statistics: BandStatistics) -> bytes:
    data: dict[str, Any] = {name: getattr(statistics, f"{name}_C").tolist() for name in _NAMES}
    data |= {"pixels": statistics.pixels, "dtype": statistics.dtype}
    data["scenes"] = None if statistics.scenes is None else asdict(statistics.scenes)
    return seal(json.dumps(data)).encode()
