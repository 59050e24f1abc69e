"""The raster attribute table, read by the GDAL that rasterio brings, which gives Python no access to it."""

import ctypes
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import rasterio

from segmenter.extras.gis.documents import LegendEntry, attribute_table, class_style, style_file, xml_text
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.raster import RasterSpec, open_raster, write_raster
from tests.helpers.child_predict import scene
from tests.helpers.maps import Call, Make

NAMES = ("water & <ice>", 'a "road"', "Gebüsch", "水体", "pipeline (buried)", "grids[pv]", "init=x(y)")
USES = {0: "generic", 1: "pixels", 2: "name", 5: "value", 6: "red", 7: "green", 8: "blue", 9: "alpha"}


@pytest.fixture(scope="module")
def gdal() -> Any:
    """The library that rasterio has loaded."""
    found = list(Path(rasterio.__file__).parents[1].glob("rasterio.libs/libgdal*.so*"))
    if not found:
        pytest.skip("rasterio has a GDAL of the system's here")
    library = ctypes.CDLL(str(found[0]))
    for name in ("GDALOpen", "GDALGetRasterBand", "GDALGetDefaultRAT"):
        getattr(library, name).restype = ctypes.c_void_p
    library.GDALRATGetValueAsString.restype = ctypes.c_char_p
    library.GDALRATGetValueAsDouble.restype = ctypes.c_double
    return library


def table(gdal: Any, path: Path) -> dict[str, list[Any]]:
    """Use → values of each column, as GDAL reads them."""
    dataset = ctypes.c_void_p(gdal.GDALOpen(str(path).encode(), 0))
    assert dataset, f"{path} cannot be opened"
    try:
        band = ctypes.c_void_p(gdal.GDALGetRasterBand(dataset, 1))
        rat = ctypes.c_void_p(gdal.GDALGetDefaultRAT(band))
        assert rat, "it has no attribute table"
        found: dict[str, list[Any]] = {}
        for column in range(gdal.GDALRATGetColumnCount(rat)):
            use = USES[gdal.GDALRATGetUsageOfCol(rat, column)]
            rows = range(gdal.GDALRATGetRowCount(rat))
            if use == "name":
                found[use] = [gdal.GDALRATGetValueAsString(rat, row, column).decode() for row in rows]
            else:
                found[use] = [gdal.GDALRATGetValueAsDouble(rat, row, column) for row in rows]
        return found
    finally:
        gdal.GDALClose(dataset)


@pytest.mark.parametrize("options", [(), ("--cog",), ("--codes", "7,300,2,9,11,0,65534")], ids=str)
def test_gdal_reads_the_classes_of_a_map_and_their_pixels(
    make_geotiff: Make, call: Call, gdal: Any, options: Any
) -> None:
    colours = [(20 * i, 255 - i, 3 * i) for i in range(7)]
    rows = enumerate(zip(NAMES, colours, strict=True))
    classes = ClassMap(tuple(LandCoverClass(name, colour, i) for i, (name, colour) in rows))
    scene(make_geotiff, "in/a.tif", 131, 203)
    assert call("in", *options, classes=classes) == 0
    found = table(gdal, Path("maps/a.tif"))
    with rasterio.open("maps/a.tif") as file:
        pixels = file.read(1)
        assert file.descriptions == ("land-cover class",)
        assert file.dtypes == ("uint16" if "300" in str(options) else "uint8",)
    codes = [7, 300, 2, 9, 11, 0, 65534] if "--codes" in options else list(range(7))
    assert (found["name"], found["value"]) == (list(NAMES), codes)
    assert list(zip(found["red"], found["green"], found["blue"], strict=True)) == colours
    assert found["alpha"] == [255] * 7
    assert found["pixels"] == [int((pixels == code).sum()) for code in codes]


def test_a_map_opens_whatever_its_classes_are_called_and_what_xml_cannot_hold_is_replaced(
    tmp_path: Path,
) -> None:
    """A name may look like a CRS that names a file."""
    write_raster(tmp_path / "a.tif", np.zeros((3, 5), np.uint8), RasterSpec(nodata=255))
    beside = tmp_path / "a.tif.aux.xml"
    entries = [LegendEntry(i, name, (1, 2, 3)) for i, name in enumerate(NAMES)]
    beside.write_bytes(attribute_table(entries))
    with open_raster(tmp_path / "a.tif", (1,)) as raster:
        assert raster.info.count == 1

    assert xml_text("a\ufffeb\ud800c\x01d 水 \U0001f30d") == "a\ufffdb\ufffdc\ufffdd 水 \U0001f30d"
    entries = [LegendEntry(0, "a\uffff<b>&'", (1, 2, 3))]
    for content in (attribute_table(entries), style_file(class_style(entries))):
        said = "".join(f"{element.text}{element.get('label')}" for element in ET.fromstring(content).iter())
        assert "a\ufffd<b>&'" in said


def test_a_count_beyond_32_bits_and_none_at_all(tmp_path: Path, gdal: Any) -> None:
    write_raster(tmp_path / "a.tif", np.zeros((3, 5), np.uint8), RasterSpec())
    beside = tmp_path / "a.tif.aux.xml"
    beside.write_bytes(attribute_table([LegendEntry(0, "a", (1, 2, 3), 12_345_678_901)]))
    assert table(gdal, tmp_path / "a.tif")["pixels"] == [12_345_678_901]
    beside.write_bytes(attribute_table([LegendEntry(0, "a", (1, 2, 3))]))
    assert "pixels" not in table(gdal, tmp_path / "a.tif")
