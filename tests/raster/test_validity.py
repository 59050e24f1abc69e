"""Pixels that have data: a file's mask or alpha decides, else nodata in all bands; NaN never is data.

Of arrays as of files, in windows of a few rows as in the whole; a band without data is read as its
mean. Alpha that holds measurements is refused.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from segmenter.base.errors import BandsError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import Raster, RasterSpec, open_raster, raster_info, reading, write_raster
from segmenter.raster.in_memory import ArrayRaster
from segmenter.raster.mosaic import Mosaic
from segmenter.raster.resampled import ModelGrid, ResampledRaster, ValidRows
from segmenter.tiles.index import cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.packed_scenes import pack_all, packs

Make = Callable[..., Path]


def everything(path: Path, bands: tuple[int, ...] | None = None) -> tuple[Any, Any]:
    with open_raster(path, bands) as raster:
        return raster.read(Window.of(raster.info.size))


def test_a_pixel_has_no_data_where_all_bands_that_are_read_hold_nodata(make_geotiff: Make) -> None:
    pixels = np.full((4, 4, 2), 9, np.int16)
    pixels[0, 0, 0] = pixels[1, 1, 1] = pixels[2, 3, 0] = pixels[2, 3, 1] = -5
    path = make_geotiff("a.tif", pixels, nodata=-5)
    image, valid = everything(path)
    assert np.argwhere(~valid).tolist() == [[2, 3]]
    assert image[0, 0].tolist() == [-5, 9]
    assert image[2, 3].tolist() == [0, 0]
    _, second = everything(path, (2,))
    assert np.argwhere(~second).tolist() == [[1, 1], [2, 3]]


@pytest.mark.parametrize(("nodata", "dtype"), [(-9999.9, "float32"), (1e-3, "float64")])
def test_a_nodata_value_may_be_rounded(make_geotiff: Make, nodata: float, dtype: str) -> None:
    pixels = np.full((3, 4), 5, dtype)
    pixels[1, 2] = nodata
    assert np.argwhere(~everything(make_geotiff("a.tif", pixels, nodata=nodata))[1]).tolist() == [[1, 2]]


def test_it_is_told_however_windows_overlap(make_geotiff: Make, rng: Any) -> None:
    pixels = np.tile(np.array([[[0, 1, 2], [3, 1, 2]]], np.uint8), (61, 40, 1))
    with open_raster(make_geotiff("a.tif", pixels, nodata=0)) as raster:
        raster.thinned(raster.extent, Size(20, 20))
        assert raster.partial_remark is None
        for left in range(0, 60, 10):
            raster.read(Window(0, left, 61, 20))
        assert "mask" not in str(raster.partial_remark)
        assert ": 50 % of the pixels hold a nodata value" in str(raster.partial_remark)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e31])
def test_a_nodata_value_that_is_no_measurement_counts_in_each_band(make_geotiff: Make, value: float) -> None:
    pixels = np.ones((3, 4, 2), np.float32)
    pixels[1, 2, 0] = value
    path = make_geotiff("a.tif", pixels, nodata=value)
    with rasterio.open(path) as file:
        assert file.nodata is not None
    assert np.argwhere(~everything(path)[1]).tolist() == [[1, 2]]


MEAN = (117.4, 83.5, 90.0)
SHAPE_OF_VOIDS = (61, 83)
ALL = Window(0, 0, *SHAPE_OF_VOIDS)


def with_voids(rng: Any, dtype: str, nodata: float) -> tuple[Any, Any, Any]:
    """Pixels with holes of all bands and of some; where they have data; and as a model is to see them."""
    image = rng.integers(20, 200, (*SHAPE_OF_VOIDS, 3)).astype(dtype)
    image[:9] = nodata
    image[20:40, 10:50, 1] = nodata
    image[30:50, :20, 2] = nodata
    valid = (image != nodata).any(axis=2)
    rounded = MEAN if np.dtype(dtype).kind == "f" else np.rint(MEAN)
    seen = np.where(image == nodata, np.array(rounded).astype(dtype), image)
    seen[~valid] = 0
    return image, valid, seen


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint8", 0), ("int16", -9999), ("float32", 0), ("float64", -9999.25)]
)
def test_the_band_is_read_as_its_mean(make_geotiff: Make, rng: Any, dtype: str, nodata: float) -> None:
    image, valid, seen = with_voids(rng, dtype, nodata)
    with open_raster(make_geotiff("a.tif", image, nodata=nodata)) as raster:
        np.testing.assert_array_equal(raster.read(ALL)[0], np.where(valid[..., None], image, 0))
        raster.mean_C = MEAN
        for rasters in (raster, ArrayRaster(image, None, (nodata,) * 3, MEAN)):
            found, has_data = rasters.read(ALL)
            np.testing.assert_array_equal(found, seen)
            np.testing.assert_array_equal(has_data, valid)
            assert found.dtype == dtype
            beyond, _ = rasters.read(Window(-3, 40, 70, 60))
            np.testing.assert_array_equal(beyond[3:64, :43], seen[:, 40:])
        assert "mean" in str(raster.partial_remark)
    masked: Any = np.ma.masked_equal(image, nodata)
    np.testing.assert_array_equal(ArrayRaster(masked, mean_C=MEAN).read(ALL)[0], seen)


def test_a_scaled_value_is_void_where_the_stored_one_is(make_geotiff: Make, rng: Any) -> None:
    image, valid, _ = with_voids(rng, "int16", -9999)
    path = make_geotiff("a.tif", image, nodata=-9999)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (0.01, 0.1, 3.0), (-1.0, 0.0, 273.15)
    with open_raster(path) as raster:
        raster.mean_C = MEAN
        found, _ = raster.read(ALL)
    scaled = (image * np.array([0.01, 0.1, 3.0]) + np.array([-1.0, 0.0, 273.15])).astype(np.float32)
    expected = np.where(image == -9999, np.float32(MEAN), scaled)
    np.testing.assert_array_equal(found, np.where(valid[..., None], expected, 0))


def test_what_a_mask_calls_data_in_all_bands_is_data(make_geotiff: Make) -> None:
    """A black roof with a nodata value of 0: the mask decides; of one band alone, the band does."""
    image = np.full((20, 30, 3), 50, np.uint8)
    image[3], image[7, :, 2] = 0, 0
    with open_raster(
        make_geotiff("a.tif", image, nodata=0, masks=np.full((20, 30), 255, np.uint8))
    ) as raster:
        raster.mean_C = MEAN
        found, valid = raster.read(Window(0, 0, 20, 30))
    assert valid.all()
    assert (found[3] == 0).all()
    assert (found[7] == [50, 50, 90]).all()


@pytest.mark.parametrize("step", [Fraction(1, 2), Fraction(3, 2)])
def test_on_another_grid_and_over_a_mosaic(tmp_path: Path, rng: Any, step: Fraction) -> None:
    image, _, seen = with_voids(rng, "int16", -9999)
    grid = rasterio.Affine(1, 0, 500_000, 0, -1, 6_000_000)
    spec = RasterSpec(transform=grid, nodata=-9999)
    write_raster(tmp_path / "whole.tif", image, spec)
    parts = (tmp_path / "left.tif", image[:, :40], grid), (tmp_path / "right.tif", image[:, 40:], grid)
    for path, pixels, where in parts:
        shift = rasterio.Affine.translation(40, 0) if path.stem == "right" else rasterio.Affine.identity()
        write_raster(path, np.ascontiguousarray(pixels), replace(spec, transform=where @ shift))

    def opened(path: Path) -> Any:
        raster = open_raster(path)
        raster.mean_C = MEAN
        return raster

    mosaic = Mosaic([path for path, *_ in parts], opened)
    with mosaic.view(tmp_path / "left.tif") as view, opened(tmp_path / "whole.tif") as whole:
        np.testing.assert_array_equal(view.read(ALL)[0], seen)
        found, valid = ResampledRaster(whole, ModelGrid(ALL, step, step)).read(Window(0, 0, 40, 50))
    assert valid.any()
    for band in range(3):
        least, most = seen[9:, :, band].min(), seen[9:, :, band].max()
        assert least <= found[valid][:, band].min() <= found[valid][:, band].max() <= most


@pytest.mark.parametrize(("dtype", "codec"), [("uint8", "none"), ("float32", "lz4")])
def test_a_training_reads_it_so_from_files_and_packs(
    tmp_path: Path, make_classes: Callable[..., ClassMap], rng: Any, dtype: str, codec: Any
) -> None:
    """A pack holds what the file does: other scenes' means do not make it another."""
    nodata = 0 if dtype == "uint8" else -9999
    image, valid, seen = with_voids(rng, dtype, nodata)
    write_raster(tmp_path / "i.tif", image, RasterSpec(nodata=nodata))
    write_raster(tmp_path / "l.tif", np.zeros(SHAPE_OF_VOIDS, np.uint8))
    scene = Scene("s", tmp_path / "i.tif", tmp_path / "l.tif", "s", "train")
    dataset = Dataset("made", tmp_path, (scene,), make_classes(2), cache_codec=codec)

    def read(mean: tuple[float, ...]) -> Any:
        store = SceneStore(dataset, dataset.scenes, 512, cache_folder(dataset), mean_C=mean, progress=False)
        return store.read(0, Window(0, 0, *SHAPE_OF_VOIDS))

    in_place = read(MEAN)
    np.testing.assert_array_equal(in_place[0], seen)
    pack_all(dataset)
    assert len(packs(dataset)) == 2
    for found, before in zip(read(MEAN), in_place, strict=True):
        np.testing.assert_array_equal(found, before)
    np.testing.assert_array_equal(read(())[0], np.where(valid[..., None], image, 0))


