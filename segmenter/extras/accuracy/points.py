"""GeoPackage of sampled points: the layer `points`, and tables of strata and classes.

| layer | columns |
| --- | --- |
| `points` | `id`, `stratum`, `mapped`, `reference`, `probability`, `map`, `row, col, x, y`, `pixel_area` |
| `strata` | `stratum`, `area`, `unit`, `pixels`, `points`, `drawn` (`by area`) |
| `classes` | `class`, `area` (on the map), `unit` |
| `maps` | `map`, `path` (from the folder of the points), `weights` (of several runs with commas), `image` |

`weights` and `image` of a map are digests: of the weights that made it, and of the image that it is of.

Points are the centres of their pixels, in the maps' CRS, or in EPSG:4326 if they have several. Without
georeference they have the coordinates that QGIS gives such an image: the column, and the row, negative.
`NAME.qml` beside it offers the classes as choices for `reference`, and hides what the map says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import shapely
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.base.files import shortest_ends, write_whole
from segmenter.extras.accuracy.covers import Pixels
from segmenter.extras.gis.documents import QGIS_HEAD, QGIS_VERSION, child, document
from segmenter.extras.vector_files.database import REFERENCE, UNCLEAR
from segmenter.extras.vector_files.library import pyogrio
from segmenter.extras.vector_files.writing import FAULTS, file_aside, write_layer
from segmenter.extras.written_map import WrittenMap
from segmenter.raster import RasterInfo
from segmenter.raster.crs_units import same_ground
from segmenter.raster.polygons import between, crs_of

_HIDDEN = ("stratum", "mapped", "probability", "pixel_area")


def label_form(classes: Sequence[str]) -> bytes:
    """Return the `.qml` of points to label with these classes."""
    root = ET.Element("qgis", version=QGIS_VERSION, styleCategories="Fields|Forms")
    fields = child(root, "fieldConfiguration")
    config = _widget(fields, REFERENCE, "ValueMap")
    listed = child(child(config, "Option", type="Map"), "Option", type="List", name="map")
    for name in (*classes, *[UNCLEAR] * (UNCLEAR not in classes)):
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


POINTS, STRATA, CLASSES, MAPS = "points", "strata", "classes", "maps"
"""Names of the layers."""
BY_AREA = "by area"
"""How points were drawn, in the field `drawn`; files of earlier versions, without it, have all pixels
alike."""
_DEGREES = "EPSG:4326"


@dataclass(frozen=True, eq=False)
class Sampled:
    """A sample of maps.

    Attributes:
        pixels_H, area_H, points_H: of each stratum.
        unit: `m2`, or `px` without georeference.
        stratum_N, area_N: stratum of each point, and area of its pixel.
        probability_N: with which each point's pixel was drawn.
    """

    classes: tuple[str, ...]
    strata: tuple[str, ...]
    pixels_H: NDArray[np.int64]
    area_H: NDArray[np.float64]
    mapped_area_K: NDArray[np.float64]
    unit: str
    points_H: NDArray[np.int64]
    stratum_N: NDArray[np.int64]
    pixels: Pixels
    area_N: NDArray[np.float64]
    probability_N: NDArray[np.float64]
    infos: Sequence[RasterInfo]


def write_points(sampled: Sampled, path: Path) -> None:
    """Write the GeoPackage and the form beside it.

    Raises:
        SegmenterError: a file cannot be written.
    """
    crs, xy = _places(sampled)
    pixels, strata, classes = sampled.pixels, _texts(sampled.strata), _texts(sampled.classes)
    names = _texts(shortest_ends(info.path for info in sampled.infos))
    count = len(pixels)
    of_points = {
        "id": np.arange(1, count + 1),
        "stratum": strata[sampled.stratum_N],
        "mapped": classes[pixels.mapped],
        "reference": np.full(count, None, object),
        "probability": sampled.probability_N,
        "map": names[pixels.raster],
        "row": pixels.row,
        "col": pixels.col,
        "x": xy[:, 0],
        "y": xy[:, 1],
        "pixel_area": sampled.area_N,
    }
    of_strata = {
        "stratum": strata,
        "area": sampled.area_H,
        "unit": np.full(len(strata), sampled.unit, object),
        "pixels": sampled.pixels_H,
        "points": sampled.points_H,
        "drawn": np.full(len(strata), BY_AREA, object),
    }
    unit_K = np.full(len(classes), sampled.unit, object)
    of_classes = {"class": classes, "area": sampled.mapped_area_K, "unit": unit_K}
    paths = [os.path.relpath(info.path.absolute(), path.absolute().parent) for info in sampled.infos]
    weights, images = zip(*(_origin_of(info.path) for info in sampled.infos), strict=True)
    of_maps = {"map": names, "path": _texts(paths), "weights": _texts(weights), "image": _texts(images)}
    write_whole(path.with_suffix(".qml"), label_form(sampled.classes))
    with file_aside(path) as aside:
        write_layer(aside, POINTS, of_points, shapely.to_wkb(shapely.points(xy)), "Point", crs)
        for layer, columns in ((STRATA, of_strata), (CLASSES, of_classes), (MAPS, of_maps)):
            write_layer(aside, layer, columns)


def _origin_of(path: Path) -> tuple[str, str]:
    """Return the digests of a map's weights and of its image; empty where it names none."""
    with WrittenMap(path, with_confidence=False) as one:
        return one.weights, one.image


