"""Documents that a GIS reads beside a map: QGIS' style, `.qml`, and GDAL's attribute table, `.aux.xml`.

`tests/extras/gis/test_in_qgis.py` checks styles with QGIS itself; entries equal to QGIS' defaults are left
out. The attribute table is in the file that GDAL uses beside a GeoTIFF: the GDAL of rasterio's wheel (3.10)
supports no other place; later versions can store it inside the GeoTIFF, where older programs do not look.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from segmenter.grid.labels import Colour

if TYPE_CHECKING:
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.style import MapStyle

MARK = "written by coverage-segmenter; a file without this line is left as it is"
"""QGIS drops comments when it saves: a file with this one was not saved by QGIS."""

QGIS_HEAD = f"<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n<!-- {MARK} -->\n"
QGIS_VERSION = "3.22.0"
"""Whose form our files have: the oldest that is tested. Later versions read it."""

_HEAD = 1 << 10
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class LegendEntry:
    """One class in a legend.

    Attributes:
        value: value of its pixels.
        colour: red, green, blue, 0 … 255.
        pixels: number of its pixels; None: not counted.
    """

    value: int
    name: str
    colour: tuple[int, int, int]
    pixels: int | None = None


def legend(style: MapStyle, job: MapJob, pixels: Sequence[int] | None = None) -> list[LegendEntry]:
    """Return the legend of a job's map, with the values in its file.

    Args:
        pixels: (K,) pixels of each class; None: not counted.
    """
    counts = [None] * len(style.classes) if pixels is None else [int(count) for count in pixels]
    rows = zip(style.file_values(job).codes, style.classes.classes, counts, strict=True)
    return [LegendEntry(value, each.name, each.colour, count) for value, each, count in rows]


def xml_text(text: str) -> str:
    """Return a text that XML allows: other characters are replaced by U+FFFD."""
    return _NOT_IN_XML.sub("\ufffd", text)


def child(parent: ET.Element, tag: str, text: str | None = None, /, **attributes: object) -> ET.Element:
    """Add a child element with text and attributes."""
    element = ET.SubElement(parent, tag, {name: xml_text(str(value)) for name, value in attributes.items()})
    element.text = None if text is None else xml_text(text)
    return element


def document(root: ET.Element, head: str = "") -> bytes:
    """Return an XML file that begins with the lines of `head`."""
    ET.indent(root)
    return f"{head}{ET.tostring(root, encoding='unicode')}\n".encode()


def is_ours(content: bytes) -> bool:
    """Return whether a file was written by this program and not saved by QGIS since."""
    return MARK.encode() in content[:_HEAD]


def is_of_others(path: Path) -> bool:
    """Return whether a style file exists that was saved by QGIS or by hand."""
    try:
        return not is_ours(path.read_bytes())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def style_remark(path: Path) -> str:
    """Return a line on a style that is left as it is."""
    return f"{path}: is a style that was saved by QGIS or by hand, and is left; remove it for a new one"


# ------------------------------------------------------------------------------------------- styles

_RAMP = (
    *((0.0, "#440154"), (0.25, "#3b528b"), (0.5, "#21918c"), (0.75, "#5ec962")),
    (1.0, "#fde725"),
)
"""Viridis: as bright as the share is high, also in grey and to the colour-blind."""


def class_style(entries: Sequence[LegendEntry]) -> ET.Element:
    """Return a style of classes by name and colour, in this order; other values are transparent."""
    pipe, renderer = _pipe("paletted", band=1)
    palette = child(renderer, "colorPalette")
    for entry in entries:
        colour = "#{:02x}{:02x}{:02x}".format(*entry.colour)
        child(palette, "paletteEntry", value=entry.value, color=colour, alpha=255, label=entry.name)
    return pipe


def share_style() -> ET.Element:
    """Return a style of shares from 0 to 1 in the first band, from dark to bright, in percent."""
    pipe, renderer = _pipe("singlebandpseudocolor", band=1, classificationMin=0, classificationMax=1)
    shader = child(
        child(renderer, "rastershader"),
        "colorrampshader",
        minimumValue=0,
        maximumValue=1,
        clip=0,
        classificationMode=1,
        colorRampType="INTERPOLATED",
    )
    for share, colour in _RAMP:
        child(shader, "item", value=share, label=f"{share:.0%}", color=colour, alpha=255)
    return pipe


def polygon_style(attribute: str, colours: Mapping[str, Colour]) -> bytes:
    """Return a style of polygons, as a QGIS document: filled in the colour of an attribute's text."""
    root = ET.Element("qgis", version=QGIS_VERSION, styleCategories="Symbology")
    renderer = child(root, "renderer-v2", type="categorizedSymbol", attr=attribute, symbollevels=0)
    categories, symbols = child(renderer, "categories"), child(renderer, "symbols")
    for number, (name, colour) in enumerate(colours.items()):
        child(categories, "category", value=name, label=name, symbol=number, render="true", type="string")
        symbol = child(symbols, "symbol", type="fill", name=number, alpha=1, clip_to_extent=1)
        options = child(
            child(symbol, "layer", enabled=1, locked=0, **{"class": "SimpleFill"}), "Option", type="Map"
        )
        rgba = ",".join(map(str, (*colour, 255)))
        for key, value in {"color": rgba, "style": "solid", "outline_style": "no"}.items():
            child(options, "Option", name=key, type="QString", value=value)
    return document(root, QGIS_HEAD)


