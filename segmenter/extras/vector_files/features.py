"""Polygons of a file by bounding box: GeoPackage, GeoJSON, shapefile, FlatGeobuf and GeoParquet.

Files with a spatial index (GeoPackage, FlatGeobuf, a shapefile with .qix) are read box by box. Other files
are read once, completely, and kept in memory with an index.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, failing, shorten
from segmenter.base.files import VECTOR_ENDINGS
from segmenter.extras.vector_files.database import database
from segmenter.extras.vector_files.library import pyogrio
from segmenter.raster.polygons import crs_of

_NO_CRS_SAID = "OGC:CRS84"
"""Longitude and latitude, where the metadata has no entry at all; null says that it is unknown."""


@dataclass(frozen=True)
class Header:
    """Header of a file of polygons.

    Attributes:
        crs: CRS as text; None if unknown.
        indexed: True if features in a box can be found without reading all.
    """

    fields: tuple[str, ...]
    crs: str | None
    count: int
    indexed: bool


def parquet_header(path: Path) -> Header:
    """Read the header of a file.

    Raises:
        OSError, ArrowException: the file is damaged, no GeoParquet, or has no WKB.
    """
    geometry, described, schema = _geometry(path)
    if (encoding := described.get("encoding")) != "WKB":
        raise OSError(f"its geometries are {encoding}, expected WKB")
    crs = described.get("crs", _NO_CRS_SAID)
    text = crs if crs is None or isinstance(crs, str) else json.dumps(crs)
    fields = tuple(name for name in schema.names if name != geometry)
    return Header(fields, text, int(pq.read_metadata(path).num_rows), False)


def read_parquet(
    path: Path, attribute: str | None
) -> tuple[NDArray[np.int64], list[bytes | None], NDArray[Any]]:
    """Read row numbers, geometries as WKB and an attribute of all features; None: no attribute.

    Raises:
        OSError, ArrowException: the file is damaged.
    """
    geometry, _, _ = _geometry(path)
    table = pq.read_table(path, columns=[*([] if attribute is None else [attribute]), geometry])
    values = np.full(table.num_rows, None, object)
    if attribute is not None:
        values[:] = table.column(attribute).to_pylist()
    return np.arange(table.num_rows), table.column(geometry).to_pylist(), values


def _geometry(path: Path) -> tuple[str, dict[str, Any], pa.Schema]:
    """Return the name of the geometry column, its metadata, and the schema."""
    schema = pq.read_schema(path)
    text = (schema.metadata or {}).get(b"geo")
    try:
        geo = json.loads(text or b"null")
        name = str(geo["primary_column"])
        return name, dict(geo["columns"][name]), schema
    except (ValueError, TypeError, KeyError):
        raise OSError("it has no metadata `geo` as GeoParquet has them") from None


Box = tuple[float, float, float, float]
"""Left, bottom, right, top in the file's CRS."""

_BEGINNINGS = {".gpkg": b"SQLite format 3\0", ".fgb": b"fgb", ".shp": b"\0\0\x27\x0a", ".parquet": b"PAR1"}
_DRIVERS = {"GPKG", "GeoJSON", "ESRI Shapefile", "FlatGeobuf"}
_COMPANIONS = {".gpkg": ("-wal",), ".shp": (".dbf", ".shx", ".prj", ".cpg", ".qix")}
"""Endings of files that belong to another; SQLite's hold changes that are not in the database yet."""
_HEAD = 64
_CONVERT = "ogr2ogr -f GPKG labels.gpkg"
_AREAS = 3, 6, 7
"""Shapely's numbers of polygons, multipolygons and collections."""
_BATCH = 1 << 17
"""Features that are looked at together."""
_MOST_DEGREES = 400.0
"""More than any longitude; a circle has 400 gon, too."""
_DEFAULT = "EPSG:4326"
"""CRS of a GeoJSON that names none; GDAL takes it also for one that it does not know."""
_SAYS_DEFAULT = re.compile(r"(4326|CRS:?84h?|WGS ?84)$", re.IGNORECASE)
_MOST_JSON = 1 << 20
"""Bytes before and behind the features of a GeoJSON."""


@dataclass(frozen=True)
class Features:
    """Polygons as stored in a file.

    Attributes:
        shape_F: two-dimensional shapely geometries, or None.
    """

    shape_F: NDArray[Any]
    value_F: NDArray[Any]
    fid_F: NDArray[np.int64]

    def of(self, which: Any) -> Features:
        """Return a selection of the polygons."""
        return Features(self.shape_F[which], self.value_F[which], self.fid_F[which])


