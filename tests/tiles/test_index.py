"""The tile index and band statistics against brute force; what changed or is damaged is read anew."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

import segmenter.tiles.index as index_module
from segmenter.base.errors import DatasetError, LabelError, RasterError
from segmenter.base.keyed_folder import KeyedFolder
from segmenter.base.threads import in_threads
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.grid.windows import grid
from segmenter.tiles import statistics
from segmenter.tiles.index import SceneTiles, TileIndex, build_index, cache_folder, load_entries, save_entries
from segmenter.tiles.statistics import BandStatistics, _Moments, band_statistics, check_kinds
from tests.helpers.made_runs import flipped
from tests.helpers.refusals import refused

Make, Plain = Callable[..., Path], Callable[..., Dataset]
AREA = Size(53, 101)


def scene(name: str, image: Path, label: Path | None, split: Split = "train") -> Scene:
    return Scene(name, image, label, name, split)


def dataset_of(root: Path, classes: ClassMap, *scenes: Scene, **options: Any) -> Dataset:
    return Dataset("made", root, scenes, classes, **options)


@pytest.fixture
def made(tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: Any) -> Dataset:
    """Four scenes: two train (one with nodata, one smaller than a tile), one validates, one tests."""
    scenes = []
    sizes = (AREA, Size(19, 13), Size(40, 41), Size(33, 64))
    for i, (size, split) in enumerate(zip(sizes, ("train", "train", "validation", "test"), strict=True)):
        image = rng.integers(1, 255, (size.height, size.width, 3)).astype(np.uint8)
        image[:5, :7] = 0
        label = rng.integers(0, 3, (size.height, size.width)).astype(np.uint8)
        label[-4:] = 9
        files = make_geotiff(f"{i}.tif", image, nodata=0), make_geotiff(f"{i}_label.tif", label)
        scenes.append(scene(str(i), *files, split))  # type: ignore[arg-type]
    return dataset_of(tmp_path, make_classes(4, ignored=(9,)), *scenes)


def ids_of(path: Path, image: Path) -> NDArray[np.uint8]:
    """Class ids by the book: read whole, nodata and ignored pixels left out."""
    with rasterio.open(path) as label, rasterio.open(image) as file:
        ids, data = label.read(1), file.read()
    return np.where((ids == 9) | (data == 0).all(axis=0), IGNORE, ids)


def brute_force(dataset: Dataset, split: Split, tiles: TilesConfig) -> list[tuple[int, ...]]:
    rows = []
    for number, one in enumerate(dataset.of(split)):
        ids = ids_of(one.label, one.image)
        for placement in grid(Size(*ids.shape), Size(tiles.size, tiles.size), tiles.overlap):
            window = placement.read
            part = ids[window.slices()]
            counts = [int((part == k).sum()) for k in range(len(dataset.classes))]
            if sum(counts) >= tiles.min_labelled * tiles.size**2:
                rows.append((number, window.row, window.col, sum(counts), *counts))
    return rows


def rows_of(index: TileIndex) -> list[tuple[int, ...]]:
    columns = (index.scene_N, index.row_N, index.col_N, index.labelled_N, *index.counts_NK.T)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("overlap", "min_labelled", "split"), [(0, 0.9, "train"), (5, 0.05, "train"), (15, 0.0, "validation")]
)
@pytest.mark.parametrize("strip", [1, 7 * 101, 2000, 10**6])
def test_counts_are_those_of_the_labels_as_training_reads_them(
    made: Dataset, overlap: int, min_labelled: float, split: Split, strip: int, monkeypatch: Any
) -> None:
    """However many pixels are read at once: strips cut through tiles."""
    monkeypatch.setattr("segmenter.tiles.index.STRIP_PIXELS", strip)
    tiles = TilesConfig(size=16, overlap=overlap, min_labelled=min_labelled)
    index = build_index(made, split, tiles, progress=False)
    assert rows_of(index) == brute_force(made, split, tiles)
    everything = brute_force(made, split, TilesConfig(size=16, overlap=overlap, min_labelled=0))
    assert index.left_out == len(everything) - len(index)
    assert index.counts_NK.dtype == index.labelled_N.dtype == np.int64
    assert index.scene_N.dtype == index.row_N.dtype == index.col_N.dtype == np.int32
    assert index.window(0) == Window(*rows_of(index)[0][1:3], 16, 16)
    np.testing.assert_allclose(index.shares(), index.counts_NK.sum(axis=0) / index.labelled_N.sum())


def test_the_fingerprint_is_that_of_places_and_counts(made: Dataset) -> None:
    """Resuming asks it whether the plan is still that of these tiles."""
    index = build_index(made, "train", TilesConfig(size=16), progress=False)
    arrays = ("scene_N", "row_N", "col_N", "counts_NK")
    changed = [replace(index, **{name: getattr(index, name) + 1}) for name in arrays]
    assert len({one.fingerprint() for one in (index, *changed)}) == 5
    assert replace(index, counts_NK=index.counts_NK.copy()).fingerprint() == index.fingerprint()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    real = index_module.tile_counts

    def counting(dataset: Dataset, one: Scene, *args: Any) -> Any:
        names.append(one.name)
        return real(dataset, one, *args)

    monkeypatch.setattr(index_module, "tile_counts", counting)
    return names


def test_only_changed_files_are_read_again_and_other_settings_have_another_index(
    made: Dataset, decoded: list[str]
) -> None:
    first, again = (build_index(made, "train", TilesConfig(size=16), progress=False) for _ in range(2))
    assert sorted(decoded) == ["0", "1"]
    assert rows_of(again) == rows_of(first)
    for split, settings, read in (
        ("validation", {}, ["2"]),
        ("train", {"overlap": 3}, ["0", "1"]),
        ("train", {"min_labelled": 0.5}, []),
    ):
        del decoded[:]
        build_index(made, split, TilesConfig(size=16, **settings), progress=False)  # type: ignore[arg-type]
        assert sorted(decoded) == read
    for changed in (made.scenes[1].image, made.scenes[1].label):
        os.utime(changed, ns=(1, changed.stat().st_mtime_ns + 1))
        del decoded[:]
        build_index(made, "train", TilesConfig(size=16), progress=False)
        assert decoded == ["1"]


def test_removed_scenes_leave(made: Dataset) -> None:
    build_index(made, "train", TilesConfig(size=16), progress=False)
    smaller = dataset_of(made.root, made.classes, *made.scenes[1:])
    made.scenes[0].image.unlink()
    index = build_index(smaller, "train", TilesConfig(size=16), progress=False)
    assert [one.name for one in index.scenes] == ["1"]
    path = next(cache_folder(made).glob("*.parquet"))
    assert list(load_entries(KeyedFolder(path.parent), path.name, 4)) == [("1.tif", "1_label.tif")]


def test_no_flipped_bit_of_an_index_gives_other_tiles(tmp_path: Path, rng: Any) -> None:
    def plain(entries: Any) -> list[Any]:
        return [
            (files, keys, tiles.row_N.tolist(), tiles.col_N.tolist(), tiles.counts_NK.tolist())
            for files, (keys, tiles) in entries.items()
        ]

    path = tmp_path / "tiles.parquet"
    tiles = SceneTiles(*rng.integers(-9, 99, (2, 5), np.int32), rng.integers(0, 9**5, (5, 3)))
    entries = {("a.tif", "wäld/b.tif"): (("1f", "2a"), tiles), ("e.tif", "e.tif"): (("9", "9"), tiles)}
    save_entries(KeyedFolder(tmp_path), path.name, entries, 3)
    assert plain(load_entries(KeyedFolder(tmp_path), path.name, 3)) == plain(entries)
    whole, rebuilt = path.read_bytes(), 0
    for content in flipped(whole, 97):
        path.write_bytes(content)
        found = load_entries(KeyedFolder(tmp_path), path.name, 3)
        assert found == {} or plain(found) == plain(entries)
        rebuilt += found == {}
    assert rebuilt > 8 * len(whole) / 97 / 2


@pytest.mark.parametrize("damage", [b"no parquet", None])
def test_a_damaged_index_is_built_anew_and_says_so(
    made: Dataset, decoded: list[str], capsys: pytest.CaptureFixture[str], damage: bytes | None
) -> None:
    first = build_index(made, "train", TilesConfig(size=16), progress=False)
    path = next(cache_folder(made).glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF  # in a page of data
    path.write_bytes(bytes(content) if damage is None else damage)
    assert rows_of(build_index(made, "train", TilesConfig(size=16), progress=False)) == rows_of(first)
    assert "made anew" in capsys.readouterr().err
    assert len(decoded) == 4


def test_what_was_read_before_an_error_is_kept(made: Dataset, decoded: list[str], make_geotiff: Make) -> None:
    bad = made.scenes[1].label
    make_geotiff(bad.name, np.full((19, 13), 77, np.uint8))
    with pytest.raises(LabelError, match=r"1_label.tif: .*know: 77 \(247 px\)"):
        build_index(
            made, "train", TilesConfig(size=16), progress=False, spread=partial(in_threads, workers=1)
        )
    make_geotiff(bad.name, np.zeros((19, 13), np.uint8))
    del decoded[:]
    build_index(made, "train", TilesConfig(size=16), progress=False)
    assert decoded == ["1"]


def test_a_root_that_cannot_be_written(
    made: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".tile-index").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index = build_index(made, "train", TilesConfig(size=16), progress=False)
    assert len(index) > 0
    assert "tile index" in capsys.readouterr().err
    assert list((tmp_path / "cache" / "coverage-segmenter").glob("*/tiles-*.parquet"))


def test_errors_name_the_file(made: Dataset, make_geotiff: Make, make_png: Make) -> None:
    image = made.scenes[0].image
    moved = rasterio.Affine(0.5, 0, 368000.4, 0, -0.5, 5808000)
    labels = np.zeros((53, 101), np.uint8)
    cases: list[tuple[Path | None, type[Exception], str]] = [
        (None, DatasetError, "expected a label for scene s, there is none"),
        (make_geotiff("moved.tif", labels, transform=moved), DatasetError, "up to 0.8 pixels from its image"),
        (make_png("rgb.png", np.full((53, 101, 3), (0, 1, 0), np.uint8)), LabelError, "expected one band"),
        (made.root / "none.png", RasterError, "none.png"),
    ]
    for label, kind, message in cases:
        bad = dataset_of(made.root, made.classes, scene("s", image, label))
        with pytest.raises(kind, match=message):
            build_index(bad, "train", TilesConfig(size=16), progress=False)


def test_a_label_that_is_moved_by_less_than_half_a_pixel_fits(made: Dataset, make_geotiff: Make) -> None:
    slight = rasterio.Affine(0.5, 0, 368000.2, 0, -0.5, 5808000)
    label = make_geotiff("slight.tif", np.zeros((53, 101), np.uint8), transform=slight)
    good = dataset_of(made.root, made.classes, scene("s", made.scenes[0].image, label))
    assert len(build_index(good, "train", TilesConfig(size=16), progress=False)) > 0


def test_no_tile_with_enough_labels(made: Dataset, make_geotiff: Make) -> None:
    label = make_geotiff("ignored.tif", np.full((53, 101), 9, np.uint8))
    empty = dataset_of(made.root, made.classes, scene("s", made.scenes[0].image, label))
    with refused(DatasetError, expected="least 5.0%"):
        build_index(empty, "train", TilesConfig(size=16), progress=False)


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


@pytest.fixture
def plain(tmp_path: Path, make_classes: Callable[..., ClassMap]) -> Callable[..., Dataset]:
    """`plain(path, …)`: a dataset of images to train on, of which nothing is labelled."""

    def plain(*paths: Path) -> Dataset:
        return dataset_of(tmp_path, make_classes(2), *(scene(path.stem, path, None) for path in paths))

    return plain


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_statistics_equal_numpy(plain: Plain, make_geotiff: Make, rng: Any, dtype: str) -> None:
    paths, values = images(make_geotiff, dtype, rng)
    extra = make_geotiff("test.tif", np.full((9, 9, 2), 200, dtype))
    dataset = plain(*paths)
    dataset = replace(dataset, scenes=(*dataset.scenes, scene("x", extra, None, "test")))
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


@pytest.mark.parametrize("count", [7, 9])
def test_how_much_scenes_differ_is_known_from_eight_on(
    plain: Plain, make_geotiff: Make, rng: Any, count: int
) -> None:
    values = [rng.normal(100 + 9 * i, 20, (31 + i, 57, 2)).astype(np.float32) for i in range(count)]
    dataset = plain(*(make_geotiff(f"{i}.tif", value) for i, value in enumerate(values)))
    found = band_statistics(dataset, progress=False)
    if count < 8:
        assert found.scenes is None
        return
    means = np.array([value.mean(axis=(0, 1), dtype=np.float64) for value in values])
    assert found.scenes is not None
    assert (found.scenes.scenes, found.scenes.pixels) == (count, 35 * 57)
    for name, of in {"mean": np.mean, "low": np.min, "high": np.max}.items():
        np.testing.assert_allclose(getattr(found.scenes, name), of(means, axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.scenes.deviation, means.std(axis=0, ddof=1), rtol=1e-5)
    assert band_statistics(dataset, progress=False).scenes == found.scenes, "as it was kept"


def fields(found: BandStatistics) -> list[Any]:
    arrays = (found.mean_C, found.std_C, found.min_C, found.max_C, found.spread_C)
    return [found.pixels, found.dtype, found.scenes, *(array.tolist() for array in arrays)]


def test_statistics_are_kept_until_a_file_changes(plain: Plain, make_geotiff: Make, rng: Any) -> None:
    paths, _ = images(make_geotiff, "uint16", rng)
    dataset = plain(*paths)
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
    plain: Plain, make_geotiff: Make, monkeypatch: pytest.MonkeyPatch, rng: Any
) -> None:
    monkeypatch.setattr("segmenter.tiles.statistics._WINDOW", Size(10, 10))
    images = rng.integers(0, 255, (3, 95, 87, 1)).astype(np.uint8)
    dataset = plain(*(make_geotiff(f"{i}.tif", image) for i, image in enumerate(images)))
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


@pytest.mark.parametrize(("dtype", "scaling"), [("uint16", None), ("float32", None), ("int16", (0.5, 3.0))])
def test_a_band_is_measured_without_what_it_declares_void(
    plain: Plain, make_geotiff: Make, rng: Any, dtype: str, scaling: tuple[float, float] | None
) -> None:
    nodata = 0 if dtype == "uint16" else -9999
    image = rng.integers(150, 250, (90, 70, 2)).astype(dtype)
    image[:26, :, 1] = nodata
    path = make_geotiff("a.tif", image, nodata=nodata)
    scale, offset = scaling or (1, 0)
    if scaling is not None:
        with rasterio.open(path, "r+") as file:
            file.scales, file.offsets = (scale,) * 2, (offset,) * 2
    found = band_statistics(plain(path), progress=False)
    for band, values in enumerate((image[..., 0], image[26:, :, 1])):
        expected = values.astype(np.float64) * scale + offset
        np.testing.assert_allclose(found.mean_C[band], expected.mean(), rtol=1e-9)
        np.testing.assert_allclose(found.std_C[band], expected.std(), rtol=1e-9)
        assert (found.min_C[band], found.max_C[band]) == (expected.min(), expected.max())
        assert 0.9 * expected.std() < found.spread_C[band] <= expected.std()
    image[..., 1] = nodata
    empty = make_geotiff("b.tif", image, nodata=nodata)
    with refused(DatasetError, fault="band 2"):
        band_statistics(plain(empty), progress=False)


def test_a_saturated_pixel_of_a_hundred_does_not_widen_the_spread(
    plain: Plain, make_geotiff: Make, rng: Any
) -> None:
    image = rng.normal(1500, 300, (200, 200, 1)).astype(np.uint16)
    image[::20, ::10] = 65535
    found = band_statistics(plain(make_geotiff("a.tif", image)), progress=False)
    assert found.std_C[0] > 4000
    assert found.spread_C[0] == pytest.approx(300, rel=0.1)


def test_a_constant_band_has_deviation_one_and_says_so(
    plain: Plain, make_geotiff: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    image = np.zeros((8, 9, 2), np.float32)
    image[..., 0], image[0, 0, 1] = 0.1, 3
    found = band_statistics(plain(make_geotiff("s.tif", image)), progress=False)
    assert found.std_C[0] == 1
    assert found.std_C[1] < 1
    assert "band 1" in capsys.readouterr().err


def test_statistics_errors(plain: Plain, make_geotiff: Make) -> None:
    a = make_geotiff("a.tif", np.ones((8, 9, 2), np.uint8))
    b = make_geotiff("b.tif", np.ones((8, 9, 2), np.uint16))
    c = make_geotiff("c.tif", np.zeros((8, 9, 2), np.uint8), nodata=0)
    for paths, message in (
        ((a, b), r"b.tif: expected 2 bands of uint8 as .*a.tif has, got 2 of uint16"),
        ((c,), "no train scene has a pixel with data"),
        ((), "expected train scenes to take statistics of, there are none"),
    ):
        with pytest.raises(DatasetError, match=message):
            band_statistics(plain(*paths), progress=False)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("bands", [None, (1, 2)])
@pytest.mark.parametrize(
    ("dtype", "names", "expected"),
    [("uint16", ("red", "green"), "2 bands of uint8"), ("uint8", ("green", "red"), "bands named red, green")],
)
def test_no_image_of_another_kind_is_learned_or_validated(
    plain: Plain, make_geotiff: Make, monkeypatch: pytest.MonkeyPatch, split: Split, bands: Any, dtype: str,
    names: Any, expected: str,
) -> None:  # fmt: skip
    """Nor one of the many that no statistics are taken of: their pixels would be cut to the others' type."""
    monkeypatch.setattr(statistics, "_MOST_SCENES", 3)
    usual = [np.full((8, 9, 2), i, np.uint8) for i in range(5)]
    paths = [make_geotiff(f"{i}.tif", image, descriptions=("red", "green")) for i, image in enumerate(usual)]
    odd = make_geotiff("odd.tif", np.ones((8, 9, 2), dtype), descriptions=names)
    dataset = replace(plain(*paths), bands=bands)
    check_kinds(dataset)
    with refused(DatasetError, where="odd.tif", expected=expected):
        check_kinds(replace(dataset, scenes=(*dataset.scenes, scene("odd", odd, None, split))))


@pytest.mark.parametrize("dtype", ["int8", "uint32"])
def test_whole_numbers_of_any_size_are_measured(dtype: str, rng: Any) -> None:
    """Those of 32 bits have too many values for a histogram."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, (50, 2), endpoint=True).astype(dtype)
    found, wide = _Moments.of(values), values.astype(np.float64)
    np.testing.assert_allclose(found.mean, wide.mean(axis=0), rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(found.squares, 50 * wide.var(axis=0), rtol=1e-12)
    np.testing.assert_array_equal((found.low, found.high), (wide.min(axis=0), wide.max(axis=0)))
