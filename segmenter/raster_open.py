"""Which files are opened as rasters at all, and by which of GDAL's drivers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import rasterio

from segmenter.errors import RasterError
from segmenter.raster_write import FAULTS, naming

# How files of the three formats begin (TIFF and BigTIFF in either byte order). GDAL is told the driver, so
# that it never tries another one on a file that says it is something else.
_SIGNATURES = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",
    b"MM\0+": "GTiff",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
}
_PNG_TAIL = 4096
"""Bytes in which a PNG's last chunk is looked for; some programs leave something behind it."""


def open_dataset(path: Path, drivers: Sequence[str] = ()) -> Any:
    """A rasterio dataset, opened by the driver that the file's first bytes tell, or by one of `drivers`.

    Raises:
        RasterError: none of them can.
    """
    try:
        str(path).encode()
    except UnicodeError:  # rasterio takes no bytes
        raise RasterError(f"{str(path)!a}: expected a file name in UTF-8; rename the file") from None
    with naming(path, "cannot open it", "expected a GeoTIFF, PNG or JPEG that is whole"):
        if not path.is_file():
            raise RasterError(f"{path}: expected a raster file, there is none")
        with path.open("rb") as file:
            start = file.read(4)
            driver = next((d for signature, d in _SIGNATURES.items() if start.startswith(signature)), None)
            if driver == "PNG" and not _png_ends(file):
                raise OSError("it ends early")
        if driver is not None:
            return rasterio.open(path, driver=driver, sharing=False)
        for name in drivers:
            with contextlib.suppress(*(FAULTS if name != drivers[-1] else ())):
                return rasterio.open(path, driver=name, sharing=False)
    raise RasterError(f"{path}: expected a GeoTIFF, PNG or JPEG, the file begins with {start!r}")


def _png_ends(file: BinaryIO) -> bool:
    """Whether a PNG has its last chunk; GDAL gives wrong pixels of a truncated one, without an error."""
    file.seek(-min(_PNG_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
    return b"IEND" in file.read()


def check_drivers(names: Sequence[str]) -> None:
    """Refuse names that GDAL does not know."""
    with rasterio.Env() as env:
        if unknown := sorted(set(names) - env.drivers().keys()):
            raise RasterError(f"--drivers: GDAL has no driver {unknown[0]}; `gdalinfo --formats` lists them")
