"""Validity in windows of a few rows is that of the whole; a row of blocks is decoded once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.grid.geometry import Window
from segmenter.raster import Raster, open_raster
from segmenter.raster.in_memory import ArrayRaster
from segmenter.raster.valid_rows import ValidRows

Make = Callable[..., Path]
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
    """A column, from top to bottom."""
    found = [
        rows.of(Window(row, column.col, min(each, column.row_stop - row), column.width))
        for row in range(column.row, column.row_stop, each)
    ]
    return np.concatenate(found)


@pytest.mark.parametrize("each", [1, 7, 100, 331])
@pytest.mark.parametrize("read_bytes", [1, 20_000, 1 << 25])
def test_blocks_are_read_once_however_low_the_windows(
    make_geotiff: Make,
    image: NDArray[np.uint8],
    each: int,
    read_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one column, and in two beside each other; as many pixels of partial nodata as the whole has."""
    monkeypatch.setattr("segmenter.raster.valid_rows._READ_BYTES", read_bytes)
    path = make_geotiff("a.tif", image, nodata=0, tiled=True, blockxsize=64, blockysize=48)
    with open_raster(path) as whole:
        expected, partial = whole.read(whole.extent)[1], whole.partial_nodata
    assert partial > 1000
    with open_raster(path) as raster:
        watched = _Watched(raster)
        np.testing.assert_array_equal(down(ValidRows(watched), raster.extent, each), expected)
        assert sum(window.size.pixels for window in watched.read_windows) == image.shape[0] * image.shape[1]
        assert {window.row % 48 for window in watched.read_windows} == {0}
        assert {window.col % 64 for window in watched.read_windows} == {0}
        assert raster.partial_nodata == partial
    with open_raster(path) as raster:
        rows = ValidRows(raster)
        for column in (Window(30, 33, 250, 300), Window(30, 333, 250, 111)):
            np.testing.assert_array_equal(down(rows, column, each), expected[column.slices()])


def test_memory_is_bounded_where_blocks_are_high(
    make_geotiff: Make, image: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.raster.valid_rows.HELD_BYTES", 20 * SHAPE[1])
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
