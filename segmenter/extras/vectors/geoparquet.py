"""GeoParquet read with pyarrow: GDAL's wheels have no driver for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

_NO_CRS_SAID = "OGC:CRS84"
"""Longitude and latitude, where the metadata has no entry at all; null says that it is unknown."""


@dataclass(frozen=True)
class Header:
    """Header of a file of polygons.

    Attributes:
        fields: names of the attributes.
        crs: CRS as text; None if unknown.
        count: number of features.
        indexed: True if features in a box can be found without reading all.
    """

    fields: tuple[str, ...]
    crs: str | None
    count: int
    indexed: bool


def header(path: Path) -> Header:
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


def read(path: Path, attribute: str | None) -> tuple[NDArray[np.int64], list[bytes | None], NDArray[Any]]:
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
