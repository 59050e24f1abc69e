"""QGIS form for the points: a `.qml` with the classes as choices for the field `reference`.

What the map says of a point is hidden, so that whoever labels it does not follow the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from segmenter.extras.gis.documents import QGIS_HEAD, QGIS_VERSION, child, document

FIELD = "reference"
_HIDDEN = ("stratum", "mapped", "probability", "pixel_area")


def label_form(classes: Sequence[str]) -> bytes:
    """Return the `.qml` of points to label with these classes."""
    root = ET.Element("qgis", version=QGIS_VERSION, styleCategories="Fields|Forms")
    fields = child(root, "fieldConfiguration")
    config = _widget(fields, FIELD, "ValueMap")
    listed = child(child(config, "Option", type="Map"), "Option", type="List", name="map")
    for name in classes:
        child(child(listed, "Option", type="Map"), "Option", type="QString", name=name, value=name)
    for name in _HIDDEN:
        _widget(fields, name, "Hidden")
    editable = child(root, "editable")
    for name in (*_HIDDEN, "id", "map", "row", "col"):
        child(editable, "field", name=name, editable=0)
    return document(root, QGIS_HEAD)


def _widget(fields: ET.Element, name: str, kind: str) -> ET.Element:
    """Add a field's widget; return the element of its settings."""
    widget = child(child(fields, "field", name=name), "editWidget", type=kind)
    return child(widget, "config")
