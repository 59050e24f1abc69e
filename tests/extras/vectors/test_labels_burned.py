"""Polygons as labels: of the polygon on a pixel's centre; what cannot be one is refused, or counted."""

import json
import sqlite3
import struct
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rasterio.warp import transform

from segmenter.base.errors import DatasetError, LabelError, SegmenterError
from segmenter.config.datasets import VectorLabels
from segmenter.extras.vector_files.features import VectorFile
from segmenter.extras.vectors import burning
from segmenter.extras.vectors.burning import Burner, Placed
from segmenter.extras.vectors.rule import BurnRule
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap, LandCoverClass
from segmenter.grid.windows import row_strips
from segmenter.raster import RasterSpec, raster_info, write_raster
from tests.helpers.maps import Make
from tests.helpers.refusals import refused

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


def labels(path: Path, image: Path, rule: BurnRule | None = None) -> NDArray[np.uint8]:
    """Return all of the label in one."""
    rule = rule or RULE
    vector = VectorFile(path, rule.attribute, rule.layer, rule.crs)
    return np.concatenate([ids for _, ids in Burner(vector, raster_info(image), rule).strips()])


NAMES = ("water", "Wald ¼", "road")
CODES = (7, 2, 300)
CLASSES = ClassMap(
    tuple(LandCoverClass(n, (i, 9, 9), c) for i, (n, c) in enumerate(zip(NAMES, CODES, strict=True)))
)
RULE = BurnRule(CLASSES, "class", {}, order=("road", "water", "Wald ¼"))


def triangles(rng: Any, count: int, size: Size) -> list[Any]:
    """Triangles, whose corners lie on whole and half pixels: many edges go through centres of pixels."""
    span = np.array([size.width, size.height])
    points = rng.integers(-8, 2 * span + 8, (count, 3, 2)) / 2
    return [shapely.Polygon(each) for each in points]


def placed(shapes: Sequence[Any], kinds: Sequence[int]) -> Placed:
    return Placed(np.array(shapes, object), np.array(kinds, np.uint8), np.arange(len(shapes)))


def burner(rule: BurnRule) -> Burner:
    found = Burner.__new__(Burner)
    found._rule, found.any_covered = rule, False
    return found


@given(st.integers(0, 10**6), st.integers(1, 15), st.booleans())
@settings(max_examples=30, deadline=None)
def test_strips_do_not_show(seed: int, rows: int, all_touched: bool) -> None:
    rng = np.random.default_rng(seed)
    size = Size(*(int(n) for n in rng.integers(1, 45, 2)))
    found = placed(triangles(rng, 9, size), rng.integers(0, 3, 9).tolist())
    one = burner(replace(RULE, all_touched=all_touched))
    whole = one.ids(found, Window.of(size))
    strips = [one.ids(found, window) for window in row_strips(size, rows * size.width)]
    np.testing.assert_array_equal(np.concatenate(strips), whole)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_pixel_has_the_class_that_lies_above_on_its_centre(seed: int) -> None:
    """By shapely, pixel by pixel; corners off the grid, so that no edge goes through a centre."""
    rng = np.random.default_rng(seed)
    size = Size(*(int(n) for n in rng.integers(3, 20, 2)))
    shapes = [shapely.affinity.translate(each, 0.13, 0.29) for each in triangles(rng, 5, size)]
    kinds = rng.choice([0, 1, 2, IGNORE], 5).astype(int)
    rows, cols = np.indices((size.height, size.width))
    inside = np.array([shapely.contains_xy(shapely.make_valid(s), cols + 0.5, rows + 0.5) for s in shapes])
    expected = np.full(rows.shape, 1, np.uint8)
    for kind in (1, 0, 2, IGNORE):  # the order from below
        for mask in inside[kinds == kind]:
            expected[mask] = kind
    found = burner(replace(RULE, outside="Wald ¼")).ids(placed(shapes, kinds.tolist()), Window.of(size))
    np.testing.assert_array_equal(found, expected)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_pixel_is_touched_where_a_polygon_has_a_part_of_it(seed: int) -> None:
    """By shapely: the area that a polygon and the pixel have in common."""
    rng = np.random.default_rng(seed)
    size = Size(*(int(n) for n in rng.integers(3, 14, 2)))
    shapes = [shapely.affinity.translate(each, *rng.choice([0, 0.13], 2)) for each in triangles(rng, 3, size)]
    shapes = [each for each in shapes if each.area]
    rows, cols = np.indices((size.height, size.width))
    cells = shapely.box(cols, rows, cols + 1, rows + 1)
    common = [shapely.area(shapely.intersection(cells, one)) > 1e-9 for one in shapes]
    found = burner(replace(RULE, all_touched=True)).ids(placed(shapes, [0] * len(shapes)), Window.of(size))
    np.testing.assert_array_equal(found == 0, np.any(common, axis=0))


