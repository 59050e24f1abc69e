"""Odd files that real software met: how each is mapped rightly, or with which words it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window

Valid = Callable[[Any, NDArray[Any]], NDArray[np.bool_]]


def everywhere(dataset: Any, pixels: NDArray[Any]) -> NDArray[np.bool_]:
    return np.ones(pixels.shape[1:], np.bool_)


def by_mask(dataset: Any, pixels: NDArray[Any]) -> NDArray[np.bool_]:
    return dataset.dataset_mask() > 0


@dataclass(frozen=True)
class Right:
    """How a file is mapped rightly: bands of the run, where it has data, how many pixels have none."""

    bands: tuple[int, ...]
    valid: Valid
    nodata_pixels: int
    window: Window | None = None


RGB = (1, 2, 3)
RIGHT = {
    # 710 pixels of the collar's edge are zero, which is nodata, in some bands only: dark, and data.
    "rasterio__RGB.byte.tif": Right(RGB, lambda _, p: (p != 0).any(axis=0), 567_938 - 383_115),
    "rasterio__alpha.tif": Right(RGB, lambda d, _: d.read(4) > 0, 1_472_541),
    "rasterio__cogeo.tif": Right(RGB, by_mask, 0),
    "rasterio__rotated.tif": Right((1,), everywhere, 0),
    "rio-cogeo__image_51px.tif": Right(RGB, everywhere, 0),
    "rio-cogeo__image_webp.tif": Right(RGB, everywhere, 0),
    "rio-cogeo__image_nan.tif": Right((1,), lambda _, p: ~np.isnan(p[0]), 107_756 - 46_464),
    "rio-tiler__cog_gcps.tif": Right((1,), everywhere, 0),
    "rio-tiler__cog_world.tif": Right((1,), lambda _, p: p[0] != 0, 280_304, Window(5000, 18000, 701, 903)),
    "rio-tiler__pix4d_alpha_nodata.tif": Right(RGB, lambda d, _: d.read(4) > 0, 519_988 - 455_325),
    "naip__nir_tagged_as_alpha.tif": Right((1, 2, 3, 4), everywhere, 0),
    "stars__L7_ETMs.tif": Right((1, 2, 3, 4, 5, 6), everywhere, 0),
    # 8192×8192 and nothing in it: no block was ever written.
    "gdal__southup_int8_tile1_utm49s.tif": Right((1,), lambda _, p: p[0] != -128, 8192 * 8192),
    "gdal__test_nodatavalues.tif": Right(RGB, by_mask, 1600),
}
REFUSED = {
    "rasterio__corrupt.tif": r"cannot read rows \d+–\d+, columns \d+–\d+: .*tile 3.*damaged or incomplete",
    "gdal__byte_truncated.tif": r"cannot read rows 0–19, columns 0–19: .*damaged or incomplete",
    "gdal__huge4GB.tif": r"declares 65535×65535 pixels in a file of 401 bytes.*--max-pixels",
    "gdal__unknown_compression.tif": r"cannot open it: .*missing codec",
}
