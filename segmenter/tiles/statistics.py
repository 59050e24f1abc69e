"""Mean and deviation of each band over the training scenes: with them 16-bit and float trains as 8-bit."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from segmenter.errors import DatasetError, SegmenterError, shortened
from segmenter.files import read_regular, write_whole
from segmenter.geometry import Size, Window
from segmenter.raster import RasterInfo, ask_for_bands, open_raster, raster_info
from segmenter.raster.stamps import stamp_of
from segmenter.scenes import Dataset, Scene, Split
from segmenter.sealed import sealed, unsealed_text
from segmenter.threads import in_threads
from segmenter.tiles.cache import cache_folder, key_of, relative_paths
from segmenter.tiles.pairs import row_strips
from segmenter.windows import grid

_WINDOW = Size(512, 512)
_STRIP_PIXELS = 1 << 20
"""Pixels read at once: a three-band image takes some 75 bytes a pixel in float64, 75 MiB a thread."""
_MOST_SCENES = 4096
MOST_PIXELS = 64 << 20
"""Pixels that statistics are taken from, about, at most; enough for four digits of any band's deviation."""


@dataclass(frozen=True)
class BandStatistics:
    """Mean and deviation of the training images, for normalisation.

    Attributes:
        mean_C, std_C: of each band, over pixels with data; the deviation of a constant band is given as 1,
            so that it normalises to 0.
        pixels: number of pixels that went in.
        dtype: of the images; all scenes have the same.
        min_C, max_C: of each band, over the same pixels.
    """

    mean_C: NDArray[np.float64]
    std_C: NDArray[np.float64]
    pixels: int
    dtype: str
    min_C: NDArray[np.float64]
    max_C: NDArray[np.float64]


