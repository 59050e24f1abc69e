"""Arrays as rasters: the pixels and the validity that a file of the same content has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.grid.geometry import Size, Window
from segmenter.raster import open_raster
from segmenter.raster.in_memory import ArrayRaster

Make = Callable[..., Path]
WINDOWS = [Window(0, 0, 41, 67), Window(-5, -3, 20, 30), Window(30, 60, 20, 20), Window(50, 0, 4, 4)]


def _same(array: ArrayRaster, path: Path) -> int:
    """The pixels without data, which are the same as in a file."""
    assert array.info.size == Size(41, 67)
    with open_raster(path) as file:
        for window in WINDOWS:
            image, valid = array.read(window)
            theirs, where = file.read(window)
            np.testing.assert_array_equal(valid, where)
            np.testing.assert_array_equal(image, theirs)
            assert image.dtype == theirs.dtype == array.info.dtype
    return int((~array.read(WINDOWS[0])[1]).sum())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
def test_a_nodata_value_counts_as_in_a_file(make_geotiff: Make, rng: np.random.Generator, dtype: str) -> None:
    image = rng.integers(0, 3, (41, 67, 2)).astype(dtype)
    image[5:9] = 0
    path = make_geotiff("a.tif", image, nodata=0)
    assert _same(ArrayRaster(image, nodata=(0, 0)), path) > 4 * 67
    assert _same(ArrayRaster(np.ma.masked_equal(image, 0)), path) > 4 * 67
    assert not (~ArrayRaster(image, nodata=(0, None)).read(WINDOWS[0])[1]).any(), (
        "a band without one has data"
    )
    assert not (~ArrayRaster(image, nodata=(7.5, 7.5)).read(WINDOWS[0])[1]).any()


def test_a_mask_counts_as_in_a_file(make_geotiff: Make, rng: np.random.Generator) -> None:
    image, valid = rng.integers(0, 99, (41, 67, 3), np.uint8), rng.random((41, 67)) > 0.3
    assert _same(ArrayRaster(image, valid), make_geotiff("a.tif", image, masks=valid)) == (~valid).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_no_measurement_is_no_data(make_geotiff: Make, rng: np.random.Generator, dtype: str) -> None:
    image = rng.normal(size=(41, 67, 2)).astype(dtype)
    image[2, 3, 1], image[4, 5, 0], image[6, 7, 1] = np.nan, np.inf, -3.4e38
    array = ArrayRaster(image)
    assert _same(array, make_geotiff("a.tif", image)) == 3
    assert array.may_have_nodata


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
