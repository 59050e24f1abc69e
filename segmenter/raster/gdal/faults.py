"""Errors of GDAL and the system as one exception type, and windows in rasterio's axis order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rasterio.errors import CRSError, RasterioError
from rasterio.windows import Window as GdalWindow

from segmenter.base.addresses import masked_text
from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Window
from segmenter.raster.gdal.private import GdalError

FAULTS = (RasterioError, GdalError, OSError, CRSError, UnicodeDecodeError)
"""Errors of rasterio, GDAL and the system about a file."""
_LARGE_JPEG = "Backing store not supported"
"""libjpeg, of a progressive JPEG whose pixels need more memory than it may take."""


def one_line(error: BaseException) -> str:
    """Return the root cause of an error on one line: rasterio's own text often lacks it."""
    while isinstance(error.__cause__ or error.__context__, FAULTS):
        error = error.__cause__ or error.__context__ or error
    if isinstance(error, UnicodeDecodeError):
        return "text in it is no UTF-8"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


@contextlib.contextmanager
def naming(path: Path, what: str, advice: str) -> Iterator[None]:
    """Convert errors of a block to a `RasterError` that names the file and the attempted operation."""
    try:
        yield
    except FAULTS as error:
        if _LARGE_JPEG in one_line(error):
            raise RasterError(
                path,
                "is a progressive JPEG, which is decoded as a whole, in more memory than is allowed",
                remedy="set JPEGMEM=2000M (or more) in the environment, or convert it to a tiled GeoTIFF",
            ) from None
        why = masked_text(one_line(error).replace(getattr(path, "address", str(path)), str(path)))
        raise RasterError(path, f"{what}: {why}", remedy=advice) from None


def gdal_window(window: Window) -> GdalWindow:
    """Return the same rectangle in rasterio's (column first) order."""
    return GdalWindow(window.col, window.row, window.width, window.height)