@dataclass(frozen=True)
class _Moments:
    """Count, mean, sum of squared differences from it, minimum and maximum of each band."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, values_NC: NDArray[Any]) -> _Moments:
        """Of (N, C) pixels, in float64: 8- and 16-bit integers by their histogram, others in two passes."""
        if not len(values_NC):
            none = np.zeros(values_NC.shape[1])
            return cls(0, none, none, none + np.inf, none - np.inf)
        if values_NC.dtype.kind in "iu" and values_NC.dtype.itemsize <= 2:
            parts = [_histogram_moments(values_NC[:, band]) for band in range(values_NC.shape[1])]
            mean, squares, low, high = np.array(parts).T
            return cls(len(values_NC), mean, squares, low, high)
        values = values_NC.astype(np.float64)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        return cls(len(values), mean, squares, values.min(axis=0), values.max(axis=0))

    def merged(self, other: _Moments) -> _Moments:
        """Of both sets of pixels (Chan, Golub & LeVeque 1979, eq. 2.1): no difference of large squares."""
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        squares = self.squares + other.squares + delta**2 * (self.count * other.count / count)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return _Moments(count, mean, squares, low, high)


def _histogram_moments(values_N: NDArray[Any]) -> tuple[float, float, float, float]:
    """Mean, squared differences, minimum and maximum of integers: 20 times as fast as in float64."""
    least = int(np.iinfo(values_N.dtype).min)
    counts = np.bincount(values_N.astype(np.intp) - least)
    levels = np.arange(len(counts), dtype=np.float64) + least
    mean = float(counts @ levels / len(values_N))
    there = levels[counts > 0]
    return mean, float(counts @ np.square(levels - mean)), float(there[0]), float(there[-1])


def band_statistics(
    dataset: Dataset,
    split: Split = "train",
    *,
    most_pixels: int = MOST_PIXELS,
    workers: int | None = None,
    progress: bool = True,
) -> BandStatistics:
    """Statistics of the bands over the scenes of a split, pixels without data left out.

    Exact where the scenes have at most `most_pixels` pixels. Otherwise about as many are read, in windows
    of some 512×512 pixels at even distances over all scenes (where there are more than 4096, over so many
    of them, at even distances too): the same ones each time. Kept beside the index until a file changes.

    Raises:
        DatasetError: scenes differ in type or number of bands, or have no pixel with data.
        RasterError: a file cannot be read.
    """
    scenes = _evenly(dataset.of(split), _MOST_SCENES)
    if not scenes:
        raise DatasetError(f"{dataset.root}: expected {split} scenes to take statistics of, there are none")
    path = cache_folder(dataset) / f"bands-{_key(dataset, scenes, most_pixels)}.json"
    kept = _load(path)
    if kept is not None:
        return kept
    infos = _same_kind(dataset, scenes, workers)
    jobs = _jobs(scenes, [info.size for info in infos], most_pixels)
    moments = _moments(dataset, jobs, workers, progress)
    if moments.count == 0:
        raise DatasetError(f"{dataset.root}: no {split} scene has a pixel with data in every band")
    found = _statistics(moments, infos[0].dtype)
    _save(path, found)
    return found


def _jobs(scenes: Sequence[Scene], sizes: Sequence[Size], most_pixels: int) -> list[tuple[Scene, Window]]:
    """Windows to read: every row, where that is not too much, else windows at even distances."""
    pairs = list(zip(scenes, sizes, strict=True))
    total = sum(size.pixels for size in sizes)
    if total <= most_pixels:
        return [(scene, strip) for scene, size in pairs for strip in row_strips(size, _STRIP_PIXELS)]
    windows = [(scene, placement.keep) for scene, size in pairs for placement in grid(size, _WINDOW)]
    return list(_evenly(windows, max(1, len(windows) * most_pixels // total)))


def _statistics(moments: _Moments, dtype: str) -> BandStatistics:
    constant = moments.low == moments.high
    if constant.any():
        numbers = ", ".join(str(i + 1) for i in np.flatnonzero(constant))
        print(f"band {numbers} has one value everywhere; its deviation is taken as 1", file=sys.stderr)
    std = np.where(constant, 1.0, np.sqrt(moments.squares / moments.count))
    return BandStatistics(moments.mean, std, moments.count, dtype, moments.low, moments.high)


def _moments(
    dataset: Dataset, jobs: Sequence[tuple[Scene, Window]], workers: int | None, progress: bool
) -> _Moments:
    """Moments over the windows, a scene opened once for all of its windows."""
    by_scene: dict[Scene, list[Window]] = {}
    for scene, window in jobs:
        by_scene.setdefault(scene, []).append(window)

    def read(scene: Scene) -> _Moments:
        total: _Moments | None = None
        with open_raster(scene.image, dataset.bands) as raster:
            for window in by_scene[scene]:
                image, valid = raster.read(window)
                part = _Moments.of(image[valid])
                total = part if total is None else total.merged(part)
        assert total is not None
        return total

    scenes = list(by_scene)
    total, *rest = in_threads(
        read, scenes, description="band statistics", unit="scene", workers=workers, progress=progress
    )
    for part in rest:
        total = total.merged(part)
    return total


def _same_kind(dataset: Dataset, scenes: Sequence[Scene], workers: int | None) -> list[RasterInfo]:
    """Headers of the scenes, all of one type and number of bands."""

    def header(scene: Scene) -> tuple[RasterInfo, int]:
        with open_raster(scene.image, dataset.bands) as raster:
            return raster.info, len(raster.bands)

    found = list(
        in_threads(header, scenes, description="headers", unit="scene", workers=workers, progress=False)
    )
    first, bands = found[0]
    for info, count in found:
        _check_count(dataset, info, count, bands, first.path.name)
        if info.dtype != first.dtype or count != bands:
            raise DatasetError(
                f"{info.path}: expected {bands} bands of {first.dtype} as {first.path} has, got {count} of "
                f"{info.dtype}; choose dataset.bands, or convert the files to one type"
            )
    return [info for info, _ in found]


def check_band_counts(dataset: Dataset, expected: int, workers: int | None = None) -> None:
    """Refuse a dataset some of whose scenes have another number of bands than those of `band_statistics`.

    Looks at the headers of those that the statistics were not taken of; where the bands are named there is
    nothing to look at.

    Raises:
        DatasetError: naming the file, and asking for the bands.
        RasterError: a header cannot be read.
    """
    train = dataset.of("train")
    scenes = [*(train if len(train) > _MOST_SCENES else ()), *dataset.of("validation")]
    if dataset.bands is not None or not scenes:
        return
    images = [scene.image for scene in scenes]
    for info in in_threads(
        raster_info, images, description="headers", unit="scene", workers=workers, progress=False
    ):
        _check_count(dataset, info, info.count - len(info.alpha), expected, "the training scenes")


def _check_count(dataset: Dataset, info: RasterInfo, count: int, expected: int, others: str) -> None:
    if count != expected and dataset.bands is None:
        raise DatasetError(
            f"{info.path}: expected {expected} bands as {others}, got {count}; "
            + ask_for_bands(min(count, expected))
        )


def _evenly(items: Sequence[Any], most: int) -> Sequence[Any]:
    """At most `most` of the items, at even distances."""
    if len(items) <= most:
        return items
    return [items[i * len(items) // most] for i in range(most)]


def _key(dataset: Dataset, scenes: Sequence[Scene], most_pixels: int) -> str:
    files = [(relative_paths(dataset, s)[0], stamp_of(s.image).key) for s in scenes]
    return key_of({"files": files, "bands": dataset.bands, "most_pixels": most_pixels})


class _Kept(BaseModel):
    """The content of a file of statistics, whose types and ranges are checked as it is read."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    format: Literal[2]
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]
    min: tuple[float, ...]
    max: tuple[float, ...]
    pixels: int = Field(ge=1)
    dtype: str = Field(pattern=r"^[a-z]+[0-9]+$")

    @model_validator(mode="after")
    def _fits(self) -> _Kept:
        if not len(self.mean) == len(self.std) == len(self.min) == len(self.max) > 0:
            raise ValueError("expected as many of each as there are bands")
        np.dtype(self.dtype)  # raises TypeError
        return self


def _load(path: Path) -> BandStatistics | None:
    """Statistics of an earlier run; None, with a line on stderr, where it is damaged or of another format."""
    if not path.exists():
        return None
    try:
        whole = unsealed_text(read_regular(path))
        if whole is None:
            raise ValueError("its checksum is another")
        kept = _Kept.model_validate_json(whole)
    except (SegmenterError, ValueError, TypeError) as error:
        print(
            f"{path}: damaged, it is taken anew ({shortened(' '.join(str(error).split()))})", file=sys.stderr
        )
        return None
    mean, std, low, high = (np.array(v, np.float64) for v in (kept.mean, kept.std, kept.min, kept.max))
    return BandStatistics(mean, std, kept.pixels, kept.dtype, low, high)


def _save(path: Path, found: BandStatistics) -> None:
    arrays = {"mean": found.mean_C, "std": found.std_C, "min": found.min_C, "max": found.max_C}
    data = {"format": 2, **{name: array.tolist() for name, array in arrays.items()}}
    text = sealed(json.dumps(data | {"pixels": found.pixels, "dtype": found.dtype}))
    try:
        write_whole(path, text.encode())
    except SegmenterError as error:
        print(f"band statistics are not kept: {error}", file=sys.stderr)
