"""GeoPackage of sampled points: the layer `points`, and tables of strata and classes.

| layer | columns |
| --- | --- |
| `points` | `id`, `stratum`, `mapped`, `reference`, `probability`, `map`, `row, col, x, y`, `pixel_area` |
| `strata` | `stratum`, `area`, `unit`, `pixels`, `points` |
| `classes` | `class`, `area` (on the map), `unit` |

Points are the centres of their pixels, in the maps' CRS, or in EPSG:4326 if they have several. Without
georeference they have the coordinates that QGIS gives such an image: the column, and the row, negative.
`NAME.qml` beside it offers the classes as choices for `reference`, and hides what the map says.
"""

from __future__ import annotations

import warnings
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
from segmenter.extras.vectors.library import pyogrio
from segmenter.extras.vectors.writing import FAULTS, file_aside
from segmenter.raster import RasterInfo
from segmenter.raster.crs_units import same_ground
from segmenter.raster.polygons import between, crs_of

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


POINTS, STRATA, CLASSES = "points", "strata", "classes"
"""Names of the layers."""
_DEGREES = "EPSG:4326"


@dataclass(frozen=True, eq=False)
class Sampled:
    """A sample of maps.

    Attributes:
        pixels_H, area_H, points_H: of each stratum.
        unit: `m2`, or `px` without georeference.
        stratum_N, area_N: stratum of each point, and area of its pixel.
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
    infos: Sequence[RasterInfo]


def write_points(sampled: Sampled, path: Path) -> None:
    """Write the GeoPackage and the form beside it.

    Raises:
        SegmenterError: a file cannot be written.
    """
    crs, xy = _places(sampled)
    pixels, strata, classes = sampled.pixels, _texts(sampled.strata), _texts(sampled.classes)
    probability_H = sampled.points_H / sampled.pixels_H
    count = len(pixels)
    of_points = {
        "id": np.arange(1, count + 1),
        "stratum": strata[sampled.stratum_N],
        "mapped": classes[pixels.mapped],
        "reference": np.full(count, None, object),
        "probability": probability_H[sampled.stratum_N],
        "map": _texts(shortest_ends(info.path for info in sampled.infos))[pixels.raster],
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
    }
    unit_K = np.full(len(classes), sampled.unit, object)
    of_classes = {"class": classes, "area": sampled.mapped_area_K, "unit": unit_K}
    write_whole(path.with_suffix(".qml"), label_form(sampled.classes))
    with file_aside(path) as aside:
        _write(aside, POINTS, of_points, shapely.to_wkb(shapely.points(xy)), crs)
        _write(aside, STRATA, of_strata)
        _write(aside, CLASSES, of_classes)


def _texts(names: Sequence[str]) -> NDArray[Any]:
    return np.array([*names, None], object)[:-1]


def _write(
    aside: Path, layer: str, columns: dict[str, NDArray[Any]], wkb_N: Any = None, crs: Any = None
) -> None:
    if crs is None:  # which is how the maps are
        warnings.filterwarnings("ignore", message="'crs' was not provided")
    try:
        pyogrio.raw.write(
            str(aside),
            wkb_N,
            list(columns.values()),
            list(columns),
            layer=layer,
            driver="GPKG",
            geometry_type=None if wkb_N is None else "Point",
            crs=None if crs is None else crs.to_wkt(),
        )
    except FAULTS as error:
        raise OSError(str(error)) from None


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
        centres = np.stack([pixels.col[of] + 0.5, pixels.row[of] + 0.5], axis=1)
        if (move := info.transform) is None:
            xy[of] = centres * (1, -1)
            continue
        placed = centres @ np.array([[move.a, move.d], [move.b, move.e]]) + (move.c, move.f)
        to = None if same_ground(info.crs, crs) else between(info.crs, crs)
        xy[of] = placed if to is None or not len(of) else to(placed)
        if not np.isfinite(xy[of]).all():
            raise DatasetError(
                info.path, "has pixels without longitude and latitude", remedy="cut them off (gdalwarp)"
            )
    return crs, xy
