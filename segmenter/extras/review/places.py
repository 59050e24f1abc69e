"""Files of places in images: a table as CSV, and polygons as GeoPackage.

Polygons are in the images' CRS, or in EPSG:4326 if they have several. Beside these, places in images without
georeference have no polygon. If all images are without, they have the coordinates that QGIS gives such an
image: the column, and the row, negative.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, counted
from segmenter.base.files import write_whole
from segmenter.base.terminal import warn
from segmenter.grid.geometry import Window
from segmenter.raster import RasterInfo
from segmenter.raster.crs_units import same_ground
from segmenter.raster.polygons import between, crs_of

_DEGREES = "EPSG:4326"
_BEGIN_FORMULAS = frozenset("=+-@＝＋－＠")
"""Also the wide forms, which spreadsheets of East Asia take for the narrow ones."""
Columns = Mapping[str, Sequence[Any]]
"""Attributes of places: name → one value each, numbers or texts."""


@dataclass(frozen=True, eq=False)
class ReviewPlace:
    """Pixels in an image.

    Attributes:
        squares: of pixels, side by side; none: all of the rectangle.
    """

    name: str
    info: RasterInfo
    window: Window
    squares: tuple[Window, ...] = ()


def write_table(places: Sequence[ReviewPlace], columns: Columns, path: Path) -> None:
    """Write a CSV with a row a place: its number, scene and rectangle of pixels, and the columns.

    Raises:
        SegmenterError: the file cannot be written.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # also names with line breaks
    rows.writerow(["rank", "scene", "row", "col", "height", "width", *columns])
    for number, (place, *values) in enumerate(zip(places, *columns.values(), strict=True), 1):
        own = place.window
        cells = [number, place.name, own.row, own.col, own.height, own.width, *values]
        rows.writerow([as_text(cell) if isinstance(cell, str) else cell for cell in cells])
    write_whole(path, text.getvalue().encode())


def as_text(cell: str) -> str:
    """Return a cell that spreadsheets show and never run: `'` stands before text that begins a formula.

    Names come with data and runs of others; https://owasp.org/www-community/attacks/CSV_Injection.
    """
    return f"'{cell}" if cell.lstrip()[:1] in _BEGIN_FORMULAS or cell[:1] in "\t\r\n" else cell


def write_polygons(
    places: Sequence[ReviewPlace], columns: Columns, path: Path, tables: Mapping[str, Columns] | None = None
) -> None:
    """Write a GeoPackage with a layer of the file's name, a polygon a place.

    Args:
        tables: further tables of the file, by name.

    Raises:
        ModuleNotFoundError: a package of the extra `vectors` is not installed.
        DatasetError: a place has no coordinates in EPSG:4326.
        SegmenterError: the file cannot be written.
    """
    import shapely

    from segmenter.extras.vector_files.writing import file_aside, write_layer

    crs = _common_crs(places)
    polygons = [
        None
        if crs is not None and None in (place.info.crs, place.info.transform)
        else shapely.union_all(
            [shapely.polygons(_corners(place, part, crs)) for part in place.squares or [place.window]]
        )
        for place in places
    ]
    if nowhere := polygons.count(None):
        warn(f"{path}: {counted(nowhere, 'place')} without a polygon, in images without georeference")
    fields = {
        "rank": np.arange(1, len(places) + 1),
        "scene": _texts([place.name for place in places]),
        **{
            side: np.array([getattr(place.window, side) for place in places], np.int64)
            for side in ("row", "col", "height", "width")
        },
        **{name: _values(values) for name, values in columns.items()},
    }
    with file_aside(path) as aside:
        write_layer(aside, path.stem, fields, np.array(shapely.to_wkb(polygons), object), "Polygon", crs)
        for layer, of in (tables or {}).items():
            write_layer(aside, layer, {name: _values(values) for name, values in of.items()})


def _values(values: Sequence[Any]) -> NDArray[Any]:
    texts = any(value is None or isinstance(value, str) for value in values)
    return _texts(values) if texts else np.asarray(values)


def _texts(values: Sequence[str | None]) -> NDArray[Any]:
    return np.array([*values, None], object)[:-1]


def _common_crs(places: Sequence[ReviewPlace]) -> Any:
    """Return the CRS of all images that have one; EPSG:4326 if there are several; None if there is none."""
    systems = [place.info.crs for place in places if place.info.crs is not None]
    if all(same_ground(crs, systems[0]) for crs in systems):
        return systems[0] if systems else None
    return crs_of(_DEGREES)


def _corners(place: ReviewPlace, own: Window, crs: Any) -> NDArray[np.float64]:
    """Return the (4, 2) corners of a window of a place.

    Raises:
        DatasetError: they have no coordinates in EPSG:4326.
    """
    move = place.info.transform
    rows, cols = (own.row, own.row_stop), (own.col, own.col_stop)
    pixels = np.array([(cols[i], rows[j]) for i, j in ((0, 0), (1, 0), (1, 1), (0, 1))], np.float64)
    if move is None:
        return pixels * (1, -1)
    placed = pixels @ np.array([[move.a, move.d], [move.b, move.e]]) + (move.c, move.f)
    to = None if same_ground(place.info.crs, crs) else between(place.info.crs, crs)
    placed = placed if to is None else to(placed)
    if not np.isfinite(placed).all():
        raise DatasetError(place.info.path, "has pixels without longitude and latitude; cut them off")
    return placed
