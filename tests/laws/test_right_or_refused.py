"""Any raster is mapped rightly, in both modes and with any number of bands, or refused in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from segmenter.grid.geometry import Window
from tests.helpers.raster_verdict import verdict

RIGHT = {
    "rasterio__RGB.byte.tif": 3,  # a pixel that is nodata in some bands only is data
    "rasterio__alpha.tif": 3,
    "rasterio__cogeo.tif": 3,
    "rasterio__rotated.tif": 1,
    "rio-cogeo__image_51px.tif": 3,
    "rio-cogeo__image_webp.tif": 3,
    "rio-cogeo__image_nan.tif": 1,
    "rio-tiler__cog_gcps.tif": 1,
    "rio-tiler__cog_world.tif": 1,
    "rio-tiler__pix4d_alpha_nodata.tif": 3,
    "naip__nir_tagged_as_alpha.tif": None,
    "stars__L7_ETMs.tif": None,
    "gdal__southup_int8_tile1_utm49s.tif": 1,  # 8192×8192 and nothing in it: no block was ever written
    "gdal__test_nodatavalues.tif": 3,
}
"""Bands of the run that maps a file rightly; None: six bands, and infrared for which `bands` is asked."""
REFUSED = {
    "rasterio__corrupt.tif",
    "gdal__byte_truncated.tif",
    "gdal__huge4GB.tif",
    "gdal__unknown_compression.tif",
}
LARGE = {
    "rio-tiler__cog_world.tif": Window(5000, 18000, 701, 903),
    "gdal__southup_int8_tile1_utm49s.tif": Window(7001, 513, 903, 701),
}


@pytest.mark.parametrize("mode", ["exact", pytest.param("smooth", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted({*RIGHT, *REFUSED}))
def test_real_files(
    shared_data: Callable[[str], Path], call: Callable[..., int], capfd: Any, name: str, mode: str
) -> None:
    """Each with runs of one, three and four bands: right with its own number, else refused."""
    path, right = shared_data("robust") / name, []
    for count in (1, 3, 4):
        refusal = verdict(call, capfd, path, count, "--mode", mode, part=LARGE.get(name))
        if refusal is None:
            right.append(count)
            shutil.rmtree("maps")
    assert right == [count for count in (1, 3, 4) if count == RIGHT.get(name)]


def test_every_file_has_its_verdict(shared_data: Callable[[str], Path]) -> None:
    lines = (shared_data("robust") / "MANIFEST.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[0] for line in lines} == set(RIGHT) | set(REFUSED)