@pytest.fixture
def image(make_geotiff: Make) -> Path:
    """41 by 53 pixels of half a metre."""
    return make_geotiff("a.tif", np.zeros((41, 53, 3), np.uint8))


EXPECTED = np.full((41, 53), IGNORE, np.uint8)
EXPECTED[3:20, 5:30], EXPECTED[10:15, 20:40], EXPECTED[30:33, 2:6] = 0, 1, 2
SHAPES = [(5, 3, 25, 17), (20, 10, 20, 5), (2, 30, 4, 3)]


@pytest.mark.parametrize("ending", [".gpkg", ".geojson", ".fgb", ".shp"])
def test_all_formats_give_the_same_label(ending: str, image: Path, tmp_path: Path, monkeypatch: Any) -> None:
    crs = "EPSG:4326" if ending == ".geojson" else "EPSG:25833"  # which that format is always in
    shapes = [box(*each) for each in SHAPES]
    if ending == ".geojson":
        to_degrees = lambda xy: np.stack(transform("EPSG:25833", crs, *xy.T), axis=1)  # noqa: E731
        shapes = list(shapely.transform(shapes, to_degrees))
    values = ["water", "Wald ¼", "road"]
    path = write(tmp_path / f"x{ending}", shapes, values, crs)
    rule = replace(RULE, order=("Wald ¼", "water"))
    np.testing.assert_array_equal(labels(path, image, rule), EXPECTED)
    monkeypatch.setattr(burning, "BAND_PIXELS", 53 * 7)
    monkeypatch.setattr(burning, "STRIP_PIXELS", 53 * 2)
    np.testing.assert_array_equal(labels(path, image, rule), EXPECTED)


def test_a_map_becomes_a_label_again(make_geotiff: Make, tmp_path: Path) -> None:
    """Files that `segmenter vectors` writes are read without a setting: GeoPackage and GeoParquet."""
    from datasets.commands.vectors import main

    rng = np.random.default_rng(4)
    ids = np.kron(rng.integers(0, 4, (11, 17)), np.ones((3, 4))).astype(np.uint8)
    ids[ids == 3] = IGNORE
    image = make_geotiff("image.tif", np.zeros((*ids.shape, 3), np.uint8))
    info = raster_info(image)
    tags = {f"CLASS_{i}": name for i, name in enumerate(NAMES)}
    write_raster(
        tmp_path / "map.tif",
        ids,
        RasterSpec(nodata=IGNORE, tags=tags, crs=info.crs, transform=info.transform),
    )
    for ending in ("gpkg", "parquet"):
        main([str(tmp_path / "map.tif"), "--output", str(tmp_path / f"areas.{ending}")])
        rule = BurnRule.of(None, CLASSES)
        np.testing.assert_array_equal(labels(tmp_path / f"areas.{ending}", image, rule), ids)


