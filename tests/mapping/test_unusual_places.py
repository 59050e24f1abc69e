"""Geotransforms that lead beyond all numbers: such an input fails alone, in one line that names it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasterio import Affine

from segmenter.base.errors import RasterError
from segmenter.raster import raster_info

Make = Callable[..., Path]
PIXELS = np.ones((20, 30, 3), np.uint8)


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:25833"])
@pytest.mark.parametrize("pixel", [1e308, 1e200])
def test_a_huge_pixel_fails_alone(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], capsys: Any, crs: str, pixel: float
) -> None:
    make_geotiff("in/a.tif", PIXELS, crs=crs, transform=Affine(pixel, 0, 0, 0, -pixel, 0))
    make_geotiff("in/b.tif", PIXELS)
    assert call("in") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: in/a.tif: expected a geotransform whose corners are finite, ")
    assert said.count("\n") == 1
    assert [path.name for path in (tmp_path / "maps").glob("*.tif")] == ["b.tif"]


def test_a_box_in_a_place_beyond_numbers_fails_alone(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], capsys: Any
) -> None:
    """Its geotransform is of numbers, that of the way back is not."""
    make_geotiff("in/a.tif", PIXELS, transform=Affine(1e-155, 0, 1e300, 0, -1e-150, 1))
    make_geotiff("in/b.tif", PIXELS, transform=Affine(1, 0, 0, 0, -1, 0))
    assert call("in", "--bbox", 0, -10, 10, 0) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(
        "error: in/a.tif: a bounding box cannot be found in it: its geotransform (1e-155"
    )
    assert [path.name for path in (tmp_path / "maps").glob("*.tif")] == ["b.tif"]
    assert call("in", "--mosaic", output="joined") == 2
    assert "in/a.tif is beyond all numbers on the grid of in/a.tif" in capsys.readouterr().err


def test_every_geotransform_of_numbers_has_a_header_or_a_line(make_geotiff: Make) -> None:
    """Whatever its powers of ten: no other error than ours."""
    rng = np.random.default_rng(0)
    read = 0
    for number in range(150):
        a, b, d, e = rng.choice([-1, 1], 4) * 10.0 ** rng.uniform(-320, 308, 4)
        c, f = 10.0 ** rng.uniform(-10, 308, 2)
        if number % 2:
            b = d = 0.0
        place = Affine(a, b, c, d, e, f)
        path = make_geotiff(
            "x.tif", PIXELS[:2, :2], crs=["EPSG:4326", "EPSG:25833"][number % 3 > 0], transform=place
        )
        with contextlib.suppress(RasterError):
            read += raster_info(path).size.height == 2
    assert 20 < read < 150
