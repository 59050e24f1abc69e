"""Estimates: the papers' worked examples, simulated samples; `accuracy estimate`, its page, its refusals."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from datasets.commands.accuracy import main
from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.extras.accuracy.estimators import (
    Estimate,
    Estimates,
    PointSample,
    effective_points,
    estimates,
    remarks,
    unit_for,
    with_interval,
)
from segmenter.extras.accuracy.tables import Areas, PointTable, sample_of
from segmenter.extras.vector_files.database import UNCLEAR
from segmenter.raster import RasterSpec, write_raster
from tests.helpers.geopackage import changed
from tests.helpers.refusals import refused

OLOFSSON = np.array([[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]])
"""Table 8 of Olofsson et al. 2014: deforestation, forest gain, stable forest, stable non-forest."""
PIXELS = (200_000, 150_000, 3_200_000, 6_450_000)
HECTARES = 0.09
STEHMAN = (
    ("A" * 10 + "B" * 10 + "C" * 10 + "D" * 10),
    ("AAAAAAABBB" + "ABBBBBBBBB" + "BBCCCCCCBB" + "DDDDDDDDDD"),
    ("AAAAACBABC" + "ABBBBBAABB" + "CCCCCDDBBA" + "DDDDDDDCCB"),
)
"""Table 2 of Stehman 2014: stratum, map class and reference class of 40 points."""


def sample(
    stratum: Any, mapped: Any, reference: Any, areas: Sequence[float], *, classes: int = 4, **more: Any
) -> PointSample:
    arrays = [np.asarray(each, np.intp) for each in (stratum, mapped, reference)]
    size = more.pop("size", np.ones(len(arrays[0])))
    return PointSample(
        classes=tuple("abcdefgh"[:classes]),
        strata=tuple(map(str, range(len(areas)))),
        area_H=np.asarray(areas, np.float64),
        pixels_H=None if (pixels := more.get("pixels")) is None else np.asarray(pixels),
        stratum_N=arrays[0],
        mapped_N=arrays[1],
        reference_N=arrays[2],
        size_N=np.asarray(size, np.float64),
        mapped_area_K=np.full(classes, np.nan),
    )


def of_matrix(counts: NDArray[Any], areas: Sequence[float]) -> PointSample:
    """A sample whose strata are the map's classes."""
    mapped, reference = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(counts.shape))
    return sample(mapped, mapped, reference, areas, classes=len(counts))


def halves(figures: Sequence[Estimate], digits: int) -> list[float]:
    return [round(each.half, digits) for each in figures]


def values(figures: Sequence[Estimate], digits: int) -> list[float]:
    return [round(each.value, digits) for each in figures]


def test_the_example_of_olofsson_2014_to_the_printed_digit() -> None:
    """Tables 8 and 9 and section 5.2, but for two half-widths that contradict the paper's equation 7."""
    found = estimates(of_matrix(OLOFSSON, PIXELS))
    assert found.matrix_KK.round(4).tolist() == [
        [0.0176, 0, 0.0013, 0.0011],
        [0, 0.0110, 0.0016, 0.0024],
        [0.0019, 0, 0.2967, 0.0213],
        [0.0040, 0.0020, 0.0179, 0.6212],
    ]
    assert values(found.shares, 4) == [0.0235, 0.0130, 0.3175, 0.6460]
    assert values(found.users, 2) == [0.88, 0.73, 0.93, 0.96]
    assert halves(found.users, 2) == [0.07, 0.10, 0.04, 0.02]
    assert values(found.producers, 2) == [0.75, 0.85, 0.93, 0.96]
    assert halves(found.producers, 2)[::2] == [0.21, 0.03]
    assert (round(found.overall.value, 2), round(found.overall.half, 2)) == (0.95, 0.02)
    areas = found.areas(HECTARES)
    assert values(areas, 0) == [21_158, 11_686, 285_770, 581_386]
    assert halves(areas, 0) == [6_158, 3_756, 15_510, 16_282]
    assert values(found.areas(), 0)[0] == 235_086
    assert halves(found.areas(), 0)[0] == 68_418