def test_another_crs_bends_edges_and_half_the_world_is_cut(make_geotiff: Make, tmp_path: Path) -> None:
    """A rectangle of 70 km in degrees: its northern edge is an arc in UTM, far from the chord."""
    image = make_geotiff(
        "wide.tif",
        np.zeros((60, 400, 3), np.uint8),
        transform=rasterio.Affine(100, 0, 280000, 0, -10, 5765450),
    )
    path = write(tmp_path / "x.gpkg", [shapely.box(11.5, 51.0, 12.5, 52.0)], ["water"], "EPSG:4326")
    info = raster_info(image)
    assert info.transform is not None
    rows, cols = np.indices((60, 400))
    x, y = info.transform @ (cols + 0.5, rows + 0.5)
    lon, lat = (np.reshape(v, rows.shape) for v in transform("EPSG:25833", "EPSG:4326", x.ravel(), y.ravel()))
    expected = (lon > 11.5) & (lon < 12.5) & (lat < 52) & (lat > 51)
    found = labels(path, image) == 0
    assert expected.any()
    assert not expected.all()
    assert (found != expected).mean() < 0.002  # within a sixteenth of a pixel of the edge

    path = write(tmp_path / "x.gpkg", [shapely.box(-170, -89, 170, 89)], ["road"], "EPSG:4326")
    assert (labels(path, image) == 2).all()


def test_polygons_that_end_at_the_antimeridian_meet_there(make_geotiff: Make, tmp_path: Path) -> None:
    image = make_geotiff(
        "fiji.tif",
        np.zeros((32, 40, 3), np.uint8),
        crs="EPSG:32601",
        transform=rasterio.Affine(10, 0, 284700, 0, -10, 5540000),
    )
    halves = [shapely.box(179, 49, 180, 51), shapely.box(-180, 49, -179, 51)]
    found = labels(write(tmp_path / "x.gpkg", halves, ["water", "road"], "EPSG:4326"), image)
    assert set(found[:, 0]) == {0}
    assert set(found[:, -1]) == {2}
    assert IGNORE not in found


def test_odd_geometries_are_burned_as_they_are_drawn(image: Path, tmp_path: Path) -> None:
    x, y = LEFT, TOP
    bow_tie = shapely.Polygon([(x, y), (x + 10, y - 10), (x + 10, y), (x, y - 10)])
    overlapping = shapely.MultiPolygon([box(30, 0, 10, 10), box(35, 5, 10, 10)])
    high = shapely.force_3d(box(0, 30, 5, 5), 77.0)
    group = shapely.GeometryCollection([box(30, 30, 3, 3), shapely.MultiPolygon([box(40, 30, 3, 3)])])
    shapes = [bow_tie, overlapping, high, shapely.Polygon(), None, group]
    found = labels(write(tmp_path / "x.gpkg", shapes, ["water"] * 6), image) == 0
    expected = np.zeros((41, 53), np.bool_)
    rows, cols = np.indices(expected.shape)
    off_edges = (rows != cols) & (rows + cols != 19)
    lobes = (abs(rows - 9.5) < abs(cols - 9.5))[:20, :20]  # left and right of the crossing
    np.testing.assert_array_equal((found & off_edges)[:20, :20], lobes & off_edges[:20, :20])
    expected = found.copy()
    expected[:20, 25:], expected[20:] = False, False
    expected[0:10, 30:40], expected[5:15, 35:45], expected[30:35, :5] = True, True, True
    expected[30:33, 30:33], expected[30:33, 40:43] = True, True
    np.testing.assert_array_equal(found, expected)


def test_arcs_are_followed(image: Path, tmp_path: Path) -> None:
    """A circle of ten pixels' radius, as two arcs, which shapely has no type for."""
    raw = pytest.importorskip("pyogrio.raw")
    x, y = LEFT + 10, TOP - 10
    arc = [(x - 5, y), (x, y + 5), (x + 5, y), (x, y - 5), (x - 5, y)]
    wkb = struct.pack("<BIIBII", 1, 10, 1, 1, 8, 5) + b"".join(struct.pack("<dd", *point) for point in arc)
    path = tmp_path / "x.gpkg"
    raw.write(path, np.array([wkb], object), [np.array(["road"], object)], ["class"], driver="GPKG",
              geometry_type="Unknown", crs="EPSG:25833")  # fmt: skip
    rows, cols = np.indices((41, 53))
    away = np.hypot(rows - 19.5, cols - 19.5)
    found = labels(path, image) == 2
    assert found[away < 9.9].all()
    assert not found[away > 10].any()


