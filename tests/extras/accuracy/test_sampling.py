"""Samples of maps: uniform within strata, areas on the ground, allocation, files that QGIS reads."""

import json
import sqlite3
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.warp import transform

from segmenter.base.errors import ConfigError, DatasetError, RasterError, SegmenterError
from segmenter.evaluation.layers import stretch_picture
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.stretch import Stretch
from segmenter.raster import RasterSpec, raster_info, write_raster
from tests.helpers.geopackage import changed
from tests.helpers.refusals import refused

pytest.importorskip("pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'")
import pyogrio

from datasets.commands.accuracy import main
from segmenter.extras.accuracy import covers
from segmenter.extras.accuracy.covers import Reservoirs
from segmenter.extras.accuracy.estimators import PointSample, estimates
from segmenter.extras.accuracy.sampling import SamplePlan, expected_accuracies
from segmenter.extras.accuracy.tally import PixelSizes, StratumTally
from segmenter.extras.vector_files.database import UNCLEAR
from segmenter.raster.pixel_areas import PixelAreas

NAMES = ("water", "Wald ¼", "road")
METRES = rasterio.Affine(2.0, 0, 368_000, 0, -2.0, 5_808_000)
DEGREES = rasterio.Affine(0.02, 0, 10.0, 0, -0.03, 69.0)
Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """`put("a/b.tif", ids)`: a class map as predict.py writes it, below the test's folder."""

    def put(
        name: str,
        ids: NDArray[np.uint8],
        crs: str | None = "EPSG:25833",
        move: rasterio.Affine = METRES,
        names: Sequence[str] = NAMES,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        tags = {f"CLASS_{i}": text for i, text in enumerate(names)}
        where = {} if crs is None else {"crs": rasterio.CRS.from_string(crs), "transform": move}
        write_raster(path, ids, RasterSpec(nodata=IGNORE, tags=tags, **where))
        return path

    return put


def noise(seed: int, height: int, width: int) -> NDArray[np.uint8]:
    """A map of three classes, the last one rare, with a wedge without data."""
    rng = np.random.default_rng(seed)
    ids = rng.choice(3, (height, width), p=[0.7, 0.25, 0.05]).astype(np.uint8)
    ids[: height // 5, : width // 3] = IGNORE
    return ids


def sampled(*words: Any) -> dict[str, dict[str, NDArray[Any]]]:
    """Run `sample`; return the layers of the file by name, with the points' coordinates."""
    output = Path(words[-1])
    assert main(["sample", *map(str, words[:-1]), "--output", str(output)]) == 0
    layers: dict[str, dict[str, NDArray[Any]]] = {}
    for layer in ("points", "strata", "classes"):
        meta, _, _, values = pyogrio.raw.read(output, layer=layer)
        layers[layer] = dict(zip(map(str, meta["fields"]), values, strict=True))
    wkb = pyogrio.raw.read(output, layer="points")[2]
    layers["points"]["xy"] = np.array([np.frombuffer(each[5:], "<f8") for each in wkb])
    return layers


def labelled(path: Path, truth: Callable[[str, int, int], str | None]) -> None:
    """Fill the field `reference` of all points."""
    with sqlite3.connect(path) as file:
        points = file.execute("select fid, map, row, col from points").fetchall()
    file.close()
    values = [(truth(name, row, col), fid) for fid, name, row, col in points]
    changed(path, *(("update points set reference = ? where fid = ?", pair) for pair in values))


def estimated(capsys: Any, *words: Any) -> Any:
    capsys.readouterr()
    assert main(["estimate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_kept_pixels_are_a_uniform_sample_of_each_stratum_without_replacement(monkeypatch: Any) -> None:
    monkeypatch.setattr("segmenter.extras.accuracy.covers._SLACK", 1)  # the surplus is dropped early
    strata = np.array([[0, 0, 1, -1], [0, 1, 0, 1], [0, 0, 0, 0]], np.int64)
    hits = np.zeros((2, 3, 4))
    trials = 3000
    for seed in range(trials):
        reservoirs = Reservoirs(2, 4, seed)
        for row in range(3):  # in windows of a row
            window = Window(row, 0, 1, 4)
            reservoirs.add(0, window, strata[row : row + 1], strata[row : row + 1])
        drawn = reservoirs.sample(np.array([4, 2]))
        assert np.bincount(drawn.stratum).tolist() == [4, 2]
        assert len(set(zip(drawn.row.tolist(), drawn.col.tolist(), strict=True))) == 6
        np.testing.assert_array_equal(strata[drawn.row, drawn.col], drawn.stratum)
        np.add.at(hits, (drawn.stratum, drawn.row, drawn.col), 1)
    for stratum, probability in enumerate((4 / 8, 2 / 3)):
        shares = hits[stratum][strata == stratum] / trials
        np.testing.assert_allclose(shares, probability, atol=5 * np.sqrt(0.25 / trials))


@pytest.mark.slow
def test_pixels_are_drawn_with_their_probability_and_in_a_fixed_number(monkeypatch: Any) -> None:
    monkeypatch.setattr("segmenter.extras.accuracy.covers._SLACK", 1)
    area = np.array([[1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 9.0, 60.0]])
    stratum = np.zeros(area.shape, np.int64)
    sizes = PixelAreas(np.zeros(1), np.arange(9.0), area, plane=True)
    tally = StratumTally(PixelSizes([sizes]), np.zeros(1, np.int64), np.zeros(1))
    tally.add(stratum, stratum, area)
    points = np.array([4])
    chance = tally.chances(points).of(stratum, area)
    assert chance[0, -1] == 1  # the largest is taken for certain
    np.testing.assert_allclose(chance[0, :-2] / area[0, :-2], chance[0, 0])
    assert chance.sum() == pytest.approx(4)
    hits, trials = np.zeros(9), 2000
    for seed in range(trials):
        reservoirs = Reservoirs(1, points, seed)
        for col in range(0, 9, 3):
            part = (slice(None), slice(col, col + 3))
            reservoirs.add(0, Window(0, col, 1, 3), stratum[part], stratum[part], chance[part])
        drawn = reservoirs.sample(points)
        assert len(set(drawn.col.tolist())) == 4
        hits[drawn.col] += 1
    np.testing.assert_allclose(hits / trials, chance[0], atol=0.03)  # Pareto's are within 0.02 of four points


@pytest.mark.slow
def test_intervals_over_maps_of_unlike_pixels_hold_the_truth_and_points_of_one_size_are_drawn_as_before() -> (
    None
):
    """Two maps of one area, pixels of 1 and of 25; accuracy .95 and .8, which points drawn alike mistake."""
    rng, held, large = np.random.default_rng(3), [], 25.0
    mapped = [rng.integers(0, 2, (1, count)) for count in (10_000, 400)]
    wrong = [rng.random(ids.shape) < share for ids, share in zip(mapped, (0.05, 0.2), strict=True)]
    areas = [PixelAreas(np.zeros(1), np.zeros(1), np.full((1, 1), size), plane=True) for size in (1.0, large)]
    truth = 1 - (wrong[0].sum() + large * wrong[1].sum()) / 20_000
    tally = StratumTally(PixelSizes(areas), np.zeros(2, np.int64), np.zeros(2))
    for ids, area in zip(mapped, areas, strict=True):
        tally.add(ids, ids, area.area_RC)
    points = np.array([100, 100])
    chances = tally.chances(points)
    for seed in range(400):
        kept = Reservoirs(2, points, seed)
        for number, ids in enumerate(mapped):
            window = Window(0, 0, *ids.shape)
            kept.add(number, window, ids, ids, chances.of(ids, areas[number].area_RC))
        drawn = kept.sample(points)
        size = np.array([1.0, large])[drawn.raster]
        err = np.array([wrong[i][0, col] for i, col in zip(drawn.raster, drawn.col, strict=True)])
        found = estimates(
            PointSample(
                *(("a", "b"), ("a", "b"), tally.area_H, tally.pixels_H, drawn.stratum, drawn.mapped),
                *(np.where(err, 1 - drawn.mapped, drawn.mapped), size, np.full(2, np.nan)),
                probability_N=chances.of(drawn.stratum, size),
            )
        )
        held.append(found.overall.low <= truth <= found.overall.high)
    assert 0.93 <= np.mean(held) <= 0.97

    alike, one = Reservoirs(2, 50, 5), Reservoirs(2, np.array([50, 50]), 5)
    window = Window(0, 0, *mapped[0].shape)
    alike.add(0, window, mapped[0], mapped[0])
    one.add(0, window, mapped[0], mapped[0], np.full(mapped[0].shape, 0.003))
    sets = [set(each.sample(np.array([50, 50])).col.tolist()) for each in (alike, one)]
    assert sets[0] == sets[1]


def plan(allocation: Any, floor: int | None = None, spread: Any = None) -> SamplePlan:
    """The planning example of Olofsson et al. 2014, table 5."""
    users = np.array([0.70, 0.60, 0.90, 0.95])
    pixels = np.array([200_000, 150_000, 3_200_000, 6_450_000])
    return SamplePlan(pixels.astype(float), pixels, np.sqrt(users * (1 - users)), allocation, floor)


def test_the_sample_size_of_olofsson_2014() -> None:
    """Equation 13 gives 641 points for a standard error of 0.01; table 5 has their allocation."""
    assert plan("neyman", floor=1).size_for(0.01) == 641
    assert plan("proportional", floor=1).points(641).tolist() == [13, 10, 205, 413]
    assert plan("equal").points(640).tolist() == [160] * 4


@pytest.mark.parametrize("allocation", ["proportional", "equal", "neyman"])
@pytest.mark.parametrize("floor", [None, 2, 75])
def test_points_add_up_keep_the_floor_and_reach_the_wished_error(allocation: Any, floor: int | None) -> None:
    one = plan(allocation, floor)
    for total in (301, 640, 5000):
        points = one.points(total)
        assert points.sum() == total
        assert points.min() >= (floor or 2)
    size = one.size_for(0.012)
    assert one.error(one.points(size)) == pytest.approx(0.012, rel=0.01)
    assert size == (floor or 2) * 4 or one.error(one.points(size - 40)) > 0.012


@pytest.mark.parametrize("floor", [None, 1, 2, 3])
@pytest.mark.parametrize("allocation", ["proportional", "equal", "neyman"])
def test_the_points_are_as_many_as_asked_for_or_refused(allocation: Any, floor: int | None) -> None:
    rng = np.random.default_rng(7)
    for strata in (1, 2, 5, 11):
        pixels = rng.integers(1, 60, strata)
        one = SamplePlan(pixels * rng.uniform(1, 9, strata), pixels, rng.random(strata), allocation, floor)
        least = int(np.minimum(pixels, max(floor or 2, 2)).sum())
        for total in range(1, pixels.sum() + 2):
            if least <= total <= pixels.sum():
                points = one.points(total)
                assert points.sum() == total
                assert (points <= pixels).all()
            else:
                with refused(DatasetError, where="--points", got=total):
                    one.points(total)


def test_strata_that_are_expected_to_be_right_get_points_and_small_ones_are_taken_whole() -> None:
    sure = SamplePlan(np.array([3.0, 1.0]), np.array([300, 100]), np.zeros(2), "neyman", 1)
    assert sure.points(40).tolist() == [30, 10]
    assert sure.error(sure.points(40)) == 0

    small = SamplePlan(np.array([5.0, 1e6]), np.array([5, 10**6]), np.array([0.4, 0.4]), "equal", 50)
    assert small.points(600).tolist() == [5, 595]
    with pytest.raises(DatasetError, match="--points"):
        small.points(20)


def test_points_lie_on_their_pixels_and_areas_are_those_of_the_map(
    put: Put, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(covers, "_SIDE", 37)
    ids = noise(1, 203, 317)
    layers = sampled(put("m/a.tif", ids), "--points", 100, "--floor", 20, tmp_path / "p.gpkg")
    points, strata = layers["points"], layers["strata"]
    row, col = points["row"], points["col"]
    assert [NAMES[i] for i in ids[row, col]] == points["mapped"].tolist() == points["stratum"].tolist()
    centres = [METRES @ (c + 0.5, r + 0.5) for r, c in zip(row, col, strict=True)]
    np.testing.assert_allclose(points["xy"], centres)
    counts = np.bincount(ids[ids != IGNORE], minlength=3)
    assert strata["pixels"].tolist() == counts.tolist()
    np.testing.assert_allclose(strata["area"], counts * 4.0)
    assert strata["points"].sum() == len(row) == 100
    assert strata["points"].min() == 20
    share = dict(zip(strata["stratum"], strata["points"] / counts, strict=True))
    np.testing.assert_allclose(points["probability"], [share[name] for name in points["stratum"]])
    assert points["reference"].tolist() == [None] * 100


def test_the_same_seed_draws_the_same_points_and_another_draws_others(put: Put, tmp_path: Path) -> None:
    path = put("m/a.tif", noise(1, 90, 71))
    drawn = [
        sampled(path, "--seed", seed, "--points", 50, tmp_path / f"{i}.gpkg")
        for i, seed in enumerate((4, 4, 5))
    ]
    keys = [list(zip(each["points"]["row"], each["points"]["col"], strict=True)) for each in drawn]
    assert keys[0] == keys[1] != keys[2]


def test_maps_of_several_crss_are_one_sample_of_true_areas(put: Put, tmp_path: Path, capsys: Any) -> None:
    """Degrees at 69° north: pixels shrink from row to row; a map of metres beside it."""
    ids, other = noise(2, 160, 83), noise(3, 60, 60)
    a, b = put("m/a.tif", ids, "EPSG:4326", DEGREES), put("m/b.tif", other)
    layers = sampled(a, b, "--points", 400, tmp_path / "p.gpkg")
    assert pyogrio.read_info(tmp_path / "p.gpkg", layer="points")["crs"] == "EPSG:4326"
    points = layers["points"]
    of_b = points["map"] == "b.tif"
    x, y = METRES @ (points["col"][of_b] + 0.5, points["row"][of_b] + 0.5)
    np.testing.assert_allclose(points["xy"][of_b].T, transform("EPSG:25833", "EPSG:4326", x, y), atol=1e-9)
    north = 69.0 - 0.03 * np.arange(161)  # authalic areas of cells, from the equal-area projection
    edges = np.array(transform("EPSG:4326", "EPSG:6933", np.zeros(161), north)[1])
    width = transform("EPSG:4326", "EPSG:6933", [0.0, 0.02], [0.0, 0.0])[0]
    cell = (edges[:-1] - edges[1:]) * (width[1] - width[0])
    areas = [float((cell[:, None] * (ids == k)).sum() + 4.0 * (other == k).sum()) for k in range(3)]
    np.testing.assert_allclose(layers["classes"]["area"], areas, rtol=1e-6)
    np.testing.assert_allclose(points["pixel_area"][~of_b], cell[points["row"][~of_b]], rtol=1e-6)
    labelled(tmp_path / "p.gpkg", lambda name, r, c: NAMES[(ids if name == "a.tif" else other)[r, c]])
    found = estimated(capsys, tmp_path / "p.gpkg")
    assert [each["area"]["value"] for each in found["classes"]] == pytest.approx(
        [a / 1e4 for a in areas], rel=1e-6
    )
    assert found["unit"] == "ha"
    assert found["overall"]["value"] == pytest.approx(1)


def test_strata_may_be_a_grid_another_map_or_any_codes(put: Put, tmp_path: Path) -> None:
    ids = noise(5, 100, 90)
    path = put("m/a.tif", ids)
    grid = sampled(path, "--grid", 80, "--points", 60, tmp_path / "g.gpkg")
    cells = {
        f"a row {r} column {c}": ids[40 * r : 40 * r + 40, 40 * c : 40 * c + 40]
        for r in range(3)
        for c in range(3)
    }
    counts = {name: int((cell != IGNORE).sum()) for name, cell in cells.items()}
    assert dict(zip(grid["strata"]["stratum"], grid["strata"]["pixels"], strict=True)) == counts
    points = grid["points"]
    inside = zip(points["stratum"], points["row"] // 40, points["col"] // 40, strict=True)
    assert all(name == f"a row {r} column {c}" for name, r, c in inside)
    zones = np.tile(np.arange(90) // 31, (100, 1)).astype(np.uint16) * 300
    codes = tmp_path / "zones.tif"
    write_raster(
        codes, zones, RasterSpec(nodata=600, crs=rasterio.CRS.from_string("EPSG:25833"), transform=METRES)
    )
    by_code = sampled(path, "--strata", codes, "--points", 40, tmp_path / "z.gpkg")
    left, right = ((ids != IGNORE) & (zones == zone) for zone in (0, 300))
    assert by_code["strata"]["stratum"].tolist() == ["0", "300"]
    assert by_code["strata"]["pixels"].tolist() == [left.sum(), right.sum()]
    by_map = sampled(
        path, "--strata", put("s/a.tif", np.roll(ids, 9, 1)), "--points", 40, tmp_path / "m.gpkg"
    )
    assert by_map["strata"]["stratum"].tolist() == list(NAMES)
    pixels = [NAMES[i] for i in ids[by_map["points"]["row"], by_map["points"]["col"]]]
    assert by_map["points"]["mapped"].tolist() == pixels


def test_changes_between_two_maps_are_classes(put: Put, tmp_path: Path, capsys: Any) -> None:
    new, old = noise(6, 80, 70), np.roll(noise(6, 80, 70), 1, 0)
    put("old/a.tif", old)
    path, output = put("new/a.tif", new), tmp_path / "c.gpkg"
    layers = sampled(path, "--before", tmp_path / "old", "--points", 90, output)
    both = (new != IGNORE) & (old != IGNORE)
    names = [f"{a} → {b}" for a in NAMES for b in NAMES]
    assert layers["classes"]["class"].tolist() == names
    pairs = np.bincount((old * 3 + new)[both], minlength=9)
    np.testing.assert_allclose(layers["classes"]["area"], pairs * 4.0)
    labelled(output, lambda _, r, c: names[old[r, c] * 3 + new[r, c]])
    assert estimated(capsys, output)["overall"]["value"] == pytest.approx(1)


def test_without_georeference_pixels_count(put: Put, tmp_path: Path, capsys: Any) -> None:
    ids = noise(7, 60, 50)
    output = tmp_path / "p.gpkg"
    points = sampled(put("m/a.tif", ids, None), "--points", 40, output)["points"]
    np.testing.assert_allclose(points["xy"], np.stack([points["col"] + 0.5, -points["row"] - 0.5], axis=1))
    labelled(output, lambda _, r, c: NAMES[ids[r, c]])
    found = estimated(capsys, output)
    assert found["unit"] == "px"
    assert [each["area"]["value"] for each in found["classes"]] == pytest.approx(
        [(ids == k).sum() for k in range(3)]
    )


@pytest.mark.slow
def test_memory_is_that_of_a_window_and_the_kept_pixels(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covers, "_SIDE", 128)
    peaks = []
    for number, height in enumerate((300, 300, 6000)):  # the first imports modules, too
        path = put(f"m/{number}.tif", noise(1, height, 301))
        tracemalloc.start()
        main(["sample", str(path), "--points", "60", "--output", str(path.with_suffix(".gpkg"))])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.02 * peaks[1] + (1 << 16)


@pytest.mark.slow
def test_memory_does_not_grow_with_points_times_strata(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covers, "_SLACK", 1 << 10)
    path, peaks = put("m/a.tif", noise(1, 600, 600)), []
    for words in (["--grid", "1200"], ["--grid", "1200"], ["--grid", "60"]):  # 1 and 400 strata
        tracemalloc.start()
        main(["sample", str(path), "--points", "1500", "--overwrite", *words, "--output", f"{path}.gpkg"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.1 * peaks[1] + (1 << 20)


def test_the_form_offers_the_classes_and_hides_what_the_map_says(put: Put, tmp_path: Path) -> None:
    sampled(put("m/a.tif", noise(1, 40, 50)), "--points", 30, tmp_path / "p.gpkg")
    root = ET.parse(tmp_path / "p.qml").getroot()
    widgets = {field.get("name"): field.find("editWidget") for field in root.iter("field")}
    reference = root.find("fieldConfiguration/field[@name='reference']/editWidget")
    assert reference.get("type") == "ValueMap"
    choices = [each for each in reference.iter("Option") if each.get("type") == "QString"]
    offered = [(each.get("name"), each.get("value")) for each in choices]
    assert offered == [(name, name) for name in (*NAMES, UNCLEAR)]
    assert {"mapped", "stratum"} <= widgets.keys()
    hidden = root.find("fieldConfiguration/field[@name='mapped']/editWidget")
    assert hidden.get("type") == "Hidden"


def test_chips_show_the_surroundings_of_each_point(
    shared_data: Callable[[str], Path], put: Put, tmp_path: Path
) -> None:
    images = sorted((shared_data("naip") / "val" / "img").glob("*.tif"))
    for image in images:
        info = raster_info(image)
        put(
            f"m/{image.name}",
            noise(1, info.size.height, info.size.width),
            info.crs.to_string(),
            info.transform,
        )
    words = ("--points", 12, "--floor", 2, "--chips", images[0].parent)
    points = sampled(tmp_path / "m", *words, tmp_path / "p.gpkg")["points"]
    chips = sorted((tmp_path / "p.chips").iterdir(), key=lambda path: int(path.stem))
    assert [path.stem for path in chips] == [str(fid) for fid in range(1, 13)]
    inside = (np.abs(points["row"] - 128) < 64) & (np.abs(points["col"] - 128) < 64)
    assert inside.any()
    place = int(np.argmax(inside))
    row, col = int(points["row"][place]), int(points["col"][place])
    with rasterio.open(images[0].parent / points["map"][place]) as image:
        scene = image.read((1, 2, 3)).transpose(1, 2, 0)
        pixels = scene[row - 64 : row + 65, col - 64 : col + 65]
    with rasterio.open(chips[place]) as chip:
        picture = chip.read((1, 2, 3)).transpose(1, 2, 0)
    assert picture.shape == (129 * 4, 129 * 4, 3)
    of_scene = Stretch.of(scene, np.ones(scene.shape[:2], np.bool_))  # chips of a scene look alike
    wanted = stretch_picture(pixels, np.ones((129, 129), np.bool_), of_scene)
    np.testing.assert_array_equal(picture[3::4, 3::4], wanted)
    frame = (picture == (255, 0, 255)).all(axis=2)
    assert [int(index.min()) for index in frame.nonzero()] == [64 * 4 - 2] * 2
    sampled(tmp_path / "m", *words[:4], "--seed", 3, "--overwrite", tmp_path / "p.gpkg")
    assert not (tmp_path / "p.chips").exists(), "other points have the same numbers"


def test_mistakes_end_in_one_line_and_leave_no_file(put: Put, tmp_path: Path) -> None:
    a, b = put("m/a.tif", noise(1, 40, 50)), put("o/b.tif", noise(2, 40, 50))
    other = put(
        "o/c.tif", noise(2, 40, 50), names=("water", "road", "sea"), move=METRES @ METRES.translation(900, 0)
    )
    plain = put("o/d.tif", noise(2, 40, 50), None)
    empty = put("o/e.tif", np.full((9, 9), IGNORE, np.uint8))
    shifted = put("s/a.tif", noise(1, 40, 50), move=METRES @ METRES.translation(7, 0))
    image = tmp_path / "image.tif"
    write_raster(image, noise(1, 40, 50), RasterSpec())
    for kind, words in [
        (SegmenterError, [a, "--output", tmp_path / "p.shp"]),
        (SegmenterError, [a, "--output", tmp_path / "none" / "p.gpkg"]),
        (DatasetError, [a, b]),  # one over the other
        (DatasetError, [a, other]),
        (DatasetError, [a, plain]),
        (DatasetError, [empty]),
        (RasterError, [image]),
        (DatasetError, [a, "--strata", shifted]),
        (DatasetError, [a, "--before", tmp_path / "o"]),
        (DatasetError, [a, "--points", 5]),
        (DatasetError, [a, "--points", 5000]),
        (DatasetError, [a, "--grid", 2]),  # more cells than points
        (DatasetError, [a, "--chips", tmp_path / "o"]),
        (ConfigError, [a, "--points", 50, "--error", 0.1]),
        (ConfigError, [a, "--grid", 50, "--strata", b]),
        (ConfigError, [a, "--error", 0.7]),
        (ConfigError, [a, "--expect", "sea=0.5"]),
        (ConfigError, [a, "--expect", "road=80"]),
    ]:
        where = [] if "--output" in words else ["--output", tmp_path / "p.gpkg"]
        with pytest.raises(kind):
            main(["sample", *map(str, [*words, *where])])
        left = {path.name for path in tmp_path.iterdir()} - {"m", "o", "s", "image.tif"}
        assert left == set(), words


def test_an_existing_file_is_replaced_only_on_request(put: Put, tmp_path: Path) -> None:
    path, output = put("m/a.tif", noise(1, 40, 50)), tmp_path / "p.gpkg"
    sampled(path, "--points", 30, output)
    before = output.read_bytes()
    with pytest.raises(SegmenterError):
        main(["sample", str(path), "--output", str(output)])
    assert output.read_bytes() == before
    assert sampled(path, "--overwrite", "--points", 20, output)["strata"]["points"].sum() == 20


def test_names_of_strata_may_hold_commas() -> None:
    names = ["water", "road, paved", "a,b=c"]
    assert expected_accuracies("road, paved=0.5,a,b=c=0.25", names) == [0.8, 0.5, 0.25]
    assert expected_accuracies("0.9,road, paved=0.5", names) == [0.9, 0.5, 0.9]
    for wrong in ("road,water=0.5", "road, paved", "water=0.5,road, paved=2"):
        with refused(ConfigError):
            expected_accuracies(wrong, names)
