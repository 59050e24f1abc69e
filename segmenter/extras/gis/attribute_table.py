"""Raster attribute table of a class map, in the `.aux.xml` where GDAL keeps it beside a GeoTIFF.

The GDAL of rasterio's wheel (3.10) knows no other place; later versions can keep one inside the GeoTIFF,
where older programs do not look. `tests/extras/gis/test_attribute_table.py` reads it by GDAL.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from segmenter.extras.gis.legend import LegendEntry, child, document, shown

_WHOLE, _REAL, _TEXT = 0, 1, 2
_COUNT, _NAME, _VALUE, _COLOURS = 1, 2, 5, (6, 7, 8, 9)
"""GDAL's numbers for types and for uses of columns (`GDALRATFieldType`, `GDALRATFieldUsage`)."""
_NAMED_VALUES = 256
"""Names by position are a list as long as the largest value: for 16-bit codes there are none."""


def attribute_table(entries: Sequence[LegendEntry]) -> bytes:
    """The `.aux.xml` of a map: value, class, red, green, blue, alpha and, where counted, pixels.

    With the names as GDAL's categories too, which programs show that know no attribute tables.
    """
    root = ET.Element("PAMDataset")
    band = child(root, "PAMRasterBand", band=1)
    names = {entry.value: entry.name for entry in entries}
    if max(names) < _NAMED_VALUES:
        listed = child(band, "CategoryNames")
        for value in range(max(names) + 1):
            child(listed, "Category", names.get(value, ""))
    table = child(band, "GDALRasterAttributeTable", tableType="thematic")
    counted = all(entry.pixels is not None for entry in entries)
    for index, (name, kind, use) in enumerate(_columns(counted=counted)):
        field = child(table, "FieldDefn", index=index)
        child(field, "Name", name)
        child(field, "Type", str(kind))
        child(field, "Usage", str(use))
    for index, entry in enumerate(entries):
        row = child(table, "Row", index=index)
        for cell in (entry.value, shown(entry.name), *entry.colour, 255, *([entry.pixels] * counted)):
            child(row, "F", str(cell))
    return document(root)


def _columns(*, counted: bool) -> list[tuple[str, int, int]]:
    """Name, type and use of each; a whole number of GDAL's has 32 bits, too few to count pixels."""
    colours = zip(("Red", "Green", "Blue", "Alpha"), _COLOURS, strict=True)
    columns = [("Value", _WHOLE, _VALUE), ("Class", _TEXT, _NAME)]
    columns += [(name, _WHOLE, use) for name, use in colours]
    return columns + [("Count", _REAL, _COUNT)] * counted