def test_the_example_of_stehman_2014_to_the_printed_digit() -> None:
    columns = [["ABCD".index(letter) for letter in column] for column in STEHMAN]
    sizes = [40_000, 30_000, 20_000, 10_000]
    found = estimates(sample(*columns, sizes, pixels=sizes))
    assert (round(found.overall.value, 2), round(found.overall.se, 3)) == (0.63, 0.085)
    a, b, c = found.shares[0], 1, found.shares[2]
    assert (round(a.value, 2), round(a.se, 3)) == (0.35, 0.082)
    assert (round(c.value, 2), round(c.se, 3)) == (0.20, 0.064)
    assert (round(found.users[b].value, 3), round(found.users[b].se, 3)) == (0.574, 0.125)
    assert (round(found.producers[b].value, 3), round(found.producers[b].se, 3)) == (0.794, 0.117)
    assert round(float(found.matrix_KK[1, 2]), 2) == 0.08


def covered(found: Estimates, truth: dict[str, float]) -> dict[str, bool]:
    figures = {"overall": found.overall, "share": found.shares[1], "users": found.users[1]}
    figures |= {"producers": found.producers[1]}
    return {name: abs(each.value - truth[name]) <= each.half for name, each in figures.items()}


def coverage(
    sizes_HN: list[NDArray[Any]], classes_HN: list[tuple[Any, Any]], points: list[int]
) -> list[float]:
    """Share of 2,000 samples without replacement whose intervals hold the population's figures."""
    rng = np.random.default_rng(2014)
    size = np.concatenate(sizes_HN)
    mapped, reference = (np.concatenate([pair[i] for pair in classes_HN]) for i in (0, 1))
    right = (mapped == 1) & (reference == 1)
    truth = {
        "overall": size[mapped == reference].sum() / size.sum(),
        "share": size[reference == 1].sum() / size.sum(),
        "users": size[right].sum() / size[mapped == 1].sum(),
        "producers": size[right].sum() / size[reference == 1].sum(),
    }
    held: list[dict[str, bool]] = []
    areas, pixels = [float(each.sum()) for each in sizes_HN], [len(each) for each in sizes_HN]
    for _ in range(2000):
        drawn = [rng.choice(count, n, replace=False) for count, n in zip(pixels, points, strict=True)]
        columns = [
            np.concatenate([pair[i][d] for pair, d in zip(classes_HN, drawn, strict=True)]) for i in (0, 1)
        ]
        weight = np.concatenate([each[d] for each, d in zip(sizes_HN, drawn, strict=True)])
        one = sample(
            np.repeat(np.arange(len(points)), points), *columns, areas, classes=3, pixels=pixels, size=weight
        )
        held.append(covered(estimates(one), truth))
    return [float(np.mean([each[name] for each in held])) for name in truth]


def population(rng: np.random.Generator, counts: Sequence[int], *, nested: bool) -> list[tuple[Any, Any]]:
    """Mapped and reference classes of the pixels of three strata: classes of the map, or across them."""
    pairs = []
    for h, count in enumerate(counts):
        mapped = np.full(count, h) if nested else rng.choice(3, count, p=np.roll([0.6, 0.3, 0.1], h))
        reference = np.where(rng.random(count) < 0.75, mapped, rng.integers(0, 3, count))
        pairs.append((mapped, reference))
    return pairs


@pytest.mark.parametrize(
    ("nested", "even"),
    [
        pytest.param(False, False, id="strata are not classes, pixels unequal"),
        pytest.param(False, True, id="strata are not classes, pixels alike", marks=pytest.mark.slow),
        pytest.param(True, False, id="strata are classes, pixels unequal", marks=pytest.mark.slow),
        pytest.param(True, True, id="strata are classes, pixels alike", marks=pytest.mark.slow),
    ],
)
def test_intervals_cover_93_to_97_percent_of_2000_samples(nested: bool, even: bool) -> None:
    rng = np.random.default_rng(11)
    counts = (30_011, 9_001, 1_203)
    sizes = [np.ones(count) if even else rng.uniform(0.4, 1.6, count) for count in counts]
    shares = coverage(sizes, population(rng, counts, nested=nested), [211, 120, 101])
    assert all(0.93 <= share <= 0.97 for share in shares), shares