WINDOWS = [Window(0, 0, 41, 67), Window(-5, -3, 20, 30), Window(30, 60, 20, 20), Window(50, 0, 4, 4)]


def _same(array: ArrayRaster, path: Path) -> int:
    assert array.info.size == Size(41, 67)
    with open_raster(path) as file:
        for window in WINDOWS:
            image, valid = array.read(window)
            theirs, where = file.read(window)
            np.testing.assert_array_equal(valid, where)
            np.testing.assert_array_equal(image, theirs)
            assert image.dtype == theirs.dtype == array.info.dtype
    return int((~array.read(WINDOWS[0])[1]).sum())


def test_a_mask_and_what_is_no_measurement_count_as_in_a_file(
    make_geotiff: Make, rng: np.random.Generator
) -> None:
    image, valid = rng.integers(0, 99, (41, 67, 3), np.uint8), rng.random((41, 67)) > 0.3
    assert ArrayRaster(image * 0, nodata=(0, None, 0)).read(WINDOWS[0])[1].all()  # a band has no such value
    assert _same(ArrayRaster(image, valid), make_geotiff("a.tif", image, masks=valid)) == (~valid).sum()
    floats = rng.normal(size=(41, 67, 2)).astype(np.float32)
    floats[2, 3, 1], floats[4, 5, 0], floats[6, 7, 1] = np.nan, np.inf, -3.4e38
    assert _same(ArrayRaster(floats), make_geotiff("b.tif", floats)) == 3


