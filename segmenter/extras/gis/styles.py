"""Styles of rasters in QGIS: the `.qml` that it reads beside a raster of the same stem.

Held by `tests/extras/gis/test_in_qgis.py`, where QGIS reads them. Attributes with a default in QGIS
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from segmenter.extras.gis.legend import QGIS_HEAD, QGIS_VERSION, LegendEntry, child, document

_RAMP = (
    *((0.0, "#440154"), (0.25, "#3b528b"), (0.5, "#21918c"), (0.75, "#5ec962")),
    (1.0, "#fde725"),
)
"""Viridis: as bright as the share is high, also in grey and to the colour-blind."""


def class_style(entries: Sequence[LegendEntry]) -> ET.Element:
    """The classes by name and colour, in the order given; every other value is transparent."""
    pipe, renderer = _pipe("paletted", band=1)
    palette = child(renderer, "colorPalette")
    for entry in entries:
        colour = "#{:02x}{:02x}{:02x}".format(*entry.colour)
        child(palette, "paletteEntry", value=entry.value, color=colour, alpha=255, label=entry.name)
    return pipe


def share_style() -> ET.Element:
    """Shares from 0 to 1 of the first band, dark to bright, in percent."""
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


def style_file(pipe: ET.Element) -> bytes:
    """A `.qml` file."""
    root = ET.Element("qgis", version=QGIS_VERSION, styleCategories="Symbology")
    root.append(pipe)
    child(root, "blendMode", "0")
    return document(root, QGIS_HEAD)


def _pipe(kind: str, **attributes: object) -> tuple[ET.Element, ET.Element]:
    """The steps from a raster's values to colours, and the one that is to be filled in."""
    pipe = ET.Element("pipe")
    # Classes must not be averaged, and the values of an image need not be: neighbours as they are.
    resampling = {f"zoomed{way}ResamplingMethod": "nearestNeighbour" for way in ("In", "Out")}
    child(child(pipe, "provider"), "resampling", enabled="false", maxOversampling=2, **resampling)
    renderer = child(pipe, "rasterrenderer", type=kind, opacity=1, alphaBand=-1, nodataColor="", **attributes)
    child(renderer, "rasterTransparency")
    return pipe, renderer
