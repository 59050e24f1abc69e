"""Private parts of rasterio are what `gdal_private` takes them for; a version with others fails here."""

import ctypes
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from segmenter.raster.gdal.private import quiet_libtiff

Make = Callable[..., Path]
ROOT = Path(__file__).parents[2]


def test_the_wheels_libtiff_is_found_and_takes_an_error_handler() -> None:
    assert quiet_libtiff()
    (library,) = Path(rasterio.__file__).parents[1].glob("rasterio.libs/libtiff*.so*")
    handler = ctypes.CDLL(str(library)).TIFFSetErrorHandler
    handler.restype = ctypes.c_void_p
    assert handler(None) is None, "the handler before this one: none"


def test_settings_hold_from_the_first_open_and_a_users_own_win(make_geotiff: Make) -> None:
    path = make_geotiff("a.tif", np.ones((8, 8), np.uint8))
    code = (
        "import os, sys, logging, rasterio\nfrom pathlib import Path\nbefore = dict(os.environ)\n"
        "from segmenter.raster import raster_info\n"
        "assert dict(os.environ) == before, 'an import sets variables'\n"
        "assert not logging.getLogger('rasterio._env').filters\n"
        "raster_info(Path(sys.argv[1]))\n"
        "print(*(os.environ[name] for name in ('GDAL_CACHEMAX', 'GDAL_ERROR_ON_LIBJPEG_WARNING')))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GDAL_", "PROJ_"))}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment | {"GDAL_CACHEMAX": "77"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("77 TRUE\n", "")


def test_programs_hear_nothing_of_images_without_georeference(make_geotiff: Make) -> None:
    from segmenter.raster import quiet_gdal, raster_info

    path = make_geotiff("a.tif", np.ones((8, 8), np.uint8), crs=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotGeoreferencedWarning):
            raster_info(path)
        quiet_gdal()
        assert raster_info(path).transform is None


@pytest.mark.slow
def test_files_are_read_by_rasterios_own_gdal_beside_that_of_another_wheel() -> None:
    """Pyogrio brings a GDAL too, with settings and caches of its own."""
    code = (
        "import pyogrio.raw, rasterio\n"
        "from segmenter.raster.gdal.files import _gdal\n"
        "library = _gdal()\n"
        "library.CPLSetConfigOption(b'SEGMENTER_TEST', b'here')\n"
        "assert rasterio.env.get_gdal_config('SEGMENTER_TEST') == 'here', library\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
