"""Pages of a TIFF, and subdatasets of other files: which of them is the raster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from segmenter.base.errors import RasterError
from segmenter.raster.remote.settings import as_gdal_takes
from segmenter.raster.stamps import Stamp

_PAGE = re.compile(r"Page (\d+) \((\d+)P x (\d+)L x")
_SHOWN = 3


def full_page(path: Path, dataset: Any, stamp: Stamp) -> str | None:
    """Return GDAL's name of the one page that is larger than all others; None where that is the first.

    Smaller pages are previews of it. Masks and overviews are no pages.

    Raises:
        RasterError: several pages are of that size, none can be told from the others, or the file has
            only subdatasets.
    """
    if not dataset.count:
        parts = ", ".join(dataset.subdatasets[:_SHOWN]) or "none"
        raise RasterError(
            f"{path}: expected a raster with bands, it has only subdatasets: {parts}; write the one that is "
            "meant to a GeoTIFF: gdal_translate SUBDATASET FILE.tif"
        )
    if dataset.driver != "GTiff" or len(dataset.subdatasets) < 2:
        return None
    said = dataset.tags(ns="SUBDATASETS")
    pages = [_PAGE.match(text) for name, text in said.items() if name.endswith("_DESC")]
    sizes = {int(page[1]): (int(page[3]), int(page[2])) for page in pages if page is not None}
    largest = max(sizes.values(), key=lambda size: size[0] * size[1])
    full = [number for number, size in sizes.items() if size == largest]
    name = as_gdal_takes(path)
    if len(full) > 1 or (full[0] != 1 and stamp.beside):
        height, width = largest
        raise RasterError(
            f"{path}: expected one page, got {len(sizes)}, {len(full)} of them of {height}×{width} pixels; "
            f"write the one that is meant: gdal_translate GTIFF_DIR:{full[0]}:{name} PAGE.tif - or, where "
            "each is a band, such a file of each, and then one of all: gdal_merge.py -separate"
        )
    return None if full[0] == 1 else f"GTIFF_DIR:{full[0]}:{name}"