def weights_of_maps(path: Path) -> dict[str, str]:
    """Return the fingerprint of the weights that made each sampled map, by its name in the points.

    Empty for points of earlier versions, which do not say it.

    Raises:
        DatasetError: the table cannot be read.
    """
    return _column_of_maps(path, "weights")


def images_of_maps(path: Path) -> dict[str, str]:
    """Return the digest of the image of each sampled map, as `weights_of_maps`."""
    return _column_of_maps(path, "image")


def _column_of_maps(path: Path, column: str) -> dict[str, str]:
    try:
        if MAPS not in pyogrio.list_layers(path)[:, 0]:
            return {}
        meta, _, _, values = pyogrio.raw.read(path, layer=MAPS)
        columns = dict(zip(map(str, meta["fields"]), values, strict=True))
        return {str(name): str(one or "") for name, one in zip(columns["map"], columns[column], strict=True)}
    except (*FAULTS, KeyError, ValueError) as error:
        raise DatasetError(
            f"{path}: layer {MAPS}", f"cannot be read: {error}", remedy="is it whole?"
        ) from None


def _texts(names: Sequence[str]) -> NDArray[Any]:
    return np.array([*names, None], object)[:-1]


def _places(sampled: Sampled) -> tuple[Any, NDArray[np.float64]]:
    """Return the CRS of the points, and their (N, 2) coordinates in it.

    Raises:
        DatasetError: a point has no coordinates in EPSG:4326.
    """
    infos, pixels = sampled.infos, sampled.pixels
    crs = infos[0].crs
    if not all(same_ground(info.crs, crs) for info in infos):
        crs = crs_of(_DEGREES)
    xy = np.zeros((len(pixels), 2))
    for number, info in enumerate(infos):
        of = np.flatnonzero(pixels.raster == number)
        if not len(of):
            continue
        xy[of] = centres(info, pixels.row[of], pixels.col[of], crs)
        if not np.isfinite(xy[of]).all():
            raise DatasetError(
                info.path, "has pixels without longitude and latitude", remedy="cut them off (gdalwarp)"
            )
    return crs, xy


def centres(info: RasterInfo, row: NDArray[Any], col: NDArray[Any], crs: Any) -> NDArray[np.float64]:
    """Return the (N, 2) coordinates in a CRS of the centres of a map's pixels."""
    across, down = np.asarray(col, np.float64) + 0.5, np.asarray(row, np.float64) + 0.5
    if (move := info.transform) is None:
        return np.stack([across, -down], axis=1)
    placed = np.stack([across, down], axis=1) @ np.array([[move.a, move.d], [move.b, move.e]])
    placed += (move.c, move.f)
    to = None if same_ground(info.crs, crs) else between(info.crs, crs)
    return placed if to is None else to(placed)
