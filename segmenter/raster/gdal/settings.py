"""GDAL settings, set by calls, never by an import. Users' settings win unless they change pixels."""

from __future__ import annotations

import functools
import os
import warnings

from rasterio.errors import NotGeoreferencedWarning

from segmenter.raster.gdal.private import listen, proj_data

_SETTINGS = {
    # Otherwise 5 % of the machine's memory, in MB.
    "GDAL_CACHEMAX": "128",
    # Listing a folder of 100,000 tiles at each open is quadratic; sidecar files are still found.
    "GDAL_DISABLE_READDIR_ON_OPEN": "TRUE",
    # A JPEG whose code is broken in the middle would only be remarked on, and read as grey or stripes.
    "GDAL_ERROR_ON_LIBJPEG_WARNING": "TRUE",
    # Read as a whole, a PNG that ends early would be black from there on, without an error.
    "GDAL_PNG_WHOLE_IMAGE_OPTIM": "NO",
}

MEANING = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "TRUE",
    "GDAL_PAM_ENABLED": "YES",
    "GDAL_PAM_PROXY_DIR": "",
    "GDAL_GEOREF_SOURCES": "PAM,INTERNAL,TABFILE,WORLDFILE,XML",
    "GTIFF_POINT_GEO_IGNORE": "NO",
    "GTIFF_IGNORE_READ_ERRORS": "NO",
    "GTIFF_FORCE_RGBA": "NO",
    "GDAL_JPEG_TO_RGB": "YES",
}
"""At GDAL's defaults: settings that decide which pixels have data, where a file lies, or what its values are.
In force while a file is opened, whatever the environment says: guides for buckets advise some of them."""


@functools.cache
def set_up_gdal() -> None:
    """Apply the settings that reading and writing rely on, before GDAL opens its first file.

    Called by the functions that open files, so that no program can forget it: without it, a damaged file
    would be read as pixels in silence. GDAL reads the settings when it first needs them, in any thread.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # Images without georeferencing are ordinary input (NAIC, JPEG), and so are ours on the way; appended, so
    # that a filter of the user's own goes first. `RasterInfo.transform` says what a file has.
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning, append=True)
    # The GeoTIFF library inside GDAL looks for PROJ's data by itself, and prints that it found none.
    data = proj_data()
    if data is not None and not os.environ.get("PROJ_LIB"):
        os.environ.setdefault("PROJ_DATA", str(data))
    listen()


def quiet_gdal() -> None:
    """Keep messages of GDAL and rasterio off the terminal; programs call it before the first raster."""
    # Outside of rasterio's care, GDAL's lines would stand on stderr between ours.
    os.environ.setdefault("CPL_LOG", os.devnull)
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)
