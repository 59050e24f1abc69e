"""Which pixels have data: a file's mask or alpha decides, else nodata in all bands; NaN never is data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.grid.geometry import Size, Window
from segmenter.raster import open_raster, raster_info

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


def test_each_band_may_have_its_nodata_value_and_one_without_always_has_data(make_geotiff: Make) -> None:
    pixels = np.stack(np.meshgrid([1, 2, 3], [1, 2, 3]), axis=2).astype(np.uint8)
    path = make_geotiff("a.tif", pixels)
    aux = path.with_name("a.tif.aux.xml")
    value = '<PAMRasterBand band="{}"><NoDataValue>{}</NoDataValue></PAMRasterBand>'
    aux.write_text(f"<PAMDataset>{value.format(1, 3)}{value.format(2, 2)}</PAMDataset>")
    assert np.argwhere(~everything(path)[1]).tolist() == [[1, 2]]
    aux.write_text(f"<PAMDataset>{value.format(1, 3)}</PAMDataset>")
    assert everything(path)[1].all()
    assert not everything(path, (1,))[1][:, 2].any()


def test_of_several_bands_each_has_its_own_nodata_value(make_geotiff: Make, rng: Any) -> None:
    pixels = rng.integers(1, 4, (30, 30, 3), np.uint8)
    path, nodata = make_geotiff("a.tif", pixels), (1, 2, 3)
    bands = "".join(
        f'<PAMRasterBand band="{band}"><NoDataValue>{value}</NoDataValue></PAMRasterBand>'
        for band, value in enumerate(nodata, 1)
    )
    path.with_name("a.tif.aux.xml").write_text(f"<PAMDataset>{bands}</PAMDataset>")
    void = (pixels == np.array(nodata)).all(axis=2)
    assert void.any()
    np.testing.assert_array_equal(everything(path)[1], ~void)


@pytest.mark.parametrize("alpha", [False, True])
def test_a_mask_or_alpha_overrules_nodata_values(make_geotiff: Make, rng: Any, alpha: bool) -> None:
    """Dark pixels of imagery whose nodata value is 0 are no holes."""
    mask = np.where(rng.random((40, 50)) < 0.2, 0, 255).astype(np.uint8)
    pixels = rng.integers(0, 3, (40, 50, 3), np.uint8)
    if alpha:
        bands, options = np.dstack([pixels, mask]), {"alpha": True}
    else:
        bands, options = pixels, {"masks": mask}
    path = make_geotiff("a.tif", bands, nodata=0, **options)
    assert raster_info(path).nodata[0] == 0
    image, valid = everything(path)
    np.testing.assert_array_equal(valid, mask > 0)
    np.testing.assert_array_equal(image, np.where(mask[..., None] > 0, pixels, 0))


def test_an_internal_mask_counts(make_geotiff: Make) -> None:
    mask = np.full((5, 6), 255, np.uint8)
    mask[2] = 0
    image, valid = everything(make_geotiff("a.tif", np.full((5, 6, 3), 7, np.uint8), masks=mask))
    np.testing.assert_array_equal(valid, mask > 0)
    np.testing.assert_array_equal(image.any(axis=2), mask > 0)


def test_what_is_not_finite_in_any_band_is_not_valid(make_geotiff: Make) -> None:
    pixels = np.ones((4, 4, 2), np.float32)
    pixels[0, 0, 0], pixels[1, 1, 1], pixels[2, 2, 0], pixels[3, 3] = np.nan, np.inf, -2e30, -9999
    image, valid = everything(make_geotiff("a.tif", pixels, nodata=-9999))
    np.testing.assert_array_equal(valid, ~np.eye(4, dtype=bool))
    assert np.isfinite(image).all()
    masked = make_geotiff("b.tif", pixels, masks=np.full((4, 4), 255, np.uint8))
    valid[3, 3] = True
    np.testing.assert_array_equal(everything(masked)[1], valid)


@pytest.mark.parametrize(("nodata", "dtype"), [(0.1, "float32"), (-9999.9, "float32"), (1e-3, "float64")])
def test_a_nodata_value_may_be_rounded(make_geotiff: Make, nodata: float, dtype: str) -> None:
    pixels = np.full((3, 4), 5, dtype)
    pixels[1, 2] = nodata
    assert np.argwhere(~everything(make_geotiff("a.tif", pixels, nodata=nodata))[1]).tolist() == [[1, 2]]


@pytest.mark.parametrize("window", [Size(16, 16), Size(23, 9), Size(61, 83), Size(7, 100)], ids=str)
def test_nodata_in_some_bands_only_is_counted_once(make_geotiff: Make, rng: Any, window: Size) -> None:
    """However the windows overlap."""
    pixels = rng.integers(0, 4, (61, 83, 3), np.uint8)
    expected = int(((pixels == 0).any(axis=2) & (pixels != 0).any(axis=2)).sum())
    with open_raster(make_geotiff("a.tif", pixels, nodata=0)) as raster:
        for row in range(0, 61, window.height // 2):
            for col in range(0, 83, window.width // 2):
                raster.read(Window(row, col, window.height, window.width))
        raster.thinned(Window(0, 0, 61, 83), Size(20, 20))
        assert raster.partial_nodata == expected


@pytest.mark.parametrize("halo", [0, 3, 9])
@pytest.mark.parametrize("first", [0, 1, 20])
def test_it_is_counted_in_every_column(make_geotiff: Make, rng: Any, halo: int, first: int) -> None:
    """Of a map that is computed column by column, and of one that an earlier call began."""
    pixels = rng.integers(0, 4, (61, 83, 3), np.uint8)
    some = (pixels == 0).any(axis=2) & (pixels != 0).any(axis=2)
    some[: max(0, first - halo), : 30 + halo] = False  # not read
    with open_raster(make_geotiff("a.tif", pixels, nodata=0)) as raster:
        for left, right in ((0, 30), (30, 60), (60, 83)):
            for top in range(first if left == 0 else 0, 61, 20):
                for start in range(left, right, 16):
                    corner = max(0, top - halo), max(0, start - halo)
                    ends = min(61, top + 20 + halo), min(83, min(right, start + 16) + halo)
                    raster.read(Window(*corner, ends[0] - corner[0], ends[1] - corner[1]))
        assert raster.partial_nodata == some.sum()
        words = "at least " if first > halo else ""
        assert "mask" not in str(raster.partial_remark)
        assert f": {words}{some.sum():,} pixels hold a nodata value" in str(raster.partial_remark)


def test_a_band_without_a_nodata_value_hides_no_other(make_geotiff: Make) -> None:
    pixels = np.full((10, 12, 3), 5, np.uint8)
    pixels[4, :, 1], pixels[6, :, 2] = 7, 7
    path = make_geotiff("a.tif", pixels)
    value = '<PAMRasterBand band="{}"><NoDataValue>7</NoDataValue></PAMRasterBand>'
    path.with_name("a.tif.aux.xml").write_text(f"<PAMDataset>{value.format(2)}{value.format(3)}</PAMDataset>")
    with open_raster(path) as raster:
        assert raster.read(Window(0, 0, 10, 12))[1].all()
        assert raster.partial_nodata == 24


def test_so_is_nodata_that_a_mask_calls_data(make_geotiff: Make) -> None:
    pixels = np.full((10, 12, 3), 5, np.uint8)
    pixels[2], pixels[4, :, 1], pixels[6] = 0, 0, 0
    mask = np.full((10, 12), 255, np.uint8)
    mask[6] = 0
    with open_raster(make_geotiff("a.tif", pixels, nodata=0, masks=mask)) as raster:
        _, valid = raster.read(Window(0, 0, 10, 12))
        assert raster.partial_nodata == 24
        assert "mask says so" in str(raster.partial_remark)
    np.testing.assert_array_equal(valid, mask > 0)


def test_nothing_is_counted_without_a_nodata_value(make_geotiff: Make) -> None:
    with open_raster(make_geotiff("a.tif", np.zeros((5, 5, 3), np.uint8))) as raster:
        raster.read(Window(0, 0, 5, 5))
        assert raster.partial_nodata == 0
        assert not raster.may_have_nodata


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e31])
def test_a_nodata_value_that_is_no_measurement_counts_in_each_band(make_geotiff: Make, value: float) -> None:
    pixels = np.ones((3, 4, 2), np.float32)
    pixels[1, 2, 0] = value
    path = make_geotiff("a.tif", pixels, nodata=value)
    with rasterio.open(path) as file:
        assert file.nodata is not None
    assert np.argwhere(~everything(path)[1]).tolist() == [[1, 2]]
