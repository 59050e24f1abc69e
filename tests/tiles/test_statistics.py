"""Band statistics against NumPy: which pixels go in, and which windows are read of much data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.grid.windows import grid
from segmenter.tiles import statistics
from segmenter.tiles.index import cache_folder
from segmenter.tiles.statistics import BandStatistics, _Moments, band_statistics
from tests.helpers.refusals import refused

Make = Callable[..., Path]


def scene(name: str, image: Path, label: Path | None, split: Split = "train") -> Scene:
    return Scene(name, image, label, name, split)


def dataset_of(root: Path, classes: ClassMap, *scenes: Scene, **options: Any) -> Dataset:
    return Dataset("made", root, scenes, classes, **options)


def images(
    make_geotiff: Make, dtype: str, rng: np.random.Generator
) -> tuple[list[Path], NDArray[np.float64]]:
    low, high = (-3000, 3000) if dtype == "int16" else (1, 250)
    paths, values = [], []
    for i, shape in enumerate(((31, 57), (40, 23))):
        image = rng.integers(low, high, (*shape, 2)).astype(dtype)
        image[image == 0] = 1
        image = image + np.array([0, 5], dtype)
        if dtype == "float32":
            image[3:9, 4] = np.nan
            image += 1e4  # where a difference of squares loses its digits
        else:
            image[3:9, 4] = 0
            image[3:9, 7, 0] = 0  # in one band: not of that band
        bad = ~np.isfinite(image).all(axis=2) | (image == 0).all(axis=2)
        values.append(image[~bad].astype(np.float64))
        nodata = None if dtype == "float32" else 0
        paths.append(make_geotiff(f"{dtype}{i}.tif", image, nodata=nodata))
    return paths, np.concatenate(values)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_statistics_equal_numpy(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: Any, dtype: str
) -> None:
    paths, values = images(make_geotiff, dtype, rng)
    extra = make_geotiff("test.tif", np.full((9, 9, 2), 200, dtype))
    scenes = [scene(path.stem, path, None) for path in paths]
    dataset = dataset_of(tmp_path, make_classes(2), *scenes, scene("x", extra, None, "test"))
    found = band_statistics(dataset, progress=False)
    own = [
        band if dtype == "float32" else band[band != 0] for band in values.T
    ]  # 0 in one band is none there
    np.testing.assert_allclose(found.mean_C, [band.mean() for band in own], rtol=1e-12)
    np.testing.assert_allclose(found.std_C, [band.std() for band in own], rtol=1e-10)
    assert (found.min_C.tolist(), found.max_C.tolist()) == (
        [band.min() for band in own],
        [band.max() for band in own],
    )
    assert (found.pixels, found.dtype) == (max(map(len, own)), dtype)


def fields(found: BandStatistics) -> list[Any]:
    arrays = (found.mean_C, found.std_C, found.min_C, found.max_C, found.spread_C)
    return [found.pixels, found.dtype, *(array.tolist() for array in arrays)]


def test_statistics_are_kept_until_a_file_changes(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: Any
) -> None:
    paths, _ = images(make_geotiff, "uint16", rng)
    dataset = dataset_of(tmp_path, make_classes(2), *(scene(path.stem, path, None) for path in paths))
    first = band_statistics(dataset, progress=False)
    kept = next(cache_folder(dataset).glob("bands-*.json"))
    stamp = kept.stat().st_mtime_ns
    assert fields(band_statistics(dataset, progress=False)) == fields(first)
    assert kept.stat().st_mtime_ns == stamp
    kept.write_text("{")
    assert fields(band_statistics(dataset, progress=False)) == fields(first)
    make_geotiff(paths[0].name, np.full((31, 57, 2), 9, np.uint16))
    assert fields(band_statistics(dataset, progress=False)) != fields(first)


def test_statistics_of_much_data_take_some_of_the_windows(
    tmp_path: Path,
    make_geotiff: Make,
    make_classes: Callable[..., ClassMap],
    monkeypatch: pytest.MonkeyPatch,
    rng: Any,
) -> None:
    monkeypatch.setattr("segmenter.tiles.statistics._WINDOW", Size(10, 10))
    paths = [make_geotiff(f"{i}.tif", rng.integers(0, 255, (95, 87, 1)).astype(np.uint8)) for i in range(3)]
    dataset = dataset_of(tmp_path, make_classes(2), *(scene(path.stem, path, None) for path in paths))
    exact = band_statistics(dataset, progress=False)
    sampled = band_statistics(dataset, most_pixels=8000, progress=False)
    assert exact.pixels == 3 * 95 * 87
    assert sampled.pixels == pytest.approx(8000, rel=0.1)
    np.testing.assert_allclose(sampled.mean_C, exact.mean_C, rtol=0.03)
    again = band_statistics(dataset, most_pixels=8000, progress=False)
    assert fields(again) == fields(sampled)


@pytest.mark.parametrize(
    ("count", "size"), [(64, Size(2048, 2048)), (1, Size(8192, 131072)), (24, Size(6000, 6000))], ids=str
)
def test_which_windows_are_read_does_not_go_with_the_grid(tmp_path: Path, count: int, size: Size) -> None:
    scenes = [scene(f"{i:04}", tmp_path / f"{i}.tif", None) for i in range(count)]
    jobs = statistics._jobs(scenes, [size] * count, statistics.MOST_PIXELS)
    assert len(set(jobs)) == len(jobs)
    read = sum(window.size.pixels for _, window in jobs)
    assert read == pytest.approx(statistics.MOST_PIXELS, rel=0.1)
    placed = [placement.keep for placement in grid(size, statistics._WINDOW)]
    each = np.bincount([int(one.name) for one, _ in jobs], minlength=count)
    assert each.max() - each.min() <= 1
    cols = {window.col for window in placed}
    if len(jobs) > 12 * len(cols):  # so many that chance leaves none out
        assert {window.col for _, window in jobs} == cols
    for axis in ("row", "col"):
        all_places, places = ([getattr(w, axis) for w in some] for some in (placed, [w for _, w in jobs]))
        # Four deviations of the mean of so many draws.
        assert abs(np.mean(places) - np.mean(all_places)) <= 4 * np.std(all_places) / np.sqrt(len(jobs))
    assert jobs == statistics._jobs(scenes, [size] * count, statistics.MOST_PIXELS)


def test_many_files_are_taken_at_random(tmp_path: Path) -> None:
    """Scenes cut into 8 columns, in the order of their names: no column is left out, and the order stays."""
    scenes = [scene(f"{i:05}", tmp_path / f"{i}.tif", None) for i in range(8 * 4096)]
    some = [int(one.name) for one in statistics._some(scenes, 4096)]
    assert some == sorted(set(some))
    assert np.bincount(np.array(some) % 8).min() > 4096 / 8 - 5 * 22
    assert len(some) == 4096


@pytest.mark.parametrize(("dtype", "scaling"), [("uint16", None), ("float32", None), ("int16", (0.5, 3.0))])
def test_a_band_is_measured_without_what_it_declares_void(
    tmp_path: Path,
    make_geotiff: Make,
    make_classes: Callable[..., ClassMap],
    rng: Any,
    dtype: str,
    scaling: tuple[float, float] | None,
) -> None:
    nodata = 0 if dtype == "uint16" else -9999
    image = rng.integers(150, 250, (90, 70, 2)).astype(dtype)
    image[:26, :, 1] = nodata
    path = make_geotiff("a.tif", image, nodata=nodata)
    scale, offset = scaling or (1, 0)
    if scaling is not None:
        with rasterio.open(path, "r+") as file:
            file.scales, file.offsets = (scale,) * 2, (offset,) * 2
    found = band_statistics(dataset_of(tmp_path, make_classes(2), scene("a", path, None)), progress=False)
    for band, values in enumerate((image[..., 0], image[26:, :, 1])):
        expected = values.astype(np.float64) * scale + offset
        np.testing.assert_allclose(found.mean_C[band], expected.mean(), rtol=1e-9)
        np.testing.assert_allclose(found.std_C[band], expected.std(), rtol=1e-9)
        assert (found.min_C[band], found.max_C[band]) == (expected.min(), expected.max())
        assert 0.9 * expected.std() < found.spread_C[band] <= expected.std()
    image[..., 1] = nodata
    empty = make_geotiff("b.tif", image, nodata=nodata)
    with refused(DatasetError, fault="band 2"):
        band_statistics(dataset_of(tmp_path, make_classes(2), scene("b", empty, None)), progress=False)


def test_a_saturated_pixel_of_a_hundred_does_not_widen_the_spread(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: Any
) -> None:
    image = rng.normal(1500, 300, (200, 200, 1)).astype(np.uint16)
    image[::20, ::10] = 65535
    dataset = dataset_of(tmp_path, make_classes(2), scene("a", make_geotiff("a.tif", image), None))
    found = band_statistics(dataset, progress=False)
    assert found.std_C[0] > 4000
    assert found.spread_C[0] == pytest.approx(300, rel=0.1)


def test_a_constant_band_has_deviation_one_and_says_so(
    tmp_path: Path,
    make_geotiff: Make,
    make_classes: Callable[..., ClassMap],
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = np.zeros((8, 9, 2), np.float32)
    image[..., 0], image[0, 0, 1] = 0.1, 3
    one = scene("s", make_geotiff("s.tif", image), None)
    found = band_statistics(dataset_of(tmp_path, make_classes(2), one), progress=False)
    assert found.std_C[0] == 1
    assert found.std_C[1] < 1
    assert "band 1" in capsys.readouterr().err


def test_statistics_errors(tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap]) -> None:
    a = scene("a", make_geotiff("a.tif", np.ones((8, 9, 2), np.uint8)), None)
    b = scene("b", make_geotiff("b.tif", np.ones((8, 9, 2), np.uint16)), None)
    c = scene("c", make_geotiff("c.tif", np.zeros((8, 9, 2), np.uint8), nodata=0), None)
    for scenes, message in (
        ((a, b), r"b.tif: expected 2 bands of uint8 as .*a.tif has, got 2 of uint16"),
        ((c,), "no train scene has a pixel with data"),
        ((), "expected train scenes to take statistics of, there are none"),
    ):
        with pytest.raises(DatasetError, match=message):
            band_statistics(dataset_of(tmp_path, make_classes(2), *scenes), progress=False)


@pytest.mark.parametrize("dtype", ["int8", "uint32"])
def test_whole_numbers_of_any_size_are_measured(dtype: str, rng: Any) -> None:
    """Those of 32 bits have too many values for a histogram."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, (50, 2), endpoint=True).astype(dtype)
    found, wide = _Moments.of(values), values.astype(np.float64)
    np.testing.assert_allclose(found.mean, wide.mean(axis=0), rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(found.squares, 50 * wide.var(axis=0), rtol=1e-12)
    np.testing.assert_array_equal((found.low, found.high), (wide.min(axis=0), wide.max(axis=0)))
