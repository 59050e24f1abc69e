"""Polygons of class maps: rasterised again they are the map, whatever the strips; simplified, no gaps."""

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import rasterio
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rasterio.features import rasterize

from datasets.commands.vectors import main
from segmenter.base.errors import SegmenterError
from segmenter.extras.vectors.vectorise import Joiner, Polygons, Slivers
from segmenter.grid import components as strips
from segmenter.grid.colours import default_colours
from segmenter.grid.components import components
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.windows import row_strips
from segmenter.raster import RasterSpec, write_raster
from tests.helpers.maps import Make

NAMES = ("water", "Wald ¼", "road")


def noise(seed: int, cells: bool) -> NDArray[np.uint8]:
    """A map of three classes and no data, of single pixels or of cells of 3 × 4."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 45, 2)
    ids = rng.integers(0, 4, (height, width)).astype(np.uint8)
    if cells:
        ids = np.kron(ids, np.ones((3, 4), np.uint8))[:height, :width]
    ids[ids == 3] = IGNORE
    return ids


def polygons(ids: NDArray[np.uint8], rows: int, simplify: float = 0.0) -> Polygons:
    """Of a map in strips of so many rows."""
    joiner, found = Joiner(simplify), []
    for window in row_strips(Size(*ids.shape), rows * ids.shape[1]):
        found.append(joiner.add(components(window, ids[window.slices()], nodata=simplify > 0), None))
    return Polygons.join([*found, joiner.end(confidence=False)])


@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_rasterised_again_they_are_the_map_in_any_strips(seed: int, cells: bool, rows: int) -> None:
    ids = noise(seed, cells)
    found = polygons(ids, rows)
    again = np.full(ids.shape, IGNORE, np.uint8)
    if len(found):
        shapes = zip(found.shape_P, found.class_P.tolist(), strict=True)
        again = rasterize(shapes, ids.shape, fill=IGNORE, dtype="uint8")
    np.testing.assert_array_equal(again, ids)
    assert shapely.is_valid(found.shape_P).all()
    np.testing.assert_array_equal(shapely.area(found.shape_P), found.pixels_P)
    whole = polygons(ids, 1000)
    assert _wkbs(found) == _wkbs(whole)


def _wkbs(found: Polygons) -> list[str]:
    return sorted(shapely.to_wkb(shapely.normalize(found.shape_P), hex=True))


@pytest.mark.slow
@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 20), st.floats(0.5, 4))
@settings(max_examples=20, deadline=None)
def test_simplified_they_have_no_gap_or_overlap(seed: int, cells: bool, rows: int, tolerance: float) -> None:
    ids = noise(seed, cells)
    found = polygons(ids, rows, tolerance)
    assert shapely.is_valid(found.shape_P).all()
    assert shapely.area(found.shape_P).sum() == pytest.approx(ids.size, abs=1e-9)  # with no data
    assert shapely.union_all(found.shape_P).area == pytest.approx(ids.size, abs=1e-9)


def test_simplifying_straightens() -> None:
    rows, cols = np.indices((60, 60))
    ids = (rows + cols / 2 > 40).astype(np.uint8)
    stairs, straight = polygons(ids, 1000), polygons(ids, 1000, 3.0)
    assert len(straight) == len(stairs) == 2
    corners = [shapely.get_num_coordinates(each.shape_P).sum() for each in (straight, stairs)]
    assert corners[0] < 0.3 * corners[1]
    moved = shapely.area(shapely.symmetric_difference(stairs.shape_P, straight.shape_P))
    assert (moved < 60).all()


def slivers_gone(
    ids: NDArray[np.uint8], least: float, rows: int, sides: tuple[float, float] = (1.0, 1.0)
) -> NDArray[np.uint8]:
    """By the collector, in strips."""
    slivers, taken = Slivers(least), []
    for window in row_strips(Size(*ids.shape), rows * ids.shape[1]):
        taken.append(components(window, ids[window.slices()]))
        slivers.add(taken[-1], np.ones(window.height), sides)
    out = ids.copy()
    for strip, kinds in zip(taken, slivers.classes(), strict=True):
        out[strip.window.slices()] = kinds[strip.labels]
    return out


def one_by_one(ids: NDArray[np.uint8], least: float) -> NDArray[np.uint8]:
    """The rule by the letter: label anew, take the smallest sliver with a neighbour, give it away, again."""
    ids = ids.copy()
    while True:
        strip = components(Window(0, 0, *ids.shape), ids)
        flat = strip.labels.ravel()
        area = np.bincount(flat)
        first = {n: int(np.argmax(flat == n)) for n in range(1, strip.count + 1)}
        borders: dict[int, dict[int, int]] = {n: {} for n in first}
        for a, b in ((strip.labels[:, :-1], strip.labels[:, 1:]), (strip.labels[:-1], strip.labels[1:])):
            for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True):
                if x != y and x and y:
                    borders[x][y] = borders[x].get(y, 0) + 1
                    borders[y][x] = borders[y].get(x, 0) + 1
        small = [n for n in first if area[n] < least and borders[n]]
        if not small:
            return ids
        one = min(small, key=lambda n: (area[n], first[n]))
        beside = borders[one]
        into = max(beside, key=lambda n: (beside[n], area[n], -first[n]))
        ids[strip.labels == one] = strip.class_C[into]


@pytest.mark.parametrize(("sides", "longer"), [((111.0, 56.0), 1), ((56.0, 111.0), 2), ((1.0, 1.0), 2)])
def test_borders_are_as_long_as_on_the_ground(sides: tuple[float, float], longer: int) -> None:
    """A sliver of 3 × 4 pixels, between 1 at its left and right and 2 above and below; as at 60° north."""
    ids = np.full((9, 20), 2, np.uint8)
    ids[3:6] = 1
    ids[3:6, 8:12] = 0
    for rows in (1, 9):
        assert (slivers_gone(ids, 13, rows, sides)[3:6, 8:12] == longer).all()


@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 12), st.integers(2, 12))
@settings(max_examples=15, deadline=None)
def test_a_sliver_goes_to_the_longest_border(seed: int, cells: bool, rows: int, least: int) -> None:
    ids = noise(seed, cells)[:18, :18]
    np.testing.assert_array_equal(slivers_gone(ids, least, rows), one_by_one(ids, least))


@pytest.fixture
def make_map(tmp_path: Path) -> Make:
    """A map as predict.py writes it, half a metre a pixel, by default with a confidence of 0.4 beside it."""

    def make(name: str, ids: NDArray[np.uint8], crs: str = "EPSG:25833", side: float = 0.5) -> Path:
        left = 12.0 if side < 0.1 else 368000
        where = {
            "crs": rasterio.CRS.from_string(crs),
            "transform": rasterio.Affine(side, 0, left, 0, -side, 52.0),
        }
        tags = {f"CLASS_{i}": n for i, n in enumerate(NAMES)}
        tags |= {f"CODE_{i}": str(7 * i + 2) for i in range(3)}
        write_raster(tmp_path / f"{name}.tif", ids, RasterSpec(nodata=IGNORE, tags=tags, **where))
        sure = RasterSpec(nodata=0, scale=1 / 255, tags=tags, **where)
        values = np.where(ids == IGNORE, 0, 102).astype(np.uint8)
        write_raster(tmp_path / f"{name}.confidence.tif", values, sure)
        return tmp_path / f"{name}.tif"

    return make


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        found: dict[str, Any] = pq.read_table(path).to_pydict()
        found["geometry"] = shapely.from_wkb(np.array(found["geometry"], object))
        return found
    raw = pytest.importorskip("pyogrio.raw")
    meta, _, geometry, columns = raw.read(path, layer=path.stem)
    assert meta["crs"] == "EPSG:25833"
    return dict(zip(meta["fields"], columns, strict=True)) | {"geometry": shapely.from_wkb(geometry)}


@pytest.mark.parametrize("ending", ["gpkg", "parquet"])
def test_a_file_holds_the_map_with_names_codes_areas_and_confidence(
    ending: str, make_map: Make, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(strips, "STRIP_PIXELS", 300)
    ids = noise(5, cells=True)
    path, output = make_map("town", ids), tmp_path / f"areas.{ending}"
    assert main([str(path), "--output", str(output)]) == 0
    found = _read(output)
    with rasterio.open(path) as written:
        again = rasterize(
            zip(found["geometry"], (int(i) for i in found["class_id"]), strict=True),
            ids.shape, fill=IGNORE, dtype="uint8", transform=written.transform,
        )  # fmt: skip
    np.testing.assert_array_equal(again, ids)
    assert [NAMES[i] for i in found["class_id"]] == list(found["class"])
    assert [7 * i + 2 for i in found["class_id"]] == list(found["code"])
    np.testing.assert_allclose(found["area_m2"], np.array(found["pixels"]) * 0.25)
    np.testing.assert_allclose(found["confidence"], 0.4, rtol=1e-6)
    assert set(found["map"]) == {"town.tif"}
    style = set() if ending == "gpkg" else {"areas.qml"}
    assert {p.name for p in tmp_path.iterdir()} == {output.name, "town.tif", "town.confidence.tif", *style}


def test_a_style_of_a_map_or_of_others_is_left(make_map: Make, tmp_path: Path, capsys: Any) -> None:
    path, output = make_map("town", noise(1, cells=True)), tmp_path / "areas.parquet"
    for file, style in ((output, output.with_suffix(".qml")), (tmp_path / "town.parquet", None)):
        own = style or path.with_suffix(".qml")
        own.write_text("<qgis>saved by hand</qgis>")
        assert main([str(path), "--output", str(file)]) == 0
        assert own.read_text() == "<qgis>saved by hand</qgis>"
        assert str(own) in capsys.readouterr().err
        own.unlink()
    assert main([str(path), "--output", str(output), "--overwrite"]) == 0
    assert output.with_suffix(".qml").exists()


@pytest.mark.parametrize("ending", ["gpkg", "parquet"])
def test_polygons_come_in_the_colours_of_the_map(ending: str, make_map: Make, tmp_path: Path) -> None:
    """A colour table tells them; classes without one get the usual colours of their names."""
    plain, output = make_map("plain", noise(1, cells=True)), tmp_path / f"areas.{ending}"
    own, odd = make_map("own", noise(2, cells=True)), (1, 200, 30)
    with rasterio.open(own, "r+") as file:
        file.write_colormap(1, {i: (*odd[:2], odd[2] + i, 255) for i in range(3)})
    for path, expected in (
        (plain, default_colours(NAMES)),
        (own, [(*odd[:2], odd[2] + i) for i in range(3)]),
    ):
        output.unlink(missing_ok=True)
        assert main([str(path), "--output", str(output)]) == 0
        if ending == "parquet":
            style = output.with_suffix(".qml").read_text()
        else:
            with contextlib.closing(sqlite3.connect(output)) as file:
                columns = "styleQML, useAsDefault, f_geometry_column"
                ((style, default, geometry),) = file.execute(
                    f"select {columns} from layer_styles where f_table_name = 'areas'"
                )
                known = list(file.execute("select table_name, column_name from gpkg_geometry_columns"))
            assert (default, known) == (1, [("areas", geometry)])
        renderer = ET.fromstring(style).find("renderer-v2")
        assert renderer is not None
        assert renderer.get("attr") == "class"
        values = {each.get("symbol"): each.get("value") for each in renderer.iter("category")}
        fills = {
            values[each.get("name")]: each.find("layer/Option/Option[@name='color']").get("value")  # type: ignore[union-attr]
            for each in renderer.iter("symbol")
        }
        assert fills == {
            name: ",".join(map(str, (*rgb, 255))) for name, rgb in zip(NAMES, expected, strict=True)
        }


def test_areas_in_degrees_are_those_on_the_ground(make_map: Make, tmp_path: Path) -> None:
    """A quarter of a degree at 52° north: 27.8 km by 17.2 km, known to 1e-4 from the ellipsoid's radii."""
    path = make_map("deg", np.zeros((250, 250), np.uint8), "EPSG:4326", 0.001)
    main([str(path), "--output", str(tmp_path / "a.parquet")])
    a, f = 6378137.0, 1 / 298.257223563
    e2, lat = f * (2 - f), np.radians(52 - 0.125)
    w = 1 - e2 * np.sin(lat) ** 2
    expected = a * (1 - e2) / w**1.5 * np.radians(0.25) * a * np.cos(lat) / np.sqrt(w) * np.radians(0.25)
    np.testing.assert_allclose(_read(tmp_path / "a.parquet")["area_m2"], [expected], rtol=1e-4)


