"""Polygons that cannot be labels are refused by feature, or counted: none is dropped in silence."""

import json
import sqlite3
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from rasterio.warp import transform

from segmenter.base.errors import DatasetError, LabelError
from segmenter.extras.vectors.features import VectorFile
from segmenter.extras.vectors.rule import BurnRule
from segmenter.grid.labels import ClassMap, LandCoverClass
from tests.helpers.drawn_labels import COLS, LEFT, ROWS, TOP, box, labels_of
from tests.helpers.drawn_labels import write as write_values
from tests.helpers.refusals import refused

CLASSES = ClassMap(tuple(LandCoverClass(name, (i, 9, 9), i) for i, name in enumerate("ab")))
RULE = BurnRule(CLASSES, "class", {}, outside="b")
FORMATS = ("gpkg", "geojson", "shp", "fgb", "parquet")


@pytest.fixture
def image(make_geotiff: Callable[..., Path]) -> Path:
    return make_geotiff("i.tif", np.ones((ROWS, COLS, 3), np.uint8))


def write(path: Path, shapes: Sequence[Any], crs: str | None = "EPSG:25833", value: str = "a") -> Path:
    return write_values(path, shapes, [value] * len(shapes), crs)


def burned(path: Path, image: Path, rule: BurnRule = RULE) -> Any:
    return labels_of(path, image, rule)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_corner_of_no_number_is_named(ending: str, bad: float, image: Path, tmp_path: Path) -> None:
    crs, x, y = ("EPSG:4326", 12.5, 52.25) if ending == "geojson" else ("EPSG:25833", LEFT + 3.125, TOP - 3)
    shapes = [shapely.box(x + i, y - 1, x + i + 0.75, y) for i in range(2)]
    path = write(tmp_path / f"x.{ending}", shapes, crs)
    content, mark = path.read_bytes(), x + 1
    number = json.dumps(mark).encode() if ending == "geojson" else struct.pack("<d", mark)
    assert number in content
    text = {"nan": b"NaN", "-inf": b"-1e999"}[str(bad)]
    path.write_bytes(content.replace(number, text if ending == "geojson" else struct.pack("<d", bad)))
    with refused(DatasetError, where=path.name):
        burned(path, image)


@pytest.mark.parametrize("far", [2e5, 2e8, 2e9, 1e15])
def test_a_far_polygon_is_burned_where_it_covers_the_image(far: float, image: Path, tmp_path: Path) -> None:
    expected = (np.indices((ROWS, COLS))[1] < 10).astype(np.uint8)
    path = write(tmp_path / "x.gpkg", [box(10, -5, far, ROWS + 10)])
    np.testing.assert_array_equal(burned(path, image), expected)


def test_a_polygon_that_reaches_far_in_another_zone_covers_the_image(image: Path, tmp_path: Path) -> None:
    rows, cols = np.indices((ROWS, COLS)) + 0.5
    x, y = (LEFT + cols / 2).ravel(), (TOP - rows / 2).ravel()
    xs, ys = transform("EPSG:25833", "EPSG:25832", x, y)
    shape = shapely.box(min(xs) - 50, min(ys) - 50, min(xs) + 2e5, max(ys) + 50)
    assert not burned(write(tmp_path / "x.gpkg", [shape], "EPSG:25832"), image).any()


@pytest.mark.parametrize("ending", FORMATS)
def test_features_without_an_area_are_counted(ending: str, image: Path, tmp_path: Path) -> None:
    square = [(LEFT + x, TOP - y) for x, y in ((2, 2), (2, 9), (9, 9), (9, 2), (2, 2))]
    line = shapely.Polygon([square[0], square[1], square[0], square[0]])
    nothing = [None, line, shapely.Polygon(square, [square])]
    if ending != "shp":  # which has one kind of empty geometry, and no polygon on its hole
        nothing += [shapely.Polygon(), shapely.MultiPolygon([line, line])]
    good = box(3, 3, 9, 9)
    file = VectorFile(write(tmp_path / f"x.{ending}", [good, *nothing, good]), "class")
    assert f" {len(nothing)} of {len(nothing) + 2} features have no area" in file.remark()
    assert VectorFile(write(tmp_path / f"y.{ending}", [good]), "class").remark() == ""
    found = burned(tmp_path / f"x.{ending}", image)
    np.testing.assert_array_equal(found, burned(tmp_path / f"y.{ending}", image))