def test_values_are_names_codes_or_what_the_recipe_says(image: Path, tmp_path: Path) -> None:
    values = ["water", "2", "lake", None, "clouds", ""]
    shapes = [box(8 * i, 0, 8, 41) for i in range(6)]
    rule = replace(RULE, values={"lake": "water", "clouds": "ignore"})
    found = labels(write(tmp_path / "x.gpkg", shapes, values), image, rule)
    assert found[0, ::8].tolist() == [0, 1, 0, IGNORE, IGNORE, IGNORE, IGNORE]
    numbers = write(tmp_path / "n.gpkg", shapes[:3], [300, 7, 2])
    assert labels(numbers, image)[0, :24:8].tolist() == [2, 0, 1]
    floats = write(tmp_path / "f.gpkg", shapes[:2], [300.0, np.nan])
    assert labels(floats, image)[0, :16:8].tolist() == [2, IGNORE]
    both = VectorLabels(values={True: "road", False: "ignore"}).values  # type: ignore[dict-item]
    flags = write(tmp_path / "b.gpkg", shapes[:2], [True, False])
    assert labels(flags, image, replace(RULE, values=both))[0, :16:8].tolist() == [2, IGNORE]
    apart = write(tmp_path / "a.gpkg", shapes[:1], [unicodedata.normalize("NFD", "Gewässer")])
    assert labels(apart, image, replace(RULE, values={"Gewässer": "road"}))[0, 0] == 2


