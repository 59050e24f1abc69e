"""Files of polygons, written in batches under a temporary name and renamed when complete (law 8)."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from segmenter.base.errors import OutputError, SegmenterError, failing
from segmenter.base.files import check_writable, folder_aside, sync, write_whole
from segmenter.extras.vector_files.library import pyogrio
from segmenter.mapping.folder.state import OutputLocks

ENDINGS = (".gpkg", ".parquet")
_CODEC = "zstd"
_GEOPARQUET = "1.1.0"
FAULTS = tuple(getattr(pyogrio.errors, f"{what}Error") for what in ("DataSource", "Feature", "Geometry"))
"""Errors of pyogrio when it cannot write."""
pyogrio.set_gdal_config_options({"OGR_SQLITE_SYNCHRONOUS": "OFF"})  # files are synced once, when complete


@dataclass(frozen=True)
class PolygonBatch:
    """Polygons and their attributes, in the order of `FIELDS`; an unknown column is None."""

    wkb_P: NDArray[Any]
    columns: dict[str, NDArray[Any] | None]


FIELDS: dict[str, pa.DataType] = {
    "class": pa.string(),
    "class_id": pa.int32(),
    "code": pa.int32(),
    "pixels": pa.int64(),
    "area_m2": pa.float64(),
    "confidence": pa.float64(),
    "map": pa.string(),
}
"""Attributes of a polygon. `confidence` is the mean over its pixels, `map` the file it comes from."""


def check_name(path: Path) -> None:
    """Refuse a path that cannot be written.

    Raises:
        SegmenterError: the ending is wrong, or the folder is missing or not writable.
    """
    if path.suffix not in ENDINGS:
        raise SegmenterError(path, expected="a name that ends in .gpkg or .parquet", got=f"{path.suffix!r}")
    check_writable(path)


@contextlib.contextmanager
def polygon_file(path: Path, crs: Any, style: bytes = b"") -> Iterator[Callable[[PolygonBatch], None]]:
    """Yield a function that writes a batch; rename the file at the end, or remove it after an error.

    Args:
        crs: CRS of all polygons, as a rasterio CRS; or None.
        style: document by which QGIS shows the polygons: in a GeoPackage, beside other files; empty: none.

    Raises:
        SegmenterError: the ending is wrong, the folder is not writable (OutputError: the file is not), or
            another process is writing the file.
    """
    check_name(path)
    write = _geopackage if path.suffix == ".gpkg" else _geoparquet
    with file_aside(path) as aside:
        with write(aside, path.stem, crs) as batch:
            yield batch
        if style and path.suffix == ".gpkg":
            _add_style(aside, path.stem, style)
    if style and path.suffix != ".gpkg":
        write_whole(path.with_suffix(".qml"), style)


_STYLE = {
    "f_table_catalog": "",
    "f_table_schema": "",
    "f_table_name": "",
    "f_geometry_column": "geom",
    "styleName": "classes",
    "styleQML": "",
    "styleSLD": "",
    "useAsDefault": True,
    "description": "",
    "owner": "",
    "ui": "",
    "update_time": np.datetime64("2000-01-01T00:00:00", "ms"),
}
"""Columns of the table `layer_styles`, in which QGIS looks for the default style of a layer."""


def _add_style(path: Path, layer: str, style: bytes) -> None:
    """Add a default style of a layer to a GeoPackage."""
    row = {**_STYLE, "f_table_name": layer, "styleQML": style.decode()}
    columns = {
        name: np.array([value], object if isinstance(value, str) else None) for name, value in row.items()
    }
    write_layer(path, "layer_styles", columns, layer_options={"FID": "id"})


def write_layer(
    path: Path,
    layer: str,
    columns: Mapping[str, NDArray[Any]],
    wkb_N: Any = None,
    kind: str | None = None,
    crs: Any = None,
    **more: Any,
) -> None:
    """Write a layer of a GeoPackage.

    Args:
        wkb_N: geometries of a `kind`, such as "Polygon"; None: a table without.
        more: further arguments of pyogrio.

    Raises:
        OSError: it cannot be written.
    """
    if crs is None:  # which is how the map is
        warnings.filterwarnings("ignore", message="'crs' was not provided")
    system = None if crs is None else crs.to_wkt()
    options = {"layer": layer, "driver": "GPKG", "geometry_type": kind, "crs": system, **more}
    try:
        pyogrio.raw.write(str(path), wkb_N, list(columns.values()), list(columns), **options)
    except FAULTS as error:
        raise OSError(str(error)) from None


@contextlib.contextmanager
def file_aside(path: Path) -> Iterator[Path]:
    """Yield a path to write to; rename the file at the end, or remove it after an error.

    Raises:
        SegmenterError: the folder is not writable (OutputError: the file is not), or another process writes
            the file.
    """
    locks = OutputLocks([path])
    with failing(OutputError, path, "cannot write it", "is the disk full?"), folder_aside(path) as folder:
        locks.take()
        try:
            aside = folder / path.name
            yield aside
            sync(aside)
            aside.replace(path)
        finally:
            locks.release()


@contextlib.contextmanager
def _geopackage(aside: Path, layer: str, crs: Any) -> Iterator[Callable[[PolygonBatch], None]]:
    began = False

    def batch(found: PolygonBatch) -> None:
        nonlocal began
        filled = {name: _fill_column(found, name) for name in FIELDS}
        columns = {name: values for name, (values, _) in filled.items()}
        missing = [without for _, without in filled.values()]
        write_layer(aside, layer, columns, found.wkb_P, "Polygon", crs, field_mask=missing, append=began)
        began = True

    yield batch
    if not began:
        batch(PolygonBatch(np.zeros(0, object), dict.fromkeys(FIELDS)))


def _fill_column(batch: PolygonBatch, name: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return a column, and a mask of missing values."""
    values = batch.columns[name]
    if values is not None:
        return values, None
    kind = FIELDS[name]
    empty: Any = object if pa.types.is_string(kind) else kind.to_pandas_dtype()
    count = len(batch.wkb_P)
    return np.zeros(count, empty), np.ones(count, np.bool_)


@contextlib.contextmanager
def _geoparquet(aside: Path, layer: str, crs: Any) -> Iterator[Callable[[PolygonBatch], None]]:
    described = {"encoding": "WKB", "geometry_types": ["Polygon"], "crs": _projjson(crs)}
    columns = {"geometry": described}
    geo = {"version": _GEOPARQUET, "primary_column": "geometry", "columns": columns}
    schema = pa.schema(
        [*FIELDS.items(), ("geometry", pa.binary())], metadata={"geo": json.dumps(geo), "layer": layer}
    )
    with pq.ParquetWriter(aside, schema, compression=_CODEC) as writer:

        def batch(found: PolygonBatch) -> None:
            count = len(found.wkb_P)
            arrays = [
                pa.nulls(count, kind) if (values := found.columns[name]) is None else pa.array(values, kind)
                for name, kind in FIELDS.items()
            ]
            wkb = pa.array(found.wkb_P.tolist(), pa.binary())
            writer.write_table(pa.Table.from_arrays([*arrays, wkb], schema=schema))

        yield batch


def _projjson(crs: Any) -> Any:
    """Return a CRS for GeoParquet; null means unknown, a missing entry would mean longitude and latitude."""
    if crs is None:
        return None
    return crs.to_dict(projjson=True)