def test_what_a_collection_holds_is_named(image: Path, tmp_path: Path) -> None:
    mixed = shapely.GeometryCollection([box(3, 3, 9, 9), shapely.Point(LEFT + 1, TOP - 1)])
    path = write(tmp_path / "x.gpkg", [mixed])
    with refused(DatasetError, fault="1 is a GeometryCollection"):
        burned(path, image)


def geojson(path: Path, member: Any, shape: Any) -> Path:
    geometry = shapely.geometry.mapping(shape)
    feature = {"type": "Feature", "properties": {"class": "a", "crs": "no"}, "geometry": geometry}
    document = {"type": "FeatureCollection", "features": [feature]}
    path.write_text(json.dumps(document if member == "absent" else {**document, "crs": member}))
    return path


def named(text: Any) -> dict[str, Any]:
    return {"type": "name", "properties": {"name": text}}


UNKNOWN = [
    named("urn:ogc:def:crs:EPSG::999999"),
    named("/etc/passwd"),
    named("+proj=pipeline"),
    {"type": "link", "properties": {"href": "http://127.0.0.1:9/crs"}},
    "EPSG:25833",
    {"type": "name", "properties": {}},
]


@pytest.mark.parametrize("member", UNKNOWN)
def test_a_geojson_whose_crs_nobody_knows_is_refused(member: Any, tmp_path: Path) -> None:
    with refused(DatasetError, fault="member crs"):
        VectorFile(geojson(tmp_path / "x.geojson", member, shapely.box(12, 52, 13, 53)), "class")


@pytest.mark.parametrize(
    "member", ["absent", None, named("urn:ogc:def:crs:OGC:1.3:CRS84"), named("EPSG:4326")]
)
def test_a_geojson_in_degrees_is_read_as_such(member: Any, tmp_path: Path) -> None:
    file = VectorFile(geojson(tmp_path / "x.geojson", member, shapely.box(12, 52, 13, 53)), "class")
    assert file.crs.to_epsg() == 4326
    assert file.remark() == ""


def test_a_geojson_in_metres_without_a_crs_needs_one(image: Path, tmp_path: Path) -> None:
    path = geojson(tmp_path / "x.geojson", "absent", box(3, 3, 9, 9))
    with refused(DatasetError, remedy="dataset.vector.crs"):
        burned(path, image)
    right = burned(path, image, BurnRule(CLASSES, "class", {}, outside="b", crs="EPSG:25833"))
    np.testing.assert_array_equal(right, burned(write(tmp_path / "y.gpkg", [box(3, 3, 9, 9)]), image))


def test_text_of_an_encoding_that_a_shapefile_does_not_tell(image: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "x.shp", [box(3, 3, 9, 9)], value="ÄÖ")
    path.with_suffix(".cpg").unlink()
    with pytest.raises(LabelError, match=r"into x\.cpg"):
        burned(path, image)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT "


def changed(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as file:
        found = file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for statement in (*(f'DROP TRIGGER "{name}"' for (name,) in found), *statements):
            file.execute(statement)
    file.close()
    return path


LISTED = (
    "INSERT INTO gpkg_contents(table_name, data_type, srs_id) VALUES('v', 'features', 25833)",
    "INSERT INTO gpkg_geometry_columns VALUES('v', 'geom', 'POLYGON', 25833, 0, 0)",
)


@pytest.mark.parametrize("layer", ["v", "V", None])
def test_a_layer_that_is_a_view_is_refused_before_any_row_is_read(layer: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gpkg", [box(3, 3, 9, 9)])
    view = f"CREATE VIEW v AS {ENDLESS} c.x AS fid, t.geom, t.class FROM c, x t"
    changed(path, view, *LISTED)
    with refused(DatasetError, fault="v is a view"):
        VectorFile(path, "class", layer)
    assert VectorFile(path, "class", "x").count == 1


@pytest.mark.parametrize("table", ["gpkg_contents", "gpkg_geometry_columns", "gpkg_ogr_contents"])
def test_tables_of_a_geopackage_that_are_views_are_refused(table: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gpkg", [box(3, 3, 9, 9)])
    changed(path, f"ALTER TABLE {table} RENAME TO z", f"CREATE VIEW {table} AS {ENDLESS} z.* FROM z, c")
    with pytest.raises(DatasetError, match=f"{table} is a view"):
        VectorFile(path, "class")