def style_file(pipe: ET.Element) -> bytes:
    """Return a `.qml` file."""
    root = ET.Element("qgis", version=QGIS_VERSION, styleCategories="Symbology")
    root.append(pipe)
    child(root, "blendMode", "0")
    return document(root, QGIS_HEAD)


def _pipe(kind: str, **attributes: object) -> tuple[ET.Element, ET.Element]:
    """Return the pipeline from raster values to colours, and its renderer, still empty."""
    pipe = ET.Element("pipe")
    # Classes must not be averaged, and the values of an image need not be: neighbours as they are.
    resampling = {f"zoomed{way}ResamplingMethod": "nearestNeighbour" for way in ("In", "Out")}
    child(child(pipe, "provider"), "resampling", enabled="false", maxOversampling=2, **resampling)
    renderer = child(pipe, "rasterrenderer", type=kind, opacity=1, alphaBand=-1, nodataColor="", **attributes)
    child(renderer, "rasterTransparency")
    return pipe, renderer


# ---------------------------------------------------------------------------------- attribute table

_WHOLE, _REAL, _TEXT = 0, 1, 2
_COUNT, _NAME, _VALUE, _COLOURS = 1, 2, 5, (6, 7, 8, 9)
"""GDAL's numbers for types and for uses of columns (`GDALRATFieldType`, `GDALRATFieldUsage`)."""
_NAMED_VALUES = 256
"""Most names by position: the list is as long as the largest value, too long for 16-bit codes."""


def attribute_table(entries: Sequence[LegendEntry]) -> bytes:
    """Return the `.aux.xml` of a map: value, class, red, green, blue, alpha and, if counted, pixels.

    Names are also stored as GDAL categories, for programs without attribute tables.
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
        for cell in (entry.value, xml_text(entry.name), *entry.colour, 255, *([entry.pixels] * counted)):
            child(row, "F", str(cell))
    return document(root)


def _columns(*, counted: bool) -> list[tuple[str, int, int]]:
    """Return name, type and use of each column; GDAL's integers have 32 bits, too few for pixel counts."""
    colours = zip(("Red", "Green", "Blue", "Alpha"), _COLOURS, strict=True)
    columns = [("Value", _WHOLE, _VALUE), ("Class", _TEXT, _NAME)]
    columns += [(name, _WHOLE, use) for name, use in colours]
    return columns + [("Count", _REAL, _COUNT)] * counted
