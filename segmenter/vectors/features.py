"""Polygons of a file by the box that they touch: GeoPackage, GeoJSON, shapefile, FlatGeobuf and GeoParquet.

Files with a spatial index (GeoPackage, FlatGeobuf, a shapefile with .qix) are read box by box. The others are
read once, whole, and kept with an index in memory.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from segmenter.errors import DatasetError, shortened
from segmenter.finding import VECTOR_ENDINGS
from segmenter.raster.burned import crs_of
from segmenter.vectors import geoparquet
from segmenter.vectors.geoparquet import Header
from segmenter.vectors.library import pyogrio

Box = tuple[float, float, float, float]
"""Left, bottom, right, top in the file's CRS."""

_BEGINNINGS = {".gpkg": b"SQLite format 3\0", ".fgb": b"fgb", ".shp": b"\0\0\x27\x0a", ".parquet": b"PAR1"}
_DRIVERS = {"GPKG", "GeoJSON", "ESRI Shapefile", "FlatGeobuf"}
_COMPANIONS = {".gpkg": ("-wal",), ".shp": (".dbf", ".shx", ".prj", ".cpg", ".qix")}
"""What belongs to a file: of SQLite, what a program that is at work has not brought into it yet."""
_HEAD = 64
_CONVERT = "ogr2ogr -f GPKG labels.gpkg"


@dataclass(frozen=True)
class Features:
    """Polygons as they are in the file.

    Attributes:
        shape_F: shapely geometries, of two dimensions; None where there is none.
        value_F: the attribute.
        fid_F: their numbers in the file.
    """

    shape_F: NDArray[Any]
    value_F: NDArray[Any]
    fid_F: NDArray[np.int64]

    def of(self, which: Any) -> Features:
        """Some of them."""
        return Features(self.shape_F[which], self.value_F[which], self.fid_F[which])


def files_of(path: Path) -> list[Path]:
    """A file of polygons, and those beside it that belong to it, whether they are there or not."""
    ending = path.suffix.lower()
    beside = (
        Path(f"{path}{also}") if also.startswith("-") else path.with_suffix(also)
        for also in _COMPANIONS.get(ending, ())
    )
    return [path, *beside]


class VectorFile:
    """A file of polygons; safe to use from several threads.

    Attributes:
        crs: as rasterio has it; None where neither the file nor the recipe names one.
        count: of features.
    """

    def __init__(self, path: Path, attribute: str, layer: str | None = None, crs: str | None = None) -> None:
        """Look at its header.

        Args:
            crs: of a file that does not name its own.

        Raises:
            DatasetError: it cannot be read, has no such layer or attribute, or a CRS that cannot be told.
        """
        self.path, self._attribute = path, attribute
        _check_kind(path)
        self._layer, self._lock = layer, threading.Lock()
        self._all: tuple[Features, shapely.STRtree] | None = None
        # GDAL remarks on rings without an end, which are closed here.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="pyogrio")
        self._parquet = path.suffix.lower() == ".parquet"
        with self._reading():
            header = geoparquet.header(path) if self._parquet else self._header()
        if attribute not in header.fields:
            fields = shortened(", ".join(header.fields), 200) or "none"
            raise DatasetError(
                f"{path}: has no attribute {attribute}; it has {fields}: name the one that holds the class "
                "in dataset.vector.attribute"
            )
        self.count, self._indexed = header.count, header.indexed
        text = header.crs or crs
        try:
            self.crs = None if text is None else crs_of(text)
        except ValueError as error:
            raise DatasetError(f"{path}: its CRS {shortened(text or '', 60)} is none: {error}") from None

    def _header(self) -> Header:
        layers = [str(name) for name, kind in pyogrio.list_layers(self.path) if kind is not None]
        if not layers:
            raise DatasetError(f"{self.path}: has no layer of polygons; is the file whole?")
        if self._layer is None and len(layers) > 1:
            raise DatasetError(
                f"{self.path}: has several layers, {shortened(', '.join(layers), 200)}: name one in "
                "dataset.vector.layer"
            )
        if self._layer is not None and self._layer not in layers:
            raise DatasetError(
                f"{self.path}: has no layer {self._layer}; it has {', '.join(layers) or 'none'}"
            )
        self._layer = self._layer or layers[0]
        info = pyogrio.read_info(self.path, layer=self._layer, force_feature_count=True)
        if info["driver"] not in _DRIVERS:
            raise DatasetError(f"{self.path}: is {info['driver']}, expected {', '.join(sorted(_DRIVERS))}")
        fields = tuple(str(name) for name in info["fields"])
        indexed = bool(info["capabilities"]["fast_spatial_filter"])
        return Header(fields, info["crs"], int(info["features"]), indexed)

    def within(self, box: Box) -> Features:
        """The polygons whose extent touches a box, in the order of the file.

        Raises:
            DatasetError: the file cannot be read.
        """
        if self._indexed:
            with self._reading():
                return self._read(bbox=box)
        features, tree = self._whole()
        return features.of(np.sort(tree.query(shapely.box(*box))))

    def _whole(self) -> tuple[Features, shapely.STRtree]:
        with self._lock:
            if self._all is None:
                with self._reading():
                    found = self._read()
                self._all = found, shapely.STRtree(found.shape_F)
            return self._all

    def _read(self, **how: Any) -> Features:
        if self._parquet:
            fids, wkb, values = geoparquet.read(self.path, self._attribute)
        else:
            what = {"layer": self._layer, "columns": [self._attribute], "return_fids": True}
            _, fids, wkb, columns = pyogrio.raw.read(self.path, force_2d=True, **what, **how)
            values = columns[0] if len(wkb) else np.zeros(0, object)
        shapes = shapely.force_2d(shapely.from_wkb(np.asarray(wkb, object), on_invalid="fix"))
        order = np.argsort(fids, kind="stable")  # not that of an index
        return Features(shapes, values, np.asarray(fids, np.int64)).of(order)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """What the libraries raise of a damaged file, as one line."""
        try:
            yield
        except UnicodeDecodeError:
            raise DatasetError(
                f"{self.path}: expected text in UTF-8, got other bytes; write it anew ({_CONVERT} …)"
            ) from None
        except (RuntimeError, OSError, shapely.errors.GEOSException, pa.ArrowException) as error:
            why = shortened(" ".join(str(error).split()), 200)
            raise DatasetError(
                f"{self.path}: cannot be read as polygons: {why}; is the file whole?"
            ) from None


def _check_kind(path: Path) -> None:
    """Refuse what is not of its ending: GDAL goes by the content, and some formats lead to other files.

    Raises:
        DatasetError: it is none, or cannot be opened.
    """
    ending = path.suffix.lower()
    if ending not in VECTOR_ENDINGS:
        raise DatasetError(f"{path}: expected a file of polygons ({', '.join(VECTOR_ENDINGS)})")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise DatasetError(f"{path}: cannot open it: {error.strerror}") from None
    if ending == ".geojson":
        right = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    else:
        right = head.startswith(_BEGINNINGS[ending])
    if not right:
        raise DatasetError(f"{path}: is no {ending} file by its first bytes; write it anew ({_CONVERT} …)")