def test_a_known_area_and_a_census_have_no_error_and_figures_without_points_are_undefined() -> None:
    """All points of a stratum have one class, so its area is exact, although its pixels differ in size."""
    size = np.array([1.0, 2.0, 3.0, 5.0, 1.0, 7.0])
    one = sample(
        [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [40.0, 60.0], classes=2, size=size
    )
    found = estimates(one)
    assert [each.value for each in found.areas()] == pytest.approx([40, 60], abs=1e-12)
    assert [each.se for each in (*found.shares, found.overall)] == [0, 0, 0]

    found = estimates(sample([0, 0, 1], [0, 1, 1], [0, 0, 1], [2.0, 1.0], pixels=[2, 1], classes=3))
    assert found.overall.value == pytest.approx(2 / 3)
    assert found.overall.se == 0
    assert math.isnan(found.users[2].value)
    assert math.isnan(found.producers[2].se)
    assert found.shares[2].value == 0


def test_where_no_error_is_met_the_interval_is_wilsons_and_never_of_no_width() -> None:
    for count in (10, 50, 400):
        classes = np.repeat([0, 1], count)
        found = estimates(sample(classes, classes, classes, [900.0, 100.0], classes=3))
        kish = 1 / (0.9**2 / count + 0.1**2 / count)
        assert found.overall.low == pytest.approx(kish / (kish + 1.96**2))
        assert found.users[0].low == pytest.approx(count / (count + 1.96**2))
        assert (found.overall.high, found.users[0].high) == (1, 1)
        unseen = 0.9 * 1.96**2 / (count + 1.96**2)
        assert (found.shares[1].high - 0.1, found.producers[1].low) == pytest.approx(
            (unseen, 0.1 / (0.1 + unseen))
        )
        assert found.shares[2].high == pytest.approx(
            1.96**2 / (kish + 1.96**2)
        )  # a class that no point shows
        figures = (found.overall, *found.shares, *found.users[:2], *found.producers[:2])
        assert all(each.half > 0 and "± 0" not in with_interval(each) for each in figures)
    census = estimates(sample([0, 0, 1], [0, 0, 1], [0, 0, 1], [2.0, 1.0], pixels=[2, 1], classes=2))
    assert [each.half for each in (census.overall, *census.shares, *census.producers)] == [0] * 5


def test_wilsons_bound_holds_where_errors_are_seldom_met() -> None:
    """Samples of 60 of which 1 % are wrong: more than half meet no error; ± 0 would hold in none of those."""
    rng = np.random.default_rng(1)
    held, zero = [], np.zeros(60, np.intp)
    for wrong in rng.binomial(60, 0.01, 500):
        reference = np.where(np.arange(60) < wrong, 1, 0)
        overall = estimates(sample(zero, zero, reference, [1.0], classes=2)).overall
        held.append((wrong == 0, overall.low <= 0.99 <= overall.high))
    none, holds = np.transpose(held)
    assert holds[none].all()
    assert none.mean() > 0.5


def test_an_error_in_a_small_stratum_does_not_hide_that_the_large_one_shows_none() -> None:
    mapped = np.repeat([0, 1], [50, 40])
    reference = np.where(np.arange(90) < 85, mapped, 0)
    overall = estimates(sample(mapped, mapped, reference, [97.0, 3.0], classes=2)).overall
    assert 1 - overall.low > 0.97 * 1.96**2 / (50 + 1.96**2)


def test_few_points_that_stand_for_much_area_are_said_and_probabilities_mend_them() -> None:
    size = np.repeat([1.0, 100.0], [297, 3])
    zero = np.zeros(300, np.intp)
    reference = (np.arange(300) % 10 == 0).astype(np.intp)
    alike = sample(zero, zero, reference, [3e4], classes=2, size=size)
    assert effective_points(alike, np.ones(300, np.bool_)) < 15
    assert any("count as" in line and line.startswith("stratum 0") for line in remarks(estimates(alike)))
    by_area = replace(alike, probability_N=size / 1e4)
    assert effective_points(by_area, np.ones(300, np.bool_)) == pytest.approx(300)
    found = estimates(by_area)
    assert found.overall.value == pytest.approx(0.9)
    assert not any("count as" in line for line in remarks(found))
    mean = 0.9 * 0.1 / 299
    assert found.overall.se == pytest.approx(np.sqrt(mean), rel=0.01)  # all but (1 - p)


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
    assert (water["producers"]["value"], water["producers"]["se"]) == (1, 0)
    unseen = 9700 * 1.96**2 / (50 + 1.96**2)  # no water in 50 points of dry land
    assert water["producers"]["low"] == pytest.approx(300 * 40 / 45 / (300 * 40 / 45 + unseen))
    se = 300 * np.sqrt(40 / 45 * 5 / 45 / 44)
    ends = [100 * (300 * 40 / 45 + side) for side in (-1.96 * se, np.hypot(1.96 * se, unseen))]
    assert [water["area"]["low"], water["area"]["high"]] == pytest.approx(ends)
    assert found["unit"] == "ha"
    assert water["area"]["value"] == pytest.approx(300 * 100 * 40 / 45)
    assert water["mapped_area"] is None  # strata are no classes
    assert np.sum(found["matrix"]) == pytest.approx(1)
    assert found["sentences"][1] == "water 267 (239–959) km² (95 %)"
    assert [line.partition(":")[0] for line in found["remarks"]] == ["land", "water"]

    points = table("p.csv", POINTS)
    without = estimated(capsys, points, "--areas", table("a.csv", AREAS))
    known = estimated(
        capsys, points, "--areas", table("b.csv", "stratum,area,pixels\nwet,300,60\ndry,9700,1940\n")
    )
    ratio = known["overall"]["se"] / without["overall"]["se"]
    assert ratio == pytest.approx(np.sqrt(1 - 45 / 60))


def test_the_same_table_in_other_forms_is_the_same(table: Any, capsys: Any) -> None:
    """Semicolons, spaces, a byte order mark, a column more, no label, areas of the pixels, an empty row."""
    plain = estimated(capsys, table("p.csv", POINTS), "--areas", table("a.csv", AREAS))
    odd = "\ufeff" + POINTS.replace(",", " ; ").replace("\n", ";x;7\n").replace(
        "reference;x;7", "reference;note;pixel_area"
    )
    more = "dry;land;;;7\ndry;land;NA;;7\n;;;;\n"
    other = estimated(capsys, table("q.csv", odd + more), "--areas", table("b.csv", AREAS))
    assert other["unlabelled"] == 2
    assert len(other["remarks"]) == len(plain["remarks"]) + 1
    pairs = zip(other["classes"], plain["classes"], strict=True)
    assert all(
        a["users"] == pytest.approx(b["users"]) and a["area"] == pytest.approx(b["area"]) for a, b in pairs
    )


def test_codes_that_became_floats_are_the_same_classes(table: Any, capsys: Any) -> None:
    """A column with an empty cell is written by pandas as floats."""
    coded = POINTS.replace("water", "1").replace("land", "10").replace("wet", "1").replace("dry", "10")
    areas = AREAS.replace("wet", "1").replace("dry", "10")
    plain = estimated(capsys, table("p.csv", coded + "10,10,\n"), "--areas", table("a.csv", areas))
    assert [each["name"] for each in plain["classes"]] == ["1", "10"]
    for column in range(3):
        rows = [line.split(",") for line in coded.splitlines()] + [["10", "10", ""]]
        for row in rows[1:]:
            row[column] += ".0" * bool(row[column])
        odd = table("q.csv", "".join(",".join(row) + "\n" for row in rows))
        assert estimated(capsys, odd, "--areas", table("a.csv", areas)) == plain
    floats = table("b.csv", areas.replace("\n1,", "\n1.0,"))
    assert estimated(capsys, table("p.csv", coded + "10,10,\n"), "--areas", floats) == plain


def test_numbers_have_the_digits_of_their_intervals() -> None:
    assert with_interval(Estimate(12.4321, 1.1 / 1.96), " km²") == "12.4 ± 1.1 km²"
    assert with_interval(Estimate(235_086.3, 34_907)) == "235,086 ± 68,418"
    assert with_interval(Estimate(0.5, 0.099999 / 1.96)) == "0.50 ± 0.10"
    assert with_interval(Estimate(float("nan"), 1.0)) == "–"
    assert [with_interval(Estimate(x, 0.0)) for x in (3.0, 2.4e7)] == ["3.00 ± 0", "24,000,000 ± 0"]
    assert [unit_for("m2", total).name for total in (9e3, 2e4, 2e7)] == ["m2", "ha", "km2"]
    assert unit_for("ha", 5.0).factor == 1
    assert unit_for("", 5.0).sign == ""


def test_the_page_has_all_classes_and_charts(table: Any, tmp_path: Path, capsys: Any) -> None:
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
        (POINTS.replace("\n", ",land\n").replace("reference,land", "reference,reference"), AREAS),
        ("stratum,mapped,reference\nwet,water,\ndry,land,\n", AREAS),  # nothing is labelled
        ("stratum,mapped,reference\nwet,water,water\n" + "dry,land,land\n" * 9, AREAS),  # one point alone
        ("stratum,mapped,reference,pixel_area\nwet,water,water,x\n", AREAS),
        ('stratum,mapped,reference\n"wet,water', AREAS),
        (POINTS, "stratum,area\nwet,300,5\ndry,9700\n"),  # a decimal comma
        (POINTS + "dry,,land\n", AREAS),  # no mapped class: outside the map
        (POINTS + "dry,land,Land\n", AREAS),  # two spellings
        ("", AREAS),
    ],
)
def test_mistakes_in_tables_end_in_one_line(points: str, areas: str, table: Any) -> None:
    with pytest.raises(DatasetError):
        main(["estimate", str(table("p.csv", points)), "--areas", str(table("a.csv", areas))])


