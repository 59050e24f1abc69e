"""A raster on another grid: against GDAL's warper, window by window, with masks, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT

from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns
from segmenter.raster import open_raster
from segmenter.raster.resampled import GridColumns, ModelGrid, ResampledRaster

Make = Callable[..., Path]


def whole_of(path: Path, step: Fraction, **options: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    with open_raster(path, **options) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, step, step))
        return seen.read(seen.extent)


@pytest.mark.parametrize("step", [Fraction(5), Fraction(7, 3), Fraction(2), Fraction(4)], ids=str)
def test_a_coarser_grid_is_gdals_average(
    make_geotiff: Make, rng: np.random.Generator, step: Fraction
) -> None:
    """`gdalwarp -r average` on the same grid gives the same bytes, but for means just between two numbers."""
    image = rng.integers(0, 255, (203, 311, 3), np.uint8)
    path = make_geotiff("a.tif", image)
    found, valid = whole_of(path, step)
    with rasterio.open(path) as source:
        transform = source.transform @ rasterio.Affine.scale(float(step))
        options = {"crs": source.crs, "transform": transform, "resampling": Resampling.average}
        with WarpedVRT(source, **options, height=found.shape[0], width=found.shape[1]) as warped:
            expected = warped.read().transpose(1, 2, 0)
    # The last row and column reach beyond the raster, where GDAL takes others than the pixels under them.
    found, expected = found[:-1, :-1], expected[:-1, :-1]
    rows, cols, side = *found.shape[:2], int(step)
    if side == step:
        whole = image[: rows * side, : cols * side].reshape(rows, side, cols, side, 3)
        between = 2 * whole.sum(axis=(1, 3), dtype=np.int64) % (2 * side**2) == side**2
        assert (found[between] % 2 == 0).all()
        assert between.any() == (side % 2 == 0)
        found, expected = found[~between], expected[~between]
    np.testing.assert_array_equal(found, expected)
    assert valid.all()


@pytest.mark.parametrize("step", [Fraction(5), Fraction(7, 3), Fraction(2, 5)], ids=str)
@pytest.mark.parametrize("tiled", [True, False], ids=["tiled", "strips"])
def test_a_window_of_it_is_that_part_of_the_whole(
    make_geotiff: Make, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, step: Fraction, tiled: bool
) -> None:
    """Bit for bit, in pieces of any size; what lies beyond is no data."""
    image = rng.integers(1, 255, (150, 131, 2), np.uint8)
    image[30:70, 40:90] = 0
    options = {"tiled": True, "blockxsize": 32, "blockysize": 16} if tiled else {}
    path = make_geotiff("a.tif", image, nodata=0, **options)
    image_HWC, valid = whole_of(path, step)
    monkeypatch.setattr("segmenter.raster.resampled._VALUES_AT_ONCE", 500)
    with open_raster(path) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, step, step))
        assert raster.info.tiled == tiled
        for window in (Window(3, 5, 17, 11), Window(0, 0, 30, 27), Window(20, 9, *valid.shape)):
            found, there = seen.read(window)
            inside = window.intersection(seen.extent)
            part = inside.relative_to(window).slices()
            np.testing.assert_array_equal(found[part], image_HWC[inside.slices()])
            np.testing.assert_array_equal(there[part], valid[inside.slices()])
            assert there.sum() == there[part].sum()


@pytest.mark.parametrize("kind", ["mask", "alpha", "nan", "nodata"])
def test_what_has_no_data_counts_for_nothing(make_geotiff: Make, rng: np.random.Generator, kind: str) -> None:
    """By the rule of `validity`: the mean is that of the pixels that have data; without any there is none."""
    image = rng.integers(1, 200, (60, 60, 3)).astype(np.float32 if kind == "nan" else np.uint8)
    valid = rng.random((60, 60)) > 0.5
    valid[:10, :15] = False
    if kind == "mask":
        path = make_geotiff("a.tif", image, masks=valid.astype(np.uint8) * 255)
    elif kind == "alpha":
        path = make_geotiff("a.tif", np.dstack([image, valid * np.uint8(255)]), alpha=True)
    elif kind == "nan":
        path = make_geotiff("a.tif", np.where(valid[..., None], image, np.nan))
    else:
        path = make_geotiff("a.tif", np.where(valid[..., None], image, 0), nodata=0)
    found, there = whole_of(path, Fraction(5))
    cells = np.where(valid[..., None], image, 0).reshape(12, 5, 12, 5, 3).sum(axis=(1, 3), dtype=np.float64)
    counts = valid.reshape(12, 5, 12, 5).sum(axis=(1, 3))
    np.testing.assert_array_equal(there, counts > 0)
    mean = cells / np.maximum(counts, 1)[..., None]
    np.testing.assert_allclose(found, mean, atol=1e-4 if kind == "nan" else 0.5001)


def test_blocks_that_a_file_does_not_have_are_not_read(make_geotiff: Make, monkeypatch: Any) -> None:
    image = np.zeros((512, 512, 1), np.uint8)
    image[:64, :64] = 7
    options = {"tiled": True, "blockxsize": 64, "blockysize": 64, "sparse_ok": True, "nodata": 0}
    path = make_geotiff("a.tif", image, compress="deflate", **options)
    with open_raster(path) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, Fraction(4), Fraction(4)))
        assert seen.empty(Window(32, 32, 16, 16))
        assert not seen.empty(Window(0, 0, 4, 4))
        monkeypatch.setattr(raster, "read", None)
        _, there = seen.read(Window(32, 32, 16, 16))
        assert not there.any()


def test_memory_is_that_of_a_piece_however_much_lies_under_a_window(
    tmp_path: Path, make_geotiff: Make
) -> None:
    """Four windows side by side, each over 2,000² pixels: no more than a piece of some of them at a time."""
    path = make_geotiff("a.tif", np.ones((2000, 8000), np.uint8), tiled=True, compress="deflate")
    with open_raster(path) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, Fraction(100), Fraction(100)))
        tracemalloc.start()
        found, there = seen.read(seen.extent)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found.shape == (20, 80, 1)
    assert (found == 1).all()
    assert there.all()
    assert peak < 4 * (1 << 22) * 3  # floats of a piece, and those that are added; not 16 million pixels'


def test_columns_of_a_grid_lie_over_those_of_the_raster() -> None:
    """Each holds all that its pixels depend on; rows are counted through all of them."""
    grid = ModelGrid(Window(-3, -5, 100, 1000), Fraction(7, 3), Fraction(7, 3))
    own = Columns(Window(10, 20, 60, 900), 256)
    columns = GridColumns(own, grid)
    heights = {over.height for over in columns.left(0)}
    assert heights == {columns.height}
    for mine, over in zip(own.left(0), columns.left(0), strict=True):
        assert grid.over(mine) == over
        assert grid.under(over).contains(mine)
    assert columns.pixels(0) == 0
    later = list(columns.left(columns.height + 4))
    assert later[0].row == grid.over(own.part).row + 4
    assert len(later) == len(list(columns.left(0))) - 1
    total = sum(over.size.pixels for over in columns.left(0))
    assert columns.pixels(columns.height + 4) + sum(o.size.pixels for o in later) == total