def test_some_classes_and_slivers_in_square_metres(make_map: Make, tmp_path: Path) -> None:
    ids = np.zeros((20, 30), np.uint8)
    ids[3:5, 3:5], ids[10:18, 10:18] = 2, 2
    ids[12, 12] = 1
    path, output = make_map("a", ids), tmp_path / "roads.gpkg"
    main([str(path), "--output", str(output), "--only", "road", "--min-area", "2"])
    found = _read(output)
    assert (list(found["class"]), list(found["area_m2"])) == (["road"], [16.0])
    main([str(path.parent), str(path), "--output", str(output), "--overwrite"])  # each map once
    assert len(_read(output)["class"]) == 4


def test_maps_of_one_name_are_told_apart(make_map: Make, tmp_path: Path) -> None:
    paths = [make_map(f"{folder}/town", np.zeros((4, 4), np.uint8)) for folder in "ab"]
    main([*map(str, paths), "--output", str(tmp_path / "both.gpkg")])
    assert list(_read(tmp_path / "both.gpkg")["map"]) == ["a/town.tif", "b/town.tif"]


def test_a_wrong_call_is_one_line_and_leaves_nothing(
    make_map: Make, make_geotiff: Make, tmp_path: Path
) -> None:
    path = make_map("a", noise(1, cells=True))
    other = make_map("b", noise(2, cells=True), "EPSG:25832")
    plain = make_geotiff("plain.tif", np.zeros((4, 4), np.uint8))
    (tmp_path / "there.gpkg").write_bytes(b"mine")
    for arguments, line in (
        ([path, "--output", tmp_path / "no/x.gpkg"], "there is no folder"),
        ([path, "--output", tmp_path / "there.gpkg"], "exists already"),
        ([path, other, "--output", tmp_path / "x.gpkg"], "expected the CRS of"),
        ([plain, "--output", tmp_path / "x.gpkg"], "expected a class map as predict.py writes it"),
        ([path.with_name("a.confidence.tif"), "--output", tmp_path / "x.gpkg"], "values are scaled"),
    ):
        with pytest.raises(SegmenterError, match=line):
            main([str(each) for each in arguments])
    assert (tmp_path / "there.gpkg").read_bytes() == b"mine"
    assert not list(tmp_path.glob("*x.*"))
    assert not list(tmp_path.glob(".*"))


WRITES = """
import sys, tensorflow
from datasets.commands.vectors import main
main([sys.argv[1], "--output", sys.argv[2]])
from pathlib import Path
from segmenter.extras.vector_files.library import pyogrio
print(len(pyogrio.raw.read(sys.argv[2], bbox=(0, 0, 1, 1))[2]), "far away")
"""


@pytest.mark.slow
def test_a_geopackage_has_its_index_after_tensorflow(make_map: Make, tmp_path: Path) -> None:
    path, output = make_map("a", noise(1, cells=True)), tmp_path / "a.gpkg"
    given = [sys.executable, "-c", WRITES, str(path), str(output)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with contextlib.closing(sqlite3.connect(output)) as file:
        tables = [name for (name,) in file.execute("select name from sqlite_master")]
    assert "rtree_a_geom" in tables
    assert "\n0 far away" in done.stdout  # by box: with an SQLite that has no R-trees, an error