def test_tables_need_areas_and_files_must_be_there(table: Any, tmp_path: Path) -> None:
    points = str(table("p.csv", POINTS))
    for words in ([points], [points, "--areas", str(tmp_path / "none.csv")], [str(tmp_path / "none.gpkg")]):
        with pytest.raises(SegmenterError):
            main(["estimate", *words])
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
    assert [each["mapped_area"] for each in found["classes"]] == [100, 200, 300], "of the same unit"


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
    assert (
        str(drawn) in str(raised.value) or "stratum" in str(raised.value) or "reference" in str(raised.value)
    )


@pytest.mark.parametrize(
    ("statement", "where", "got"),
    [
        ("update points set id = 1 where fid = 3", "point", "id 1"),
        ("update points set (row, col, map) = (select row, col, map from points where fid = 1) where fid = 3",
         "point 3", "the pixel in row"),
        ("update points set id = 99 where fid = 3", "point 3", "99"),
        ("update points set id = 2.5 where fid = 3", "point 3", "id 2"),
        ("update points set row = null where fid = 3", "point 3", "an empty cell"),
        ("update points set col = -1 where fid = 3", "point 3", "-1"),
        ("update points set map = '' where fid = 3", "point 3", "an empty cell"),
        ("update points set probability = null where fid = 3", "point 3", "an empty cell"),
        ("update points set probability = probability / 2 where fid = 3", "point 3", None),
        ("update points set pixel_area = pixel_area * 1e6 where fid = 3", "point 3", None),
        ("update points set pixel_area = pixel_area * 1e6", "stratum", None),
        ("update points set pixel_area = 1e6 where stratum = 'road'", "stratum road", None),
        ("update points set mapped = 'water' where mapped = 'land'", "point", "'water'"),
        ("update points set mapped = null, reference = null where fid = 3", "point 3", "''"),
        ("update points set row = row + 1 where fid = 3", "point 3", None),
        ("update points set x = null where fid = 3", "point 3", None),
    ],
)  # fmt: skip
def test_copied_moved_and_edited_points_are_refused_by_number(
    drawn: Path, statement: str, where: str, got: str | None
) -> None:
    changed(drawn, statement)
    with refused(DatasetError, where=f"{drawn}", **({} if got is None else {"got": got})) as raised:
        main(["estimate", str(drawn)])
    assert where in str(raised.value.where)