def files_of(path: Path) -> list[Path]:
    """Return a file of polygons and its companion files, existing or not."""
    ending = path.suffix.lower()
    beside = (
        Path(f"{path}{also}") if also.startswith("-") else path.with_suffix(also)
        for also in _COMPANIONS.get(ending, ())
    )
    return [path, *beside]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert errors of the libraries about a damaged file to one line."""
    try:
        yield
    except UnicodeDecodeError:
        raise DatasetError(
            path, expected="text in UTF-8", got="other bytes", remedy=f"write it anew ({_CONVERT} …)"
        ) from None
    except (RuntimeError, OSError, shapely.errors.GEOSException, pa.ArrowException) as error:
        why = shorten(" ".join(str(error).split()), 200)
        raise DatasetError(path, f"cannot be read as polygons: {why}", remedy="is the file whole?") from None


def area_layers(path: Path) -> list[str]:
    """Return the layers of polygons of a file; of one that has a single one, or none by kind, an empty name.

    Raises:
        DatasetError: the file cannot be read.
    """
    if _is_blank(path):
        return [""]
    check_kind(path)
    if path.suffix.lower() == ".parquet":
        return [""]
    with _reading(path):
        return _layers(path)[1] or [""]


def _layers(path: Path) -> tuple[list[str], list[str]]:
    """Return the layers with geometries, and those of polygons, or all if none is."""
    kinds = {str(name): str(kind) for name, kind in pyogrio.list_layers(path) if kind is not None}
    areas = [name for name, kind in kinds.items() if "Polygon" in kind or kind == "Unknown"]
    return list(kinds), areas or list(kinds)


class VectorFile:
    """A file of polygons; safe for several threads.

    Attributes:
        crs: CRS of rasterio; None if neither the file nor the recipe names one.
    """

    def __init__(
        self, path: Path, attribute: str | None, layer: str | None = None, crs: str | None = None
    ) -> None:
        """Read the header of the file.

        Args:
            attribute: attribute to read; None: none. A file without features need not have it.

        Raises:
            DatasetError: the file is unreadable, lacks the layer or attribute, or has an ambiguous CRS.
        """
        self.path, self._attribute = path, attribute
        self._blank = _is_blank(path)
        if not self._blank:
            check_kind(path)
        self._layer, self._lock = layer, threading.Lock()
        self._all: tuple[Features, shapely.STRtree] | None = None
        self._remark: str | None = None
        # GDAL remarks on rings without an end, which are closed here.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="pyogrio")
        self._parquet = path.suffix.lower() == ".parquet"
        with _reading(self.path):
            header = parquet_header(path) if self._parquet else self._header()
        if attribute is not None and header.count and attribute not in header.fields:
            fields = shorten(", ".join(header.fields), 200) or "none"
            raise DatasetError(
                path,
                f"has no attribute {attribute}",
                remedy=f"it has {fields}: name the one that holds the class in dataset.vector.attribute",
            )
        self.count, self._indexed, self._fields = header.count, header.indexed, header.fields
        text, self._unsaid = header.crs or crs, ""
        if path.suffix.lower() == ".geojson" and text is None:
            text, self._unsaid = _DEFAULT, "; a GeoJSON without a member crs is taken for EPSG:4326"
        try:
            self.crs = None if text is None else crs_of(text)
        except ValueError as error:
            raise DatasetError(path, f"its CRS {shorten(text or '', 60)} is none: {error}") from None

    def _header(self) -> Header:
        if self._blank:
            return Header((), None, 0, False)
        if self.path.suffix.lower() == ".gpkg":
            check_tables(self.path, self._layer)
        layers, areas = _layers(self.path)
        if not layers:
            raise DatasetError(self.path, "has no layer of polygons", remedy="is the file whole?")
        if self._layer is None and len(areas) > 1:
            raise DatasetError(
                self.path,
                f"has several layers, {shorten(', '.join(areas), 200)}: name one in dataset.vector.layer",
            )
        if self._layer is not None and self._layer not in layers:
            raise DatasetError(
                self.path, f"has no layer {self._layer}", remedy=f"it has {', '.join(layers) or 'none'}"
            )
        self._layer = self._layer or areas[0]
        info = pyogrio.read_info(self.path, layer=self._layer, force_feature_count=True)
        if info["driver"] not in _DRIVERS:
            raise DatasetError(
                self.path,
                f"is {info['driver']}, expected {', '.join(sorted(_DRIVERS))}",
                remedy=f"write it anew ({_CONVERT} {self.path.name})",
            )
        fields = tuple(str(name) for name in info["fields"])
        indexed = bool(info["capabilities"]["fast_spatial_filter"])
        crs = _crs_of_geojson(self.path, info["crs"]) if info["driver"] == "GeoJSON" else info["crs"]
        return Header(fields, crs, int(info["features"]), indexed)

    def attributes(self) -> dict[str, NDArray[Any]]:
        """Return the values of each attribute.

        Raises:
            DatasetError: the file cannot be read.
        """
        with _reading(self.path):
            if self._parquet:
                return {name: read_parquet(self.path, name)[2] for name in self._fields}
            if not self.count:
                return {}
            meta, _, _, columns = pyogrio.raw.read(self.path, layer=self._layer, read_geometry=False)
            return dict(zip(meta["fields"].tolist(), columns, strict=True))

    def remark(self) -> str:
        """Check all features once; return a line on those without an area, empty if all have one.

        Raises:
            DatasetError: a coordinate is not finite or no valid degree, or the file cannot be read.
        """
        with self._lock:
            if self._remark is None:
                with _reading(self.path):
                    self._remark = self._look_through()
        return self._remark

    def _look_through(self) -> str:
        bare, first = 0, -1
        for features in self._batches():
            shapes = features.shape_F
            self._check_corners(features)
            areas = np.isin(shapely.get_type_id(shapes), _AREAS) | shapely.is_missing(shapes)
            without = areas & ~(shapely.area(shapes) > 0)
            mended = shapely.make_valid(shapes[without], method="structure")  # areas of loops may cancel
            without[without] = ~(shapely.area(mended) > 0)
            if without.any() and not bare:
                first = int(features.fid_F[np.argmax(without)])
            bare += int(without.sum())
        if not bare:
            return ""
        return (
            f"{self.path}: {bare} of {self.count} features have no area (no geometry, or a line), the first "
            f"is feature {first}; they are no labels"
        )

    def _check_corners(self, features: Features) -> None:
        xy, feature_V = shapely.get_coordinates(features.shape_F, return_index=True)
        wrong = ~np.isfinite(xy).all(axis=1)
        if wrong.any():
            fid = features.fid_F[feature_V[np.argmax(wrong)]]
            raise DatasetError(
                self.path, f"feature {fid} has a corner whose coordinates are no numbers; mend or remove it"
            )
        if self.crs is not None and self.crs.is_geographic:
            wrong = (np.abs(xy) > _MOST_DEGREES).any(axis=1)
            if wrong.any():
                i = int(np.argmax(wrong))
                raise DatasetError(
                    self.path,
                    f"feature {features.fid_F[feature_V[i]]} has a corner at {xy[i, 0]:.10g}, "
                    f"{xy[i, 1]:.10g}, expected degrees of {self.crs}{self._unsaid}",
                    remedy="say which CRS it is (ogr2ogr -a_srs; of a GeoJSON without one: "
                    "dataset.vector.crs)",
                )

    def _batches(self) -> Iterator[Features]:
        """Yield all features in batches, without their attribute."""
        if not self._indexed:
            yield self._all_features()
            return
        what: dict[str, Any] = {"layer": self._layer, "columns": [], "return_fids": True, "force_2d": True}
        for first in range(0, self.count, _BATCH):
            _, fids, wkb, _ = pyogrio.raw.read(self.path, skip_features=first, max_features=_BATCH, **what)
            yield Features(_shapes(wkb), np.zeros(len(wkb), object), np.asarray(fids, np.int64))

    def value_hint(self, value: Any) -> str:
        """Return a hint for a text that names no class: its encoding may be unknown."""
        ascii_alone = not isinstance(value, str) or value.isascii()
        if ascii_alone or self.path.suffix.lower() != ".shp" or self.path.with_suffix(".cpg").exists():
            return ""
        return (
            f"; if the text looks wrong: the shapefile does not tell its encoding, write it (UTF-8, GBK, …) "
            f"into {self.path.with_suffix('.cpg').name} beside it"
        )

    def within(self, box: Box) -> Features:
        """Return the polygons whose extent touches a box, in the order of the file.

        Raises:
            DatasetError: the file cannot be read.
        """
        self.remark()
        if self._indexed:
            with _reading(self.path):
                return self._read(bbox=box)
        features, tree = self._all_with_tree()
        return features.of(np.sort(tree.query(shapely.box(*box))))

    def _all_with_tree(self) -> tuple[Features, shapely.STRtree]:
        with self._lock, _reading(self.path):
            features = self._all_features()
            assert self._all is not None
            return features, self._all[1]

    def _all_features(self) -> Features:
        if self._all is None:
            features = self._read()
            self._all = features, shapely.STRtree(features.shape_F)
        return self._all[0]

    def _read(self, **how: Any) -> Features:
        if self._parquet:
            fids, wkb, values = read_parquet(self.path, self._attribute)
        elif not self.count:
            fids, wkb, values = np.zeros(0, np.int64), [], np.zeros(0, object)
        else:
            wanted = [] if self._attribute is None else [self._attribute]
            what = {"layer": self._layer, "columns": wanted, "return_fids": True}
            _, fids, wkb, columns = pyogrio.raw.read(self.path, force_2d=True, **what, **how)
            values = columns[0] if len(columns) else np.full(len(wkb), None, object)
        shapes = _shapes(np.asarray(wkb, object))
        order = np.argsort(fids, kind="stable")  # not that of an index
        return Features(shapes, values, np.asarray(fids, np.int64)).of(order)


def _shapes(wkb_F: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):  # of corners that are no numbers
        return np.asarray(shapely.force_2d(shapely.from_wkb(wkb_F, on_invalid="fix")), object)


def check_tables(path: Path, layer: str | None) -> None:
    """Refuse views in a GeoPackage: reading a view may take forever, and GDAL reads it before any check.

    Raises:
        DatasetError: a layer, or a table that describes layers, is a view or is computed.
        OSError: the database is incomplete.
    """
    try:
        with database(path) as file:
            listed = file.execute("PRAGMA main.table_list").fetchall()
            views = {str(name).lower() for _, name, kind, *_ in listed if kind == "view"}
            asked = {name for name in views if name.startswith(("gpkg_", "rtree_", "sqlite_"))}
            if not asked and views:
                wanted = "SELECT table_name FROM gpkg_contents WHERE data_type = 'features'"
                layers = [layer] if layer else [name for (name,) in file.execute(wanted)]
                asked = views & {str(name).lower() for name in layers}
    except sqlite3.Error as error:
        raise OSError(str(error)) from None
    if asked:
        name = shorten(min(asked), 60)
        raise DatasetError(
            path,
            f"{name} is a view, expected a table",
            remedy=f"write it as one ({_CONVERT} {path.name} {name}), or name a table in "
            "dataset.vector.layer",
        )


def _crs_of_geojson(path: Path, told: str | None) -> str | None:
    """Return the CRS of a GeoJSON file as GDAL reports it; None if it names none.

    Raises:
        DatasetError: the file names a CRS that GDAL does not know and would replace by the default.
    """
    if told != _DEFAULT:
        return told
    content = path.read_bytes()
    start, end = content.find(b'"features"'), content.rfind(b"]")
    if start >= 0 and max(start, len(content) - end) <= _MOST_JSON:
        content = content[:start] + b'"features":[' + content[end:]
    elif len(content) > 2 * _MOST_JSON:
        return told
    try:
        named = json.loads(content.decode("utf-8-sig")).get("crs")
    except (ValueError, RecursionError, AttributeError):
        return told  # not as expected: GDAL has read it
    if named is None:
        return None
    text = _name_in(named)
    if not _SAYS_DEFAULT.search(text):
        raise DatasetError(
            path,
            f"its member crs names {shorten(text, 60)!r}, which is no CRS that is known",
            remedy="write it as urn:ogc:def:crs:EPSG::NUMBER, or leave it out and set dataset.vector.crs",
        )
    return told


def _name_in(member: Any) -> str:
    """Return the name in a GeoJSON member `crs` of any form."""
    while isinstance(member, dict):
        keys = [key for key in ("properties", "name", "urn", "code", "href") if key in member]
        if not keys:
            break
        member = member[keys[0]]
    return str(member)


def _is_blank(path: Path) -> bool:
    """Return whether a file is a GeoJSON of no byte, as some write an image without polygons."""
    return path.suffix.lower() == ".geojson" and path.is_file() and not path.stat().st_size


def check_kind(path: Path) -> None:
    """Refuse a file whose content does not match its ending: some formats open further files.

    Raises:
        DatasetError: content and ending do not match, or the file cannot be opened.
    """
    ending = path.suffix.lower()
    if ending not in VECTOR_ENDINGS:
        raise DatasetError(path, expected=f"a file of polygons ({', '.join(VECTOR_ENDINGS)})")
    with failing(DatasetError, path, "cannot open it"), path.open("rb") as file:
        head = file.read(_HEAD)
    if ending == ".geojson":
        right = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    else:
        right = head.startswith(_BEGINNINGS[ending])
    if not right:
        raise DatasetError(path, f"is no {ending} file by its first bytes; write it anew ({_CONVERT} …)")
