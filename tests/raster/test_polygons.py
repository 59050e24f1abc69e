"""Boxes around windows hold all pixels of the window, at the poles and over the antimeridian too."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform

from segmenter.grid.geometry import Window
from segmenter.raster import raster_info
from segmenter.raster.polygons import box_around

SIDE, METRES = 60, 5000.0


@pytest.mark.parametrize(
    ("crs", "x", "y"),
    [
        ("EPSG:3413", -150e3, 150e3),  # the pole in the middle
        ("EPSG:3413", -10e3, 290e3),  # near the lower left corner
        ("EPSG:3031", -290e3, 10e3),  # the south pole near the upper right one
        ("EPSG:3413", 200e3, 900e3),
        ("EPSG:32601", 300e3, 6e6),  # over the antimeridian
    ],
)
def test_a_box_in_degrees_holds_every_pixel(crs: str, x: float, y: float, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    grid = Affine(METRES, 0, x, 0, -METRES, y)
    with rasterio.open(
        path, "w", width=SIDE, height=SIDE, count=1, dtype="uint8", crs=crs, transform=grid
    ) as file:
        file.write(np.ones((1, SIDE, SIDE), np.uint8))
    left, bottom, right, top = box_around(raster_info(path), Window(0, 0, SIDE, SIDE), CRS.from_epsg(4326))
    xs, ys = (axis.ravel() for axis in np.meshgrid(np.arange(SIDE) + 0.5, np.arange(SIDE) + 0.5))
    longitude, latitude = map(np.array, transform(crs, "EPSG:4326", x + METRES * xs, y - METRES * ys))
    assert (left <= longitude).all()
    assert (longitude <= right).all()
    assert (bottom <= latitude).all()
    assert (latitude <= top).all()
