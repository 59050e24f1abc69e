"""`accuracy estimate`: tables and GeoPackages, JSON, page; mistakes end in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.extras.accuracy.__main__ import main
from segmenter.extras.accuracy.estimators import Figure, unit_for, with_interval
from segmenter.raster import RasterSpec, write_raster
from tests.helpers.geopackage import changed

POINTS = (
    "stratum,mapped,reference\n" + "wet,water,water\n" * 40 + "wet,water,land\n" * 5 + "dry,land,land\n" * 50
)
AREAS = "stratum,area\nwet,300\ndry,9700\n"


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str, str], Path]:
    """`table("points.csv", text)`: a file below the test's folder."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def estimated(capsys: Any, *words: Any) -> Any:
    assert main(["estimate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tables_give_the_figures_as_json_and_known_pixels_narrow_the_intervals(
    table: Any, capsys: Any
) -> None:
    found = estimated(capsys, table("p.csv", POINTS), "--areas", table("a.csv", AREAS), "--unit", "km2")
    water = next(each for each in found["classes"] if each["name"] == "water")
    assert water["users"]["value"] == pytest.approx(40 / 45)
    assert water["users"]["se"] == pytest.approx(np.sqrt(40 / 45 * 5 / 45 / 44))
    assert water["producers"] == {"value": 1, "se": 0, "low": 1, "high": 1}
    assert found["unit"] == "ha"
    assert water["area"]["value"] == pytest.approx(300 * 100 * 40 / 45)
    assert water["mapped_area"] is None  # strata are no classes
    assert np.sum(found["matrix"]) == pytest.approx(1)
    assert found["sentences"][1].startswith("water 267 ± 28 km²")
    assert [line.partition(":")[0] for line in found["remarks"]] == ["land", "water"]

    points = table("p.csv", POINTS)
    without = estimated(capsys, points, "--areas", table("a.csv", AREAS))
    known = estimated(
        capsys, points, "--areas", table("b.csv", "stratum,area,pixels\nwet,300,60\ndry,9700,1940\n")
    )
    ratio = known["overall"]["se"] / without["overall"]["se"]
    assert ratio == pytest.approx(np.sqrt(1 - 45 / 60))


def test_the_same_table_in_other_forms_is_the_same(table: Any, capsys: Any) -> None:
    """Semicolons, spaces, a byte order mark, a column more, points without a label, areas of the pixels."""
    plain = estimated(capsys, table("p.csv", POINTS), "--areas", table("a.csv", AREAS))
    odd = "\ufeff" + POINTS.replace(",", " ; ").replace("\n", ";x;7\n").replace(
        "reference;x;7", "reference;note;pixel_area"
    )
    other = estimated(capsys, table("q.csv", odd + "dry;land;;;7\n"), "--areas", table("b.csv", AREAS))
    assert other["unlabelled"] == 1
    assert len(other["remarks"]) == len(plain["remarks"]) + 1
    pairs = zip(other["classes"], plain["classes"], strict=True)
    assert all(
        a["users"] == pytest.approx(b["users"]) and a["area"] == pytest.approx(b["area"]) for a, b in pairs
    )


def test_numbers_have_the_digits_of_their_intervals() -> None:
    assert with_interval(Figure(12.4321, 1.1 / 1.96), " km²") == "12.4 ± 1.1 km²"
    assert with_interval(Figure(235_086.3, 34_907)) == "235,086 ± 68,418"
    assert with_interval(Figure(0.5, 0.099999 / 1.96)) == "0.50 ± 0.10"
    assert with_interval(Figure(float("nan"), 1.0)) == "–"
    assert [with_interval(Figure(x, 0.0)) for x in (3.0, 2.4e7)] == ["3.00 ± 0", "24,000,000 ± 0"]
    assert [unit_for("m2", total).name for total in (9e3, 2e4, 2e7)] == ["m2", "ha", "km2"]
    assert unit_for("ha", 5.0).factor == 1
    assert unit_for("", 5.0).sign == ""


def test_the_page_has_all_classes_and_charts(table: Any, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("plotly", reason="the package plotly is not here: pip install -e '.[report]'")
    pytest.importorskip("jinja2", reason="the package jinja2 is not here: pip install -e '.[report]'")
    odd = POINTS.replace("land", "<b>land</b> $x$")
    words = [table("p.csv", odd), "--areas", table("a.csv", AREAS), "--unit", "ha"]
    page = tmp_path / "page.html"
    estimated(capsys, *words, "--report", page)
    html = page.read_text(encoding="utf-8")
    assert "<b>land" not in html
    assert html.count('class="chart"') == 3
    data = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    bars, marks = data["charts"]["areas-chart"]["figures"][0]["data"]
    assert bars["x"] == [None, None]
    assert sum(marks["x"]) == pytest.approx(100)  # km²


@pytest.mark.parametrize(
    ("points", "areas"),
    [
        (POINTS, "stratum,area\nwet,300\n"),  # a stratum without an area
        (POINTS, AREAS + "ice,5\n"),  # a stratum without a point
        (POINTS, AREAS + "dry,5\n"),
        (POINTS, "stratum,size\nwet,300\n"),
        (POINTS, "stratum,area\nwet,-3\ndry,nan\n"),
        (POINTS, "stratum,area\nwet,3\ndry,\n"),
        (POINTS, "stratum,area,pixels\nwet,300,44\ndry,9700,1940\n"),  # fewer pixels than points
        (POINTS.replace("reference", "truth"), AREAS),
        ("stratum,mapped,reference\nwet,water,\ndry,land,\n", AREAS),  # nothing is labelled
        ("stratum,mapped,reference\nwet,water,water\n" + "dry,land,land\n" * 9, AREAS),  # one point alone
        ("stratum,mapped,reference,pixel_area\nwet,water,water,x\n", AREAS),
        ('stratum,mapped,reference\n"wet,water', AREAS),
        ("", AREAS),
    ],
)
def test_mistakes_in_tables_end_in_one_line(points: str, areas: str, table: Any) -> None:
    with pytest.raises(DatasetError) as raised:
        main(["estimate", str(table("p.csv", points)), "--areas", str(table("a.csv", areas))])
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_tables_need_areas_and_files_must_be_there(table: Any, tmp_path: Path) -> None:
    points = str(table("p.csv", POINTS))
    for words in ([points], [points, "--areas", str(tmp_path / "none.csv")], [str(tmp_path / "none.gpkg")]):
        with pytest.raises(SegmenterError) as raised:
            main(["estimate", *words])
        assert raised.value.exit_code == 2
    latin = tmp_path / "latin.csv"
    latin.write_bytes("stratum,area\nWäld,3\n".encode("latin-1"))
    with pytest.raises(DatasetError):
        main(["estimate", points, "--areas", str(latin)])


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """Points of a map of three classes, all labelled as they are mapped."""
    pytest.importorskip("pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'")
    ids = np.random.default_rng(1).integers(0, 3, (41, 53)).astype(np.uint8)
    tags = {"CLASS_0": "water", "CLASS_1": "land", "CLASS_2": "road"}
    move = rasterio.Affine(2.0, 0, 368_000, 0, -2.0, 5_808_000)
    write_raster(
        tmp_path / "a.tif", ids, RasterSpec(crs=rasterio.CRS.from_epsg(25833), transform=move, tags=tags)
    )
    path = tmp_path / "p.gpkg"
    assert main(["sample", str(tmp_path / "a.tif"), "--points", "60", "--output", str(path)]) == 0
    changed(path, "update points set reference = mapped")
    return path


def test_unlabelled_and_removed_points_are_left_out_and_counted(drawn: Path, capsys: Any) -> None:
    changed(
        drawn, "update points set reference = null where fid < 5", "delete from points where fid in (9, 11)"
    )
    changed(drawn, "update points set reference = '  ' where fid = 20")
    found = estimated(capsys, drawn)
    assert (found["points"], found["unlabelled"]) == (53, 7)
    assert found["overall"]["value"] == pytest.approx(1)


def test_a_class_that_no_point_shows_is_said(drawn: Path, capsys: Any) -> None:
    changed(drawn, "update points set reference = 'water' where reference = 'road'")
    found = estimated(capsys, drawn)
    road = found["classes"][2]
    assert road["producers"] is None
    assert road["area"]["value"] == 0
    assert sum(line.startswith("road:") for line in found["remarks"]) == 2  # and few points are mapped so


def test_strata_of_another_table_replace_those_of_the_file(drawn: Path, table: Any, capsys: Any) -> None:
    areas = table("a.csv", "stratum,area\nwater,1\nland,2\nroad,3\n")
    found = estimated(capsys, drawn, "--areas", areas, "--unit", "km2")
    assert [each["area"] for each in found["strata"]] == [100, 200, 300]


@pytest.mark.parametrize(
    "statement",
    [
        "update points set reference = 'sea' where fid = 3",  # an unknown class
        "update points set stratum = null where fid = 3",  # a point outside
        "update points set mapped = 'sea' where fid = 3",
        "update points set pixel_area = null where fid = 3",
        "update points set stratum = 'road' where fid <= 40",  # more points than were drawn
        "update points set reference = null where stratum = 'road'",  # a stratum without a label
        "update points set reference = null",
        "update strata set area = -1",
        "delete from strata where stratum = 'road'",
        "delete from classes",
        "alter table points rename column reference to truth",
        "drop table strata",
        "delete from gpkg_contents where table_name = 'strata'",
        "update strata set points = null",
    ],
)
def test_mistakes_in_a_geopackage_end_in_one_line(drawn: Path, statement: str) -> None:
    changed(drawn, statement)
    with pytest.raises(DatasetError) as raised:
        main(["estimate", str(drawn)])
    assert raised.value.exit_code == 2
    assert (
        str(drawn) in str(raised.value) or "stratum" in str(raised.value) or "reference" in str(raised.value)
    )


def test_a_damaged_geopackage_is_refused(drawn: Path) -> None:
    content = drawn.read_bytes()
    for damaged in (
        content[: len(content) // 3],
        b"no database",
        content.replace(b"pixel_area", b"pixel_erea"),
    ):
        drawn.write_bytes(damaged)
        with pytest.raises(DatasetError):
            main(["estimate", str(drawn)])
