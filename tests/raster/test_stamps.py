"""Stamps: whatever changes what a raster means changes its key, and nothing else does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.raster import raster_info
from segmenter.raster.stamps import stamp_of

Make = Callable[..., Path]

STATISTICS = (
    '<PAMDataset>\n  <PAMRasterBand band="1">\n    <Histograms><HistItem><HistMin>0</HistMin></HistItem>'
    '</Histograms>\n    <Metadata>\n      <MDI key="STATISTICS_MEAN">4.0</MDI>\n    </Metadata>\n'
    "  </PAMRasterBand>\n</PAMDataset>\n"
)
NODATA = '<PAMDataset><PAMRasterBand band="1"><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>'


@pytest.fixture
def image(make_geotiff: Make, rng: np.random.Generator) -> Path:
    return make_geotiff("a/x.tif", rng.integers(0, 9, (13, 17, 1), np.uint8))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tif.msk", b"II*\0"),
        ("x.tif.MSK", b"II*\0"),
        ("x.tif.aux.xml", NODATA.encode()),
        ("x.tfw", b"1\n0\n0\n-1\n5\n6\n"),
        ("x.tifw", b"1\n0\n0\n-1\n5\n6\n"),
        ("x.wld", b"1\n0\n0\n-1\n5\n6\n"),
        ("x.tab", b"!table"),
        ("x_rpc.txt", b"LINE_OFF: 1"),
        ("x.RPB", b"satId"),
        ("metadata.dim", b"<Dimap/>"),
    ],
)
def test_what_lies_beside_a_raster_and_has_a_say_changes_its_key(
    image: Path, name: str, content: bytes
) -> None:
    before = stamp_of(image)
    beside = image.with_name(name)
    beside.write_bytes(content)
    with_it = stamp_of(image)
    assert with_it.key != before.key
    beside.write_bytes(content + b" ")
    assert stamp_of(image).key not in (before.key, with_it.key)
    beside.unlink()
    assert stamp_of(image) == before


@pytest.mark.parametrize("name", ["y.tif.msk", "x.tif.ovr", "notes.txt", "x.png", "x.tif~", "other.tfw"])
def test_what_has_no_say_changes_nothing(image: Path, name: str) -> None:
    before = stamp_of(image)
    image.with_name(name).write_bytes(b"II*\0")
    assert stamp_of(image) == before


def test_statistics_of_a_viewer_change_nothing(image: Path) -> None:
    """QGIS and gdalinfo write them beside an image that is only looked at."""
    before = stamp_of(image)
    beside = image.with_name("x.tif.aux.xml")
    beside.write_text(STATISTICS)
    assert stamp_of(image) == before
    beside.write_text(NODATA)
    told = stamp_of(image)
    beside.write_text(NODATA.replace("</PAMDataset>", STATISTICS[len("<PAMDataset>\n") :]))
    assert stamp_of(image) != before
    os.utime(beside, (5, 5))
    beside.write_text(NODATA)
    assert stamp_of(image) == told


def test_a_raster_itself_changes_its_key_but_not_its_folder(image: Path, tmp_path: Path) -> None:
    before = stamp_of(image)
    copy = tmp_path / "elsewhere" / "x.tif"
    copy.parent.mkdir()
    shutil.copy2(image, copy)
    assert stamp_of(copy).key == before.key
    os.utime(image, ns=(1, 1))
    assert stamp_of(image).key != before.key
    image.unlink()
    assert stamp_of(image).file[1:] == (-1, -1)


def test_a_passport_holds_the_stamp_and_all_that_the_file_says(make_geotiff: Make) -> None:
    pixels = np.zeros((9, 11, 2), np.float32)
    path = make_geotiff("b.tif", pixels, descriptions=("red", "height"), nodata=-9999.0)
    with rasterio.open(path, "r+") as dataset:
        dataset.units = ("", "m")
    stamp, info = stamp_of(path), raster_info(path)
    assert info.stamp == stamp
    assert info.descriptions == ("red", "height")
    assert info.units == (None, "m")
    assert info.interpretations == ("gray", "undefined")
    assert info.validity == ("nodata", "NaN")


@pytest.mark.parametrize(
    ("options", "ways"),
    [({}, ()), ({"masks": True}, ("mask",)), ({"alpha": True}, ("alpha",)), ({"nodata": 3}, ("nodata",))],
)
def test_a_passport_says_how_validity_is_told(
    make_geotiff: Make, options: dict[str, Any], ways: tuple[str, ...]
) -> None:
    if "masks" in options:
        options = {"masks": np.full((9, 11), 255, np.uint8)}
    path = make_geotiff("c.tif", np.full((9, 11, 4 if "alpha" in options else 3), 255, np.uint8), **options)
    assert raster_info(path).validity == ways
