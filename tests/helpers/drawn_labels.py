"""Labels drawn as polygons: files of them, and what is burned of one."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from numpy.typing import NDArray

from segmenter.extras.vectors.burning import Burner
from segmenter.extras.vectors.features import VectorFile
from segmenter.extras.vectors.rule import BurnRule
from segmenter.raster import raster_info

LEFT, TOP, ROWS, COLS = 368000.0, 5808000.0, 41, 53
"""Where `make_geotiff` lays an image, and the size of these."""
_DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON", ".fgb": "FlatGeobuf", ".shp": "ESRI Shapefile"}


def box(col: float, row: float, cols: float, rows: float) -> Any:
    """Return a rectangle of pixels of half a metre on the ground."""
    return shapely.box(LEFT + col / 2, TOP - (row + rows) / 2, LEFT + (col + cols) / 2, TOP - row / 2)


def write(path: Path, shapes: Sequence[Any], values: Sequence[Any], crs: str | None = "EPSG:25833") -> Path:
    """Write polygons with an attribute `class`."""
    raw = pytest.importorskip("pyogrio.raw")
    wkb = np.array([None if shape is None else shapely.to_wkb(shape) for shape in shapes], object)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        column = {"encoding": "WKB", "geometry_types": [], "crs": crs}
        geo = {"version": "1.0.0", "primary_column": "geometry", "columns": {"geometry": column}}
        table = pa.table({"class": list(values), "geometry": pa.array(wkb.tolist(), pa.binary())})
        pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path, compression="none")
        return path
    of_text = any(isinstance(value, str) or value is None for value in values)
    options: dict[str, Any] = {"SPATIAL_INDEX": "NO"} if path.suffix == ".fgb" and None in shapes else {}
    options |= {"driver": _DRIVERS[path.suffix], "crs": crs}
    options["geometry_type"] = "Polygon" if path.suffix == ".shp" else "Unknown"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'crs' was not provided")
        raw.write(path, wkb, [np.array(values, object if of_text else None)], ["class"], **options)
    return path


def labels_of(path: Path, image: Path, rule: BurnRule) -> NDArray[np.uint8]:
    """Return all of the label in one."""
    vector = VectorFile(path, rule.attribute, rule.layer, rule.crs)
    return np.concatenate([ids for _, ids in Burner(vector, raster_info(image), rule).strips()])
