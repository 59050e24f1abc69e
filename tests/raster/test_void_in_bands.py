"""No data in one band: the pixel stays, and wherever it is read the model sees that band's mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import RasterSpec, open_raster, write_raster
from segmenter.raster.in_memory import ArrayRaster
from segmenter.raster.mosaic import Mosaic
from segmenter.raster.resampled import ModelGrid, ResampledRaster
from segmenter.tiles.index_cache import cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.packed_scenes import pack_all, packs

Make = Callable[..., Path]
MEAN = (117.4, 83.5, 90.0)
SIZE = (61, 83)
WHOLE = Window(0, 0, *SIZE)


def made(rng: Any, dtype: str, nodata: float) -> tuple[Any, Any, Any]:
    """Pixels with holes of all bands and of some; where they have data; and as a model is to see them."""
    image = rng.integers(20, 200, (*SIZE, 3)).astype(dtype)
    image[:9] = nodata
    image[20:40, 10:50, 1] = nodata
    image[30:50, :20, 2] = nodata
    valid = (image != nodata).any(axis=2)
    rounded = MEAN if np.dtype(dtype).kind == "f" else np.rint(MEAN)
    seen = np.where(image == nodata, np.array(rounded).astype(dtype), image)
    seen[~valid] = 0
    return image, valid, seen


CASES = [("uint8", 0), ("uint8", 255), ("uint16", 0), ("int16", -9999), ("int32", -9999)]
CASES += [("float32", -9999), ("float64", -9999.25), ("float32", 0)]


@pytest.mark.parametrize(("dtype", "nodata"), CASES)
def test_the_band_is_read_as_its_mean(make_geotiff: Make, rng: Any, dtype: str, nodata: float) -> None:
    """From a file, an array, a masked array, and over the border of the raster."""
    image, valid, seen = made(rng, dtype, nodata)
    with open_raster(make_geotiff("a.tif", image, nodata=nodata)) as raster:
        np.testing.assert_array_equal(raster.read(WHOLE)[0], np.where(valid[..., None], image, 0))
        raster.mean_C = MEAN
        for rasters in (raster, ArrayRaster(image, None, (nodata,) * 3, MEAN)):
            found, has_data = rasters.read(WHOLE)
            np.testing.assert_array_equal(found, seen)
            np.testing.assert_array_equal(has_data, valid)
            assert found.dtype == dtype
            beyond, _ = rasters.read(Window(-3, 40, 70, 60))
            np.testing.assert_array_equal(beyond[3:64, :43], seen[:, 40:])
        assert raster.partial_nodata == (valid & (image == nodata).any(axis=2)).sum()
        assert "mean" in str(raster.partial_remark)
    masked: Any = np.ma.masked_equal(image, nodata)
    np.testing.assert_array_equal(ArrayRaster(masked, mean_C=MEAN).read(WHOLE)[0], seen)


def test_a_scaled_value_is_void_where_the_stored_one_is(make_geotiff: Make, rng: Any) -> None:
    image, valid, _ = made(rng, "int16", -9999)
    path = make_geotiff("a.tif", image, nodata=-9999)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (0.01, 0.1, 3.0), (-1.0, 0.0, 273.15)
    with open_raster(path) as raster:
        raster.mean_C = MEAN
        found, _ = raster.read(WHOLE)
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
    """All values lie within those of the band's data and its mean."""
    image, _, seen = made(rng, "int16", -9999)
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
        np.testing.assert_array_equal(view.read(WHOLE)[0], seen)
        found, valid = ResampledRaster(whole, ModelGrid(WHOLE, step, step)).read(Window(0, 0, 40, 50))
    assert valid.any()
    for band in range(3):
        least, most = seen[9:, :, band].min(), seen[9:, :, band].max()
        assert least <= found[valid][:, band].min() <= found[valid][:, band].max() <= most


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_training_reads_it_so_from_files_and_packs(
    tmp_path: Path, make_classes: Callable[..., ClassMap], rng: Any, dtype: str, codec: Any
) -> None:
    """A pack holds what the file does: other scenes' means do not make it another."""
    nodata = 0 if dtype == "uint8" else -9999
    image, valid, seen = made(rng, dtype, nodata)
    write_raster(tmp_path / "i.tif", image, RasterSpec(nodata=nodata))
    write_raster(tmp_path / "l.tif", np.zeros(SIZE, np.uint8))
    scene = Scene("s", tmp_path / "i.tif", tmp_path / "l.tif", "s", "train")
    dataset = Dataset("made", tmp_path, (scene,), make_classes(2), cache_codec=codec)

    def read(mean: tuple[float, ...]) -> Any:
        store = SceneStore(dataset, dataset.scenes, 512, cache_folder(dataset), mean_C=mean, progress=False)
        return store.read(0, Window(0, 0, *SIZE))

    in_place = read(MEAN)
    np.testing.assert_array_equal(in_place[0], seen)
    pack_all(dataset)
    assert len(packs(dataset)) == 2
    for found, before in zip(read(MEAN), in_place, strict=True):
        np.testing.assert_array_equal(found, before)
    np.testing.assert_array_equal(read(())[0], np.where(valid[..., None], image, 0))
    assert Size(*SIZE).pixels == in_place[1].size
