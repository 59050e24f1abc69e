"""Files of polygons, read as labels of a small image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio

from fuzz.target import Facts, digest
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.raster import RasterSpec, raster_info, write_raster

_SIDE = 24


def make_polygons(folder: Path) -> None:
    """Three polygons in each format, and the image that they lie on."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import shapely
    from pyogrio.raw import write

    place = rasterio.Affine(0.001, 0, 12, 0, -0.001, 52)
    spec = RasterSpec(crs=rasterio.CRS.from_epsg(4326), transform=place)
    write_raster(folder / "image.tif", np.zeros((_SIDE, _SIDE, 3), np.uint8), spec)
    shapes = [shapely.box(12 + 0.007 * i, 51.98, 12.005 + 0.007 * i, 51.995) for i in range(3)]
    wkb, names = shapely.to_wkb(np.array(shapes)), np.array(["a", "b", "a"], object)
    for driver, ending in (
        ("GPKG", "gpkg"),
        ("GeoJSON", "geojson"),
        ("FlatGeobuf", "fgb"),
        ("ESRI Shapefile", "shp"),
    ):
        path = folder / f"a.{ending}"
        write(path, wkb, [names], ["class"], driver=driver, geometry_type="Polygon", crs="EPSG:4326")
    geo = b'{"version": "1.1.0", "primary_column": "g", "columns": {"g": {"encoding": "WKB"}}}'
    table = pa.table({"class": list(names), "g": list(wkb)})
    pq.write_table(table.replace_schema_metadata({b"geo": geo}), folder / "a.parquet")


def read_polygons(path: Path) -> Facts:
    """As the label of the image."""
    from segmenter.extras.vector_files.features import VectorFile
    from segmenter.extras.vectors.burning import Burner
    from segmenter.extras.vectors.rule import BurnRule

    rule = BurnRule.of(
        None, ClassMap(tuple(LandCoverClass(name, (i, 0, 0), i) for i, name in enumerate("ab")))
    )
    whole = path.with_suffix(".shp") if path.suffix in (".dbf", ".shx", ".prj") else path
    burner = Burner(VectorFile(whole, rule.attribute), raster_info(path.with_name("image.tif")), rule)
    return [digest(ids) for _, ids in burner.strips()]