def test_halves_other_byte_orders_and_views_are_read_as_numbers(rng: np.random.Generator) -> None:
    image: Any = rng.integers(0, 999, (41, 67, 2), np.uint16)
    found, _ = ArrayRaster(image.astype(">u2")[::-1]).read(WINDOWS[0])
    np.testing.assert_array_equal(found, image[::-1])
    assert found.dtype == np.dtype("=u2")
    halves, valid = ArrayRaster(image.astype(np.float16)).read(WINDOWS[0])
    assert halves.dtype == np.float32
    assert valid.all()
    plain = ArrayRaster(image)
    assert not plain.may_have_nodata
    assert plain.empty(Window(41, 0, 3, 3))
    assert not plain.empty(WINDOWS[1])


SHAPE = (331, 517)


@pytest.fixture
def image(rng: np.random.Generator) -> NDArray[np.uint8]:
    """With pixels that lack data in all bands, and others in one."""
    image = rng.integers(1, 255, (*SHAPE, 3), np.uint8)
    image[40:170, 60:390] = 0
    image[rng.random(SHAPE) > 0.98] = 0
    image[rng.random(SHAPE) > 0.97, 1] = 0
    return image


class _Watched:
    """A raster that notes which windows are read of it."""

    def __init__(self, raster: Raster) -> None:
        self._raster, self.read_windows = raster, list[Window]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raster, name)

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        self.read_windows.append(window)
        return self._raster.read(window)


def down(rows: ValidRows, column: Window, each: int) -> NDArray[np.bool_]:
    found = [
        rows.of(Window(row, column.col, min(each, column.row_stop - row), column.width))
        for row in range(column.row, column.row_stop, each)
    ]
    return np.concatenate(found)


