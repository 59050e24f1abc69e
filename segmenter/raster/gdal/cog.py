"""Cloud-optimised GeoTIFFs made of finished ones: with overviews, ordered for readers over networks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import rasterio
import rasterio.shutil

COG_ENDING = ".cog"
COG_LEFTOVERS = (".ovr.tmp", ".ovr.tmp.aux.xml", ".msk.ovr.tmp", ".aux.xml")
"""What GDAL's driver has beside its file while it works."""
_BLOCK = 512


def cloud_optimised(path: Path, overviews: Literal["mode", "nearest"]) -> None:
    """Replace a GeoTIFF by a cloud-optimised one of the same pixels, colour table, tags and georeference.

    GDAL can only copy into one. Overviews are never averaged: the mean of classes 1 and 3 is not class 2.
    For float16 the overviews are of the same 16 bits.

    Raises:
        rasterio's and the system's errors; a full disk may raise none, so the file is to be read back.
    """
    aside = path.with_name(path.name + COG_ENDING)
    aside.unlink(missing_ok=True)
    with rasterio.open(path, sharing=False) as source:
        options = {"compress": "deflate", "level": 1, "blocksize": _BLOCK, "bigtiff": "IF_SAFER"}
        rasterio.shutil.copy(source, aside, driver="COG", overview_resampling=overviews.upper(), **options)
    os.replace(aside, path)
