"""Estimates kept with maps, run, model card and report; labels that AcATaMa saved."""

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from numpy.typing import NDArray

from datasets.commands.accuracy import main
from segmenter.base.errors import CheckpointError, DatasetError, SegmenterError
from segmenter.evaluation.protocol import Protocol
from segmenter.evaluation.scores import ConfusionMatrix
from segmenter.evaluation.shapes import Shapes
from segmenter.extras.accuracy import kept  # noqa: F401  (with its own load_run, before `call` puts one in)
from segmenter.extras.sharing.archive import pack_run
from segmenter.extras.sharing.card import card_text
from segmenter.extras.sharing.known_facts import read_known
from segmenter.grid.labels import IGNORE
from segmenter.inference.predictor import Prediction
from segmenter.runs.ensemble import join_runs
from segmenter.runs.records import ACCURACY
from segmenter.runs.report.sections import write_report
from segmenter.runs.run import Run, load_run
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.geopackage import changed
from tests.helpers.made_described import described_run
from tests.helpers.refusals import refused

pyogrio = pytest.importorskip(
    "pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'"
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose classes the maps have."""
    return load_run(described_run(tmp_path / "run"))


def four_classes(*_: Any, **__: Any) -> FunctionPredictor:
    """A model whose map has four classes."""

    def predict(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        return Prediction(np.where(valid, image[..., 0] % 4, IGNORE).astype(np.uint8))

    return FunctionPredictor(predict)


def made_by(run: Run) -> dict[str, Any]:
    """Changes of a stand-in that let it make maps as if of this run."""
    return {"classes": run.classes, "predictor": four_classes, "fingerprint": run.fingerprint}


@pytest.fixture
def points(run: Run, tmp_path: Path, make_geotiff: Callable[..., Path], call: Callable[..., int]) -> Path:
    """Labelled points of the map `maps/a.tif`; the map `maps/b.tif` is not sampled."""
    rng = np.random.default_rng(2)
    for name in "ab":
        make_geotiff(f"in/{name}.tif", rng.integers(1, 255, (41, 53, 3), np.uint8))
    assert call("in", **made_by(run)) == 0
    path = tmp_path / "points.gpkg"
    words = [str(tmp_path / "maps" / "a.tif"), "--points", "60", "--floor", "2", "--output", str(path)]
    assert main(["sample", *words]) == 0
    changed(path, "update points set reference = mapped")
    changed(path, "update points set reference = (select class from classes limit 1) where id % 9 = 0")
    return path


def estimate(points: Path, *paths: Path, more: Sequence[str] = ()) -> int:
    return main(["estimate", str(points), *more, *(word for path in paths for word in ("--keep", str(path)))])


def test_maps_carry_their_accuracy_and_are_unchanged_for_predict(
    points: Path, run: Run, tmp_path: Path, call: Callable[..., int], capsys: Any
) -> None:
    maps = tmp_path / "maps"
    before = {path.name: path.read_bytes() for path in maps.glob("*.tif")}
    table = rasterio.open(maps / "a.tif").tags()
    for _ in range(2):  # the second replaces the first
        assert estimate(points, maps) == 0
    said = capsys.readouterr().out
    with rasterio.open(maps / "a.tif") as one, rasterio.open(maps / "b.tif") as other:
        tags = one.tags()
        assert "ACCURACY" not in other.tags()
    assert tags["ACCURACY"] in said
    assert all(text in said for text in tags["AREAS"].split("; "))
    assert {name: tags[name] for name in table} == table
    assert "GDALRasterAttributeTable" in (maps / "a.tif.aux.xml").read_text()
    assert {path.name: path.read_bytes() for path in maps.glob("*.tif")} == before
    assert call("in", **made_by(run) | {"predictor": None}) == 0  # nothing to make
    assert call("in", "--redo", **made_by(run)) == 0
    with rasterio.open(maps / "a.tif") as one:
        assert "ACCURACY" not in one.tags()


def test_card_and_report_show_the_accuracy_of_these_weights(points: Path, run: Run, tmp_path: Path) -> None:
    assert "Accuracy of its maps" not in card_text(read_known(run.path))
    assert estimate(points, run.path) == 0
    record = json.loads((run.path / ACCURACY).read_text())
    assert record["classes"][0]["users"]["value"] > 0
    card, page = card_text(read_known(run.path)), write_report(run.path).read_text()
    for text in (record["head"], *record["rows"][0][1:]):
        assert text in card
        assert text in page
    pack_run(run.path, tmp_path / "run.zip")
    with zipfile.ZipFile(tmp_path / "run.zip") as packed:
        assert packed.read(ACCURACY) == (run.path / ACCURACY).read_bytes()
    checkpoint = run.path / "checkpoints" / "step-00000008.npz"
    (run.path / "best.npz").write_bytes(checkpoint.read_bytes())
    assert record["head"] not in card_text(read_known(run.path))
    page = write_report(run.path).read_text()
    assert record["head"] not in page
    assert "of other weights" in page


@pytest.mark.parametrize("as_table", [False, True], ids=["GeoPackage", "tables"])
def test_accuracy_is_kept_in_the_run_alone_whose_weights_made_all_maps(
    points: Path, run: Run, tmp_path: Path, call: Callable[..., int], as_table: bool
) -> None:
    """Of maps of another run, of several, or of no known one, nothing is noted anywhere."""
    maps, more = tmp_path / "maps" / "a.tif", []
    other = load_run(shutil.copytree(run.path, tmp_path / "other"))
    shutil.copyfile(other.path / "checkpoints" / "step-00000008.npz", other.path / "best.npz")
    if as_table:
        points, more = _tables(points)

    def refused_everywhere(one: Run, *also: Path, **fields: Any) -> None:
        before = {path: path.read_bytes() for path in maps.parent.iterdir()}
        with refused(DatasetError, where=one.path, **fields):
            estimate(points, *also, one.path, more=more)
        assert not (one.path / ACCURACY).exists()
        assert {path: path.read_bytes() for path in maps.parent.iterdir()} == before

    refused_everywhere(other, maps, got="other weights")
    if as_table:
        refused_everywhere(run, got="names none")
    else:
        refused_everywhere(other, got="other weights")
        assert estimate(points, run.path, more=more) == 0
    assert estimate(points, maps, run.path, more=more) == 0
    (run.path / ACCURACY).unlink()

    several = join_runs([run, other]).fingerprint()
    for text, said in ((several, "several runs"), (other.fingerprint(), "other weights"), ("", "names none")):
        with rasterio.open(maps, "r+") as one:
            one.update_tags(WEIGHTS=text)
        if not as_table:  # drawn again from that map
            changed(points, f"update maps set weights = '{text}'")
            refused_everywhere(run, got=said)
        refused_everywhere(run, maps, got=said)


def test_points_of_an_earlier_version_need_their_maps_at_hand(
    points: Path, run: Run, tmp_path: Path, call: Callable[..., int]
) -> None:
    changed(points, "drop table maps", "delete from gpkg_contents where table_name = 'maps'")
    for paths in ([run.path], [tmp_path / "points.gpkg", run.path]):
        with pytest.raises(SegmenterError):
            estimate(points, *paths)
    assert not (run.path / ACCURACY).exists()
    assert estimate(points, tmp_path / "maps", run.path) == 0


def _tables(points: Path) -> tuple[Path, list[str]]:
    """Return the points as a table, and the option that names the areas of their strata."""
    tables = {}
    for layer, names in (("points", ("stratum", "mapped", "reference")), ("strata", ("stratum", "area"))):
        meta, _, _, values = pyogrio.raw.read(points, layer=layer)
        fields = dict(zip(meta["fields"], values, strict=True))
        rows = zip(*(fields[name] for name in names), strict=True)
        tables[layer] = points.with_name(f"{layer}.csv")
        tables[layer].write_text("\n".join(",".join(map(str, row)) for row in (names, *rows)))
    return tables["points"], ["--areas", str(tables["strata"])]


def test_the_report_shows_scores_of_maps_of_this_run_only(run: Run, tmp_path: Path) -> None:
    names = tuple(run.classes.names)
    confusion = ConfusionMatrix(run.classes)
    confusion.add(np.zeros((9, 9), np.uint8), np.zeros((9, 9), np.uint8))
    counts = np.tile([16, 16, 8], (len(names), 1))
    protocol = Protocol(names, "full", "test", scenes=("a",))
    shapes = Shapes(names, 5)
    shapes.boundary_K3 = shapes.objects_K3 = counts
    facts = shapes.facts(protocol)
    uncalibrated = replace(run, calibrated=False).checksum()
    for model, is_shown in ((run.checksum(), True), (uncalibrated, True), ("0" * 64, False)):
        confusion.scores(protocol).write(tmp_path / "scores.json", {"model": model, **facts})
        if is_shown:
            page = write_report(run.path, maps=tmp_path).read_text()
            assert "Boundary IoU" in page
            assert "33.33" in page
        else:
            with pytest.raises(CheckpointError):
                write_report(run.path, maps=tmp_path)
    for text in ("{}", "[", '{"format": 1, "confusion": 3}'):
        (tmp_path / "scores.json").write_text(text)
        with pytest.raises(CheckpointError):
            write_report(run.path, maps=tmp_path)


def test_labels_of_acatama_are_taken_by_their_number(points: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["estimate", str(points), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    meta, _, wkb, values = pyogrio.raw.read(points, layer="points")
    fields = dict(zip(meta["fields"], values, strict=True))
    assert sorted(fields["id"]) == list(range(1, 61))
    changed(points, "update points set reference = null")
    saved, order = tmp_path / "labelled.gpkg", np.random.default_rng(0).permutation(60)
    columns = [fields["id"][order], fields["reference"][order]]
    write = {"driver": "GPKG", "geometry_type": "Point", "crs": "EPSG:25833"}
    pyogrio.raw.write(saved, np.array(wkb)[order], columns, ["ID", "Label"], layer="labelled", **write)
    assert main(["estimate", str(points), "--labels", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    more = [np.append(columns[0], 61), np.append(columns[1], None)]
    pyogrio.raw.write(
        saved, shapely.to_wkb(shapely.points(np.zeros((61, 2)))), more, ["ID", "Label"], **write
    )
    with pytest.raises(DatasetError):
        main(["estimate", str(points), "--labels", str(saved)])


@pytest.mark.slow
def test_other_maps_also_of_the_same_name_and_other_classes_are_refused(
    points: Path, tmp_path: Path, run: Run
) -> None:
    other = tmp_path / "other" / "a.tif"
    with refused(SegmenterError, where=other, fault="No such file"):
        estimate(points, other)
    other.parent.mkdir()
    with rasterio.open(tmp_path / "maps" / "a.tif") as one:
        ids, profile, tags = one.read(), one.profile, (one.tags(), one.tags(1))
    with rasterio.open(other, "w", **profile) as written:
        written.write((ids + 1) % 4)
        written.update_tags(**tags[0])
        written.update_tags(1, **tags[1])
    with refused(DatasetError, where=other):
        estimate(points, other.parent)
    assert list(other.parent.iterdir()) == [other]

    changed(points, "update classes set class = 'sea' where rowid = 1")
    changed(
        points,
        *(f"update points set {name} = 'sea' where {name} = 'roof'" for name in ("mapped", "reference")),
    )
    for path in (tmp_path / "maps" / "b.tif", tmp_path / "maps" / "a.tif", run.path, tmp_path / "none.tif"):
        with pytest.raises(SegmenterError):
            estimate(points, path)
    assert not (run.path / ACCURACY).exists()


def test_maps_of_one_name_in_two_folders_keep_their_own_points(
    run: Run, tmp_path: Path, make_geotiff: Callable[..., Path], call: Callable[..., int]
) -> None:
    maps = [tmp_path / folder / "a.tif" for folder in ("east", "west")]
    for number, path in enumerate(maps):
        image = np.random.default_rng(number).integers(1, 255, (41, 53, 3), np.uint8)
        make_geotiff(f"in{number}/a.tif", image, transform=rasterio.Affine(1, 0, 900 * number, 0, -1, 0))
        assert call(f"in{number}", classes=run.classes, predictor=four_classes, output=path.parent) == 0
    path = tmp_path / "points.gpkg"
    assert main(["sample", *map(str, maps), "--points", "60", "--output", str(path)]) == 0
    changed(path, "update points set reference = mapped")
    assert estimate(path, maps[1].parent) == 0
    assert ["ACCURACY" in one.with_name("a.tif.aux.xml").read_text() for one in maps] == [False, True]


def test_a_page_replaces_no_points_and_a_refused_call_writes_none(points: Path, tmp_path: Path) -> None:
    before = points.read_bytes()
    for name in ("points.gpkg", "none/page.html"):
        with pytest.raises(SegmenterError):
            main(["estimate", str(points), "--report", str(tmp_path / name)])
    page = tmp_path / "page.html"
    with pytest.raises(SegmenterError):
        estimate(points, tmp_path / "none.tif", more=("--report", str(page)))
    assert (points.read_bytes(), page.exists()) == (before, False)


@pytest.mark.parametrize(
    ("statement", "fields"),
    [
        (
            "insert into points (stratum, mapped, reference) values ('roof', 'roof', 'roof')",
            {"remedy": "added"},
        ),
        (
            "update points set geom = (select geom from points where id = 7) where id = 9",
            {"where": "point 9", "expected": "where it was drawn"},
        ),
        ("update strata set unit = 'furlong'", {"got": "furlong"}),
    ],
    ids=["added in QGIS", "moved", "unknown unit"],
)
def test_what_was_changed_since_the_drawing_is_named(
    points: Path, statement: str, fields: dict[str, object]
) -> None:
    changed(points, statement)
    with refused(DatasetError, **fields):
        estimate(points)