@pytest.mark.parametrize(("each", "read_bytes"), [(1, 1 << 25), (7, 20_000), (100, 1), (331, 20_000)])
def test_blocks_are_read_once_however_low_the_windows(
    make_geotiff: Make,
    image: NDArray[np.uint8],
    each: int,
    read_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segmenter.raster.resampled._READ_BYTES", read_bytes)
    path = make_geotiff("a.tif", image, nodata=0, tiled=True, blockxsize=64, blockysize=48)
    with open_raster(path) as whole:
        expected = whole.read(whole.extent)[1]
    with open_raster(path) as raster:
        watched = _Watched(raster)
        np.testing.assert_array_equal(down(ValidRows(watched), raster.extent, each), expected)
        assert sum(window.size.pixels for window in watched.read_windows) == image.shape[0] * image.shape[1]
        assert {window.row % 48 for window in watched.read_windows} == {0}
        assert {window.col % 64 for window in watched.read_windows} == {0}
    with open_raster(path) as raster:
        rows = ValidRows(raster)
        for column in (Window(30, 33, 250, 300), Window(30, 333, 250, 111)):
            np.testing.assert_array_equal(down(rows, column, each), expected[column.slices()])


def test_memory_is_bounded_where_blocks_are_high(
    make_geotiff: Make, image: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.raster.resampled.HELD_BYTES", 20 * SHAPE[1])
    path = make_geotiff("a.tif", image, nodata=0, tiled=True, blockxsize=64, blockysize=240)
    with open_raster(path) as raster:
        watched = _Watched(raster)
        found = down(ValidRows(watched), raster.extent, 3)
        assert max(window.height for window in watched.read_windows) == 20
    with open_raster(path) as raster:
        np.testing.assert_array_equal(found, raster.read(raster.extent)[1])


@pytest.mark.parametrize("kind", ["strips", "mask", "in memory", "all data"])
def test_whatever_says_where_there_is_data(make_geotiff: Make, image: NDArray[np.uint8], kind: str) -> None:
    valid = (image != 0).any(axis=2)
    if kind == "in memory":
        found = down(ValidRows(ArrayRaster(image, nodata=(0, 0, 0))), Window(0, 0, *SHAPE), 7)
        np.testing.assert_array_equal(found, valid)
        return
    options: dict[str, Any] = {
        "strips": {"nodata": 0},
        "mask": {"masks": valid, "tiled": True, "blockxsize": 64, "blockysize": 48},
        "all data": {"tiled": True, "blockxsize": 64, "blockysize": 48},
    }[kind]
    with open_raster(make_geotiff("a.tif", image, **options)) as raster:
        watched = _Watched(raster)
        found = down(ValidRows(watched), raster.extent, 7)
        np.testing.assert_array_equal(found, valid if kind != "all data" else np.ones(SHAPE, np.bool_))
        assert bool(watched.read_windows) == (kind != "all data")


H, W = 90, 110
ASKS = r"a\.\w+: band 4 is tagged as alpha, but holds measurements .* dataset\.bands .* 1,2,3,4 or 1,2,3$"


def rgb_and(band: NDArray[Any]) -> NDArray[Any]:
    return np.dstack([np.full((*band.shape, 3), 50, band.dtype), band])


def disc(dtype: str = "uint8", opaque: float = 255) -> NDArray[Any]:
    rows, cols = np.mgrid[:H, :W]
    return np.where((rows - 40) ** 2 + (cols - 50) ** 2 < 900, opaque, 0).astype(dtype)


def soft(levels: int) -> NDArray[np.uint8]:
    """A mask whose edges fade."""
    rows, cols = np.mgrid[:H, :W]
    away = np.hypot(rows - 40, cols - 50)
    return np.clip(255 * (35 - away) / levels, 0, 255).astype(np.uint8)


MASKS = {
    "opaque": np.full((H, W), 255, np.uint8),
    "transparent": np.zeros((H, W), np.uint8),
    "soft edges": soft(10),
    "ones": disc(opaque=1),
    "16 bits": disc("uint16", 65535),
    "8 of 16 bits": disc("uint16"),
    "floats to 1": disc("float32", 1),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_stays_a_mask(make_geotiff: Make, kind: str) -> None:
    mask = MASKS[kind]
    with open_raster(make_geotiff("a.tif", rgb_and(mask), photometric="rgb", alpha=True)) as raster:
        assert raster.info.alpha == (4,)
        image, valid = raster.read(Window(0, 0, H, W))
    assert image.shape == (H, W, 3)
    np.testing.assert_array_equal(valid, mask > 0)


def test_a_lossy_mask_stays_a_mask(make_geotiff: Make) -> None:
    path = make_geotiff(
        "a.tif", rgb_and(disc()), photometric="rgb", alpha=True, compress="jpeg", jpeg_quality=40
    )
    with rasterio.open(path) as file:
        assert len(np.unique(file.read(4))) > 5
    with open_raster(path) as raster:
        raster.read(Window(0, 0, H, W))


def near_infrared(rng: Any, kind: str) -> NDArray[Any]:
    dark = rng.random((H, W)) < 0.4
    return {
        "meadows": rng.integers(60, 250, (H, W)).astype(np.uint8),
        "lakes": np.where(dark, 0, rng.integers(30, 200, (H, W))).astype(np.uint8),
        "the sea": rng.integers(0, 25, (H, W)).astype(np.uint8),
        "dim meadows": np.where(
            rng.random((H, W)) < 0.8, rng.integers(0, 6, (H, W)), rng.integers(20, 200, (H, W))
        ).astype(np.uint8),
        "reflectance": rng.uniform(0.05, 0.6, (H, W)).astype(np.float32),
    }[kind]


@pytest.mark.parametrize("kind", ["meadows", "lakes", "the sea", "dim meadows", "reflectance"])
def test_measurements_ask_for_bands(make_geotiff: Make, rng: Any, kind: str) -> None:
    band = near_infrared(rng, kind)
    path = make_geotiff("a.tif", rgb_and(band), photometric="rgb", alpha=True)
    with pytest.raises(RasterError, match=ASKS):
        open_raster(path)
    assert raster_info(path).count == 4
    with open_raster(path, (1, 2, 3, 4)) as raster:
        image, valid = raster.read(Window(0, 0, H, W))
    assert valid.all()
    np.testing.assert_array_equal(image[..., 3], band)
    with open_raster(path, (1, 2, 3)) as raster:  # no mask of other bands either
        assert raster.read(Window(0, 0, H, W))[1].all()
        assert raster.may_have_nodata == (kind == "reflectance")  # floats may be none


def test_a_collar_without_data_hides_no_measurement(make_geotiff: Make, rng: np.random.Generator) -> None:
    """Near infrared that is tagged as alpha, in a scene whose border is empty."""
    pixels = np.zeros((2048, 2048, 4), np.uint8)
    pixels[130:-130, 130:-130] = np.clip(rng.normal(130, 60, (1788, 1788, 4)), 1, 255)
    with pytest.raises(BandsError, match=ASKS):
        open_raster(make_geotiff("a.tif", pixels, photometric="rgb", alpha=True, tiled=True))


def test_alpha_is_the_mask_unless_it_is_named_as_data(make_geotiff: Make) -> None:
    pixels = rgb_and(disc())
    path = make_geotiff("a.tif", pixels, photometric="rgb", alpha=True)
    with open_raster(path, (4, 1)) as raster:
        image, valid = raster.read(Window(0, 0, H, W))
    assert valid.all()
    np.testing.assert_array_equal(image, pixels[..., [3, 0]])
    with open_raster(path, (1, 2)) as raster:
        np.testing.assert_array_equal(raster.read(Window(0, 0, H, W))[1], disc() > 0)


@pytest.mark.parametrize("measured", [True, False])
def test_a_large_raster_is_sampled(
    make_geotiff: Make, rng: Any, monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    """The sample does not grow with the raster, and is taken once for a state of a file."""
    read: list[int] = []
    sample = reading._sample
    monkeypatch.setattr(reading, "_sample", lambda *given: read.append((got := sample(*given)).size) or got)
    blocks = {"tiled": True, "blockxsize": 128, "blockysize": 128} if measured else {"blockysize": 8}
    for rows in (1100, 2200):
        band = rng.integers(60, 250, (rows, 1000), np.uint8)
        if not measured:
            band[:] = 255
        options = {"photometric": "rgb", "alpha": True, "compress": "deflate", "zlevel": 1, **blocks}
        path = make_geotiff(f"{rows}/a.tif", rgb_and(band), **options)
        with pytest.raises(RasterError, match=ASKS) if measured else nullcontext():
            open_raster(path).close()
        open_raster(path, (1, 2, 3)).close()
    assert len(read) == 2
    assert read[0] == read[1] < 300_000


def test_real_files(shared_data: Callable[[str], Path]) -> None:
    robust = shared_data("robust")
    open_raster(robust / "rasterio__alpha.tif").close()
    open_raster(robust / "rio-tiler__pix4d_alpha_nodata.tif").close()
    measured = [robust / "naip__nir_tagged_as_alpha.tif", *shared_data("naip").glob("*/img/*.tif")]
    assert len(measured) == 7
    for path in measured:
        with pytest.raises(RasterError, match="holds measurements"):
            open_raster(path)