def test_rows_that_were_put_in_behind_the_count_are_refused(drawn: Path) -> None:
    copied = "stratum, mapped, reference, probability, map, row, col, x, y, pixel_area, geom"
    changed(
        drawn,
        "drop trigger trigger_insert_feature_count_points",
        f"insert into points (id, {copied}) select 61, {copied} from points where fid = 1",
    )
    with refused(DatasetError, where="layer points", got=61):
        main(["estimate", str(drawn)])


def test_points_without_their_map_at_hand_are_said_not_to_be_compared(drawn: Path, capsys: Any) -> None:
    assert main(["estimate", str(drawn)]) == 0
    assert "not compared" not in capsys.readouterr().err
    (drawn.parent / "a.tif").rename(drawn.parent / "moved.tif")
    assert main(["estimate", str(drawn)]) == 0
    assert "not compared" in capsys.readouterr().err
    changed(drawn, "update points set mapped = 'water' where mapped = 'land'")
    assert main(["estimate", str(drawn)]) == 0
    (drawn.parent / "maps").mkdir()
    (drawn.parent / "moved.tif").rename(drawn.parent / "maps" / "a.tif")
    with refused(DatasetError, got="'water'"):
        main(["estimate", str(drawn), "--keep", str(drawn.parent / "maps")])