def test_an_overlap_needs_an_order(image: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gpkg", [box(0, 0, 9, 9), box(5, 5, 9, 9)], ["water", "road"])
    said = r"water \(feature 1\) and road \(feature 2\) overlap on .*a\.tif, first at row 5, column 5"
    with pytest.raises(LabelError, match=said):
        labels(path, image, replace(RULE, order=()))
    for order, above in ((("road",), 2), (("water",), 0), (("water", "road"), 0)):
        assert labels(path, image, replace(RULE, order=order))[6, 6] == above
    beside = write(tmp_path / "y.gpkg", [box(0, 0, 9, 9), box(9, 0, 9, 9)], ["water", "road"])
    assert labels(beside, image, replace(RULE, order=()))[0, [8, 9]].tolist() == [0, 2]
    cut = write(tmp_path / "z.gpkg", [box(0, 0, 9.3, 9), box(9.3, 0, 9, 9)], ["water", "road"])
    assert labels(cut, image, replace(RULE, order=()))[0, [8, 9]].tolist() == [0, 2]
    with refused(LabelError, fault="all_touched, neighbours always"):
        labels(cut, image, replace(RULE, order=(), all_touched=True))


def test_what_is_no_label_is_one_line(image: Path, make_geotiff: Make, tmp_path: Path) -> None:
    a = box(0, 0, 9, 9)
    line = write(tmp_path / "line.gpkg", [shapely.LineString([a.bounds[:2], a.bounds[2:]])], ["road"])
    plain = make_geotiff("plain.tif", np.zeros((9, 9, 3), np.uint8), crs=None)
    no_crs = write(tmp_path / "none.fgb", [a], ["road"], None)
    (tmp_path / "text.gpkg").write_text("hello")
    (tmp_path / "cut.gpkg").write_bytes(line.read_bytes()[:20_000])
    (tmp_path / "cut.geojson").write_text('{"type": "FeatureCollection", "features": [{"ty')
    (tmp_path / "vrt.geojson").write_text("<OGRVRTDataSource></OGRVRTDataSource>")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    known = write(tmp_path / "a.gpkg", [a], ["lake"])
    collection = shapely.GeometryCollection([a, shapely.Point(LEFT + 1, TOP - 1)])
    mixed = write(tmp_path / "mixed.gpkg", [collection], ["road"])
    text = write(tmp_path / "text.shp", [a], ["ÄÖ"])
    text.with_suffix(".cpg").unlink()
    raw = pytest.importorskip("pyogrio.raw")
    two = write(tmp_path / "two.gpkg", [a], ["road"])
    raw.write(two, shapely.to_wkb(np.array([a])), [np.array(["x"])], ["class"], layer="more", driver="GPKG",
              geometry_type="Polygon", crs="EPSG:25833", append=False)  # fmt: skip
    for path, onto, rule, line_of in (
        (line, image, RULE, "feature 1 is a LineString, expected polygons"),
        (known, image, RULE, "feature 1: class is 'lake', which names no class"),
        (known, image, replace(RULE, attribute="kind"), "has no attribute kind; it has class"),
        (known, plain, RULE, r"plain\.tif: the image has no georeference"),
        (no_crs, image, RULE, r"none\.fgb: has no CRS"),
        (no_crs, image, replace(RULE, crs="EPSG:0"), r"none\.fgb: its CRS EPSG:0 is none"),
        (two, image, RULE, r"two\.gpkg: has several layers, .*more"),
        (two, image, replace(RULE, layer="less"), "has no layer less; it has"),
        (tmp_path / "text.gpkg", image, RULE, r"is no \.gpkg file by its first bytes"),
        (tmp_path / "vrt.geojson", image, RULE, r"is no \.geojson file by its first bytes"),
        (tmp_path / "cut.gpkg", image, RULE, r"cut\.gpkg: cannot be read as polygons"),
        (tmp_path / "cut.geojson", image, RULE, r"cut\.geojson: cannot be read as polygons"),
        (tmp_path / "cut.parquet", image, RULE, r"cut\.parquet: cannot be read as polygons"),
        (tmp_path / "gone.gpkg", image, RULE, r"gone\.gpkg: cannot open it"),
        (mixed, image, RULE, "1 is a GeometryCollection"),
        (text, image, RULE, r"into text\.cpg"),
    ):
        with pytest.raises(SegmenterError, match=line_of):
            labels(path, onto, rule)
    assert labels(no_crs, image, replace(RULE, crs="EPSG:25833"))[0, 0] == 2
    assert labels(two, image, replace(RULE, layer="two"))[0, 0] == 2
    with refused(DatasetError, where="x.dxf", expected="polygons (.gpkg"):
        VectorFile(tmp_path / "x.dxf", "class")


TWO = ClassMap(tuple(LandCoverClass(name, (i, 9, 9), i) for i, name in enumerate("ab")))
TWO_RULE = BurnRule(TWO, "class", {}, outside="b")
FORMATS = ("gpkg", "geojson", "shp", "fgb", "parquet")


def write_all(path: Path, shapes: Sequence[Any], crs: str | None = "EPSG:25833") -> Path:
    return write(path, shapes, ["a"] * len(shapes), crs)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_corner_of_no_number_is_named(ending: str, bad: float, image: Path, tmp_path: Path) -> None:
    crs, x, y = ("EPSG:4326", 12.5, 52.25) if ending == "geojson" else ("EPSG:25833", LEFT + 3.125, TOP - 3)
    shapes = [shapely.box(x + i, y - 1, x + i + 0.75, y) for i in range(2)]
    path = write_all(tmp_path / f"x.{ending}", shapes, crs)
    content, mark = path.read_bytes(), x + 1
    number = json.dumps(mark).encode() if ending == "geojson" else struct.pack("<d", mark)
    assert number in content
    text = {"nan": b"NaN", "-inf": b"-1e999"}[str(bad)]
    path.write_bytes(content.replace(number, text if ending == "geojson" else struct.pack("<d", bad)))
    with refused(DatasetError, where=path.name):
        labels(path, image, TWO_RULE)


@pytest.mark.parametrize("far", [2e5, 2e8, 2e9, 1e15])
def test_a_far_polygon_is_burned_where_it_covers_the_image(far: float, image: Path, tmp_path: Path) -> None:
    expected = (np.indices((ROWS, COLS))[1] < 10).astype(np.uint8)
    path = write_all(tmp_path / "x.gpkg", [box(10, -5, far, ROWS + 10)])
    np.testing.assert_array_equal(labels(path, image, TWO_RULE), expected)


def test_a_polygon_that_reaches_far_in_another_zone_covers_the_image(image: Path, tmp_path: Path) -> None:
    rows, cols = np.indices((ROWS, COLS)) + 0.5
    x, y = (LEFT + cols / 2).ravel(), (TOP - rows / 2).ravel()
    xs, ys = transform("EPSG:25833", "EPSG:25832", x, y)
    shape = shapely.box(min(xs) - 50, min(ys) - 50, min(xs) + 2e5, max(ys) + 50)
    assert not labels(write_all(tmp_path / "x.gpkg", [shape], "EPSG:25832"), image, TWO_RULE).any()


@pytest.mark.parametrize("ending", FORMATS)
def test_features_without_an_area_are_counted(ending: str, image: Path, tmp_path: Path) -> None:
    square = [(LEFT + x, TOP - y) for x, y in ((2, 2), (2, 9), (9, 9), (9, 2), (2, 2))]
    line = shapely.Polygon([square[0], square[1], square[0], square[0]])
    nothing = [None, line, shapely.Polygon(square, [square])]
    if ending != "shp":  # which has one kind of empty geometry, and no polygon on its hole
        nothing += [shapely.Polygon(), shapely.MultiPolygon([line, line])]
    good = box(3, 3, 9, 9)
    file = VectorFile(write_all(tmp_path / f"x.{ending}", [good, *nothing, good]), "class")
    assert f" {len(nothing)} of {len(nothing) + 2} features have no area" in file.remark()
    bow = shapely.Polygon([(LEFT + x, TOP - y) for x, y in ((2, 2), (9, 9), (9, 2), (2, 9), (2, 2))])
    for name, shapes in (("y", [good]), ("z", [good, bow])):
        assert VectorFile(write_all(tmp_path / f"{name}.{ending}", shapes), "class").remark() == ""
    found = labels(tmp_path / f"x.{ending}", image, TWO_RULE)
    np.testing.assert_array_equal(found, labels(tmp_path / f"y.{ending}", image, TWO_RULE))


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
        labels(path, image, TWO_RULE)
    right = labels(path, image, BurnRule(TWO, "class", {}, outside="b", crs="EPSG:25833"))
    np.testing.assert_array_equal(
        right, labels(write_all(tmp_path / "y.gpkg", [box(3, 3, 9, 9)]), image, TWO_RULE)
    )


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
    path = write_all(tmp_path / "x.gpkg", [box(3, 3, 9, 9)])
    view = f"CREATE VIEW v AS {ENDLESS} c.x AS fid, t.geom, t.class FROM c, x t"
    changed(path, view, *LISTED)
    with refused(DatasetError, fault="v is a view"):
        VectorFile(path, "class", layer)
    assert VectorFile(path, "class", "x").count == 1


@pytest.mark.parametrize("table", ["gpkg_contents", "gpkg_geometry_columns", "gpkg_ogr_contents"])
def test_tables_of_a_geopackage_that_are_views_are_refused(table: str, tmp_path: Path) -> None:
    path = write_all(tmp_path / "x.gpkg", [box(3, 3, 9, 9)])
    changed(path, f"ALTER TABLE {table} RENAME TO z", f"CREATE VIEW {table} AS {ENDLESS} z.* FROM z, c")
    with pytest.raises(DatasetError, match=f"{table} is a view"):
        VectorFile(path, "class")
