"""A QGIS project: groups of raster layers with their styles, one CRS, and what is shown when it is opened.

Only what QGIS needs to read: all else it fills in itself when it saves. The same layers give the same bytes.
"""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from segmenter.files import read_regular, write_whole
from segmenter.gis.legend import QGIS_HEAD, QGIS_VERSION, child, document, is_ours

_MOST = 1 << 26
"""Bytes of a project's text that are looked at."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""In the zip file, of whatever day it was made: the oldest that it can hold."""

_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    IndexError,
)
"""What a zip file may raise that is damaged, encrypted or compressed in another way."""

_CHECKED = {True: "Qt::Checked", False: "Qt::Unchecked"}

Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


@dataclass(frozen=True)
class ProjectCrs:
    """A coordinate reference system.

    Attributes:
        name: as `EPSG:25833`; None: only its text is known.
    """

    wkt: str
    name: str | None = None


@dataclass(frozen=True)
class Layer:
    """A raster of a project.

    Attributes:
        source: what QGIS opens: a path relative to the project (`./maps/a.tif`), or one of GDAL's own.
        style: its `pipe`, see `styles`; None: QGIS' own choice.
        crs: None: the raster lies nowhere.
        shown: when its group is.
    """

    name: str
    source: str
    style: ET.Element | None = None
    crs: ProjectCrs | None = None
    shown: bool = True


@dataclass(frozen=True)
class Group:
    """Layers that are switched on and off together, the upper ones first.

    Attributes:
        shown: when the project is opened; so the legends of its layers, if `expanded`.
    """

    name: str
    layers: Sequence[Layer]
    shown: bool = True
    expanded: bool = False


def write_project(path: Path, groups: Iterable[Group], crs: ProjectCrs | None, view: Box | None) -> None:
    """Write a `.qgs`, or a `.qgz`, which is one in a zip file; whole or not at all.

    Args:
        crs: of the project; None: plain coordinates.
        view: what is shown when it is opened, in the coordinates of `crs`.

    Raises:
        SegmenterError: it cannot be written.
    """
    text = _text(path.stem, [group for group in groups if group.layers], crs, view)
    if path.suffix == ".qgz":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            part = zipfile.ZipInfo(f"{path.stem}.qgs", _TIME)
            archive.writestr(part, text, zipfile.ZIP_DEFLATED)
        text = file.getvalue()
    write_whole(path, text)


def is_our_project(path: Path) -> bool:
    """Whether a file is a project as `write_project` left it: QGIS did not save it since.

    Raises:
        SegmenterError: it cannot be read.
    """
    content = read_regular(path, _MOST)
    if path.suffix == ".qgz":
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                names = [name for name in archive.namelist() if name.endswith(".qgs")]
                with archive.open(names[0]) as part:
                    content = part.read(1 << 16)
        except _DAMAGED:
            return False
    return is_ours(content)


def _text(title: str, groups: Sequence[Group], crs: ProjectCrs | None, view: Box | None) -> bytes:
    root = ET.Element("qgis", version=QGIS_VERSION, projectname="")
    child(root, "title", title)
    _crs(child(root, "projectCrs"), crs)
    tree, layers = child(root, "layer-tree-group"), ET.Element("projectlayers")
    for group in groups:
        _group(tree, layers, group)
    if view is not None:
        canvas = child(root, "mapcanvas", name="theMapCanvas")
        extent = child(canvas, "extent")
        for name, value in zip(("xmin", "ymin", "xmax", "ymax"), view, strict=True):
            child(extent, name, repr(value))
        _crs(child(canvas, "destinationsrs"), crs)
    root.append(layers)
    properties = child(root, "properties")
    child(child(properties, "Paths"), "Absolute", "false", type="bool")
    child(child(properties, "SpatialRefSys"), "ProjectionsEnabled", str(int(crs is not None)), type="int")
    return document(root, QGIS_HEAD)


def _group(tree: ET.Element, layers: ET.Element, group: Group) -> None:
    """One group in the tree of layers, and its layers below each other."""
    branch = child(tree, "layer-tree-group", name=group.name, checked=_CHECKED[group.shown], expanded=1)
    for layer in group.layers:
        number = f"raster_layer_{len(layers):06}"  # QGIS replaces names of ten characters or fewer
        leaf = {"id": number, "name": layer.name, "source": layer.source, "providerKey": "gdal"}
        child(branch, "layer-tree-layer", **leaf, checked=_CHECKED[layer.shown], expanded=int(group.expanded))
        element = child(layers, "maplayer", type="raster")
        for tag, text in (("id", number), ("datasource", layer.source), ("layername", layer.name)):
            child(element, tag, text)
        _crs(child(element, "srs"), layer.crs)
        child(element, "provider", "gdal")
        if layer.style is not None:
            element.append(layer.style)


def _crs(parent: ET.Element, crs: ProjectCrs | None) -> None:
    element = child(parent, "spatialrefsys")
    child(element, "wkt", "" if crs is None else crs.wkt)
    child(element, "authid", "" if crs is None else crs.name or "")