def test_a_unit_without_areas_to_apply_to_is_refused(drawn: Path) -> None:
    with refused(SegmenterError, where="--unit km2"):
        main(["estimate", str(drawn), "--unit", "km2"])


def test_a_table_of_points_takes_their_probabilities_and_refuses_copies(table: Any, capsys: Any) -> None:
    areas = table("a.csv", AREAS)
    rows = POINTS.splitlines()
    head = rows[0] + ",id,pixel_area,probability\n"
    lines = [f"{row},{i},{1 + i % 2},{0.01 * (1 + i % 2)}" for i, row in enumerate(rows[1:])]
    by_area = estimated(capsys, table("p.csv", head + "\n".join(lines)), "--areas", areas)
    alike = estimated(capsys, table("q.csv", POINTS), "--areas", areas)
    assert by_area["overall"]["value"] == pytest.approx(alike["overall"]["value"])
    assert by_area["overall"]["se"] < alike["overall"]["se"]  # by the pixels that are known
    with refused(DatasetError, where="line 97", got="id 3"):
        main(["estimate", str(table("r.csv", head + "\n".join([*lines, lines[3]]))), "--areas", str(areas)])
    wrong = [*lines[:-1], lines[-1].rpartition(",")[0] + ",1.5"]
    with refused(DatasetError, where="line 96", got="1.5"):
        main(["estimate", str(table("s.csv", head + "\n".join(wrong))), "--areas", str(areas)])


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


def test_a_point_that_cannot_be_told_is_left_out_unless_that_is_a_class(tmp_path: Path, capsys: Any) -> None:
    areas = tmp_path / "areas.csv"
    areas.write_text("stratum,area\na,30\nb,70\n")
    rows = ["a,a,a", "a,a,b", "b,b,b", "b,b,b", "b,b,a"]
    found = []
    for more in ("", UNCLEAR):
        points = tmp_path / "points.csv"
        points.write_text("\n".join(["stratum,mapped,reference", *rows, f"a,a,{more}"]) + "\n")
        assert main(["estimate", str(points), "--areas", str(areas), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["unlabelled"] == 1
    table = PointTable(list("12345"), list("aabbb"), list("aabbb"), ["a", UNCLEAR, "b", "b", "a"], [1.0] * 5)
    own = sample_of(table, Areas({"a": 30.0, "b": 70.0}), ["a", "b", UNCLEAR])
    assert (own.unlabelled, own.classes[own.reference_N[1]]) == (0, UNCLEAR)
