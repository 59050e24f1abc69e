"""Review: spoiled labels come first, whatever the windows and the order of scenes; places to label next."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.commands.review import main
from segmenter.api.layouts import layout_of
from segmenter.base.errors import ConfigError, DatasetError, OutputError, RasterError, SegmenterError
from segmenter.base.terminal import listening
from segmenter.config.datasets import FolderConfig
from segmenter.extras.review import held_out, page, places, teaching
from segmenter.extras.review.findings import LabelFinding, findings, wrong_KKL
from segmenter.extras.review.held_out import LEVELS, Cells, ScoredScene
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset
from tests.helpers.exact_network import fake_load_predictor
from tests.helpers.forbidden import small_files
from tests.helpers.made_training import made, train
from tests.helpers.refusals import refused
from tests.helpers.spoiled_labels import SIDE, STEP, Ids, K, Make, run_of, scene_of, spoiled

EDGES = (0.1, 0.5, 0.9, 0.98)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (held_out, teaching):
        monkeypatch.setattr(module, "load_predictor", fake_load_predictor)


@pytest.fixture
def truth(rng: np.random.Generator) -> Ids:
    """Fields of 24 pixels, of odd size."""
    return rng.integers(0, K, (9, 11), np.uint8).repeat(24, axis=0).repeat(24, axis=1)[:203, :251]


def reviewed(judges: Any, classes: int = K, most: int = 200) -> list[LabelFinding]:
    return findings(list(held_out.judge_scenes(judges, SIDE)), classes, most)


def told(found: list[LabelFinding]) -> list[Any]:
    return [(f.of.scene.name, f.cells, f.label, f.likely, f.wrong, f.share) for f in found]


def test_spoiled_labels_come_first_in_any_windows_and_order(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Ids, rng: np.random.Generator
) -> None:
    classes = make_classes(K)
    label, wrong = spoiled(truth, rng)
    right = truth[::-1].copy()
    scenes = (
        scene_of(make_geotiff, "wrong", truth, label),
        scene_of(make_geotiff, "right", right, right),
    )
    told_of = []
    for window, order in ((64, 1), (33, 1), (512, -1)):
        run = run_of(classes, window)
        dataset = Dataset("made", Path(), scenes[::order], classes)
        found = reviewed(held_out.judges_of([run], lambda _, dataset=dataset: dataset))
        told_of.append(told(found))
    assert told_of[0] == told_of[1] == told_of[2]
    first = {(f.of.scene.name, f.window.row // SIDE, f.window.col // SIDE) for f in found[: len(wrong)]}
    assert first == {("wrong", *place) for place in wrong}
    swapped = next(f for f in found if (f.window.row, f.window.col) == (3 * SIDE, 4 * SIDE))
    assert (swapped.likely + 1) % K == swapped.label
    assert all(found[len(wrong) - 1].wrong > 2 * each.wrong for each in found[len(wrong) :])


def test_ignored_pixels_and_nodata_count_nowhere(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Ids
) -> None:
    classes = make_classes(K, ignored=(9,))
    label, image = (truth + 1) % K, truth.copy()
    label[:50] = 9
    masks = np.full(truth.shape, 255, np.uint8)
    masks[100:, :40] = 0
    scene = scene_of(make_geotiff, "one", image, label, masks=masks)
    dataset = Dataset("made", Path(), (scene,), classes)
    (one,) = held_out.judge_scenes(held_out.judges_of([run_of(classes)], lambda _: dataset), SIDE)
    counted = (label != 9) & (masks > 0)
    assert one.counts.usual_KKL.sum() == counted.sum()
    assert one.counts.labelled_B.tolist() == [
        counted[one.cells.window(cell).slices()].sum() for cell in range(one.cells.down * one.cells.across)
    ]


def test_the_probability_of_a_wrong_label_is_bayes_rule_over_all_pixels(rng: np.random.Generator) -> None:
    size, side = Size(35, 50), 8
    label = rng.integers(0, K, (35, 50), np.uint8)
    label[rng.random(label.shape) < 0.1] = IGNORE
    p = np.rint(rng.dirichlet(np.full(K, 0.3), label.shape) * 255).astype(np.uint8)
    likely = p.argmax(axis=-1).astype(np.uint8)
    cells = Cells(size, side, K)
    for window in (Window(0, 0, 20, 33), Window(0, 33, 20, 17), Window(20, 0, 15, 50)):
        here = window.slices()
        cells.add(window, label[here], likely[here], p[here])
    one: Any = SimpleNamespace(name="one")
    judged = ScoredScene(one, one, one, cells, cells.counts())
    table = wrong_KKL([judged], K)
    right, wrong = np.zeros((2, K, K, LEVELS))
    expected = np.zeros(cells.down * cells.across)
    against = [x.max() - x for x in p.reshape(-1, K) / 255]
    levels = [[sum(value >= edge for edge in EDGES) for value in values] for values in against]
    pixels = [(r, c) for r, c in np.ndindex(label.shape) if label[r, c] != IGNORE]
    for r, c in pixels:
        own, seen, level = label[r, c], likely[r, c], levels[r * 50 + c]
        right[own, seen, level[own]] += 1
        for other in range(K):
            wrong[other, seen, level[other]] += r % 5 == c % 5 == 0 and other != own
    right, wrong = (each / each.sum(axis=(1, 2), keepdims=True) for each in (right, wrong))
    assert table == pytest.approx(0.01 * wrong / np.maximum(0.01 * wrong + 0.99 * right, 1e-12))
    for r, c in pixels:
        if (own := label[r, c]) != (seen := likely[r, c]):
            expected[r // side * cells.across + c // side] += table[own, seen, levels[r * 50 + c][own]]
    found = findings([judged], K, 1000)
    assert sum(each.wrong for each in found) == pytest.approx(expected.sum())
    costs = {each.cells[0]: each.wrong for each in found if len(each.cells) == 1}
    assert costs
    for window, cost in costs.items():
        assert cost == pytest.approx(expected[window.row // side * cells.across + window.col // side])


def test_a_wrong_field_is_one_finding_with_its_outline(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Ids
) -> None:
    shapely = pytest.importorskip("shapely")
    label = truth.copy()
    truth[48:80, 32:80] = label[48:80, 32:80] = 1
    label[48:64, 32:80] = label[64:80, 48:64] = 2  # a T of cells
    right = [scene_of(make_geotiff, f"right{n}", other := np.roll(truth, n), other) for n in range(3)]
    scenes = (scene_of(make_geotiff, "wrong", truth, label), *right)
    dataset = Dataset("made", Path(), scenes, make_classes(K))
    first = reviewed(held_out.judges_of([run_of(dataset.classes)], lambda _: dataset))[0]
    assert (first.label, first.likely, first.window) == (2, 1, Window(48, 32, 32, 48))
    assert len(first.cells) == 4
    crs = first.of.info.crs
    shape = shapely.union_all([shapely.polygons(places._corners(first.place, c, crs)) for c in first.cells])
    assert shape.geom_type == "Polygon"
    assert shape.area == pytest.approx(len(first.cells) * SIDE**2 / 4)
    line = page._frame(first, Window(40, 0, 80, 140))
    wide = 2
    assert line.sum() == wide * 2 * (32 + 48) + wide**2 * (6 - 2), "its sides, outer and inner corners"


def test_each_scene_is_judged_by_the_fold_that_did_not_learn_from_it(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Ids
) -> None:
    classes = make_classes(K)
    a, b, test = (
        scene_of(make_geotiff, name, truth, truth, split)
        for name, split in (("a", "validation"), ("b", "validation"), ("test", "test"))
    )
    runs = [run_of(classes, path="fold_1"), run_of(classes, path="fold_2")]
    of_fold = {run.path.name: scene for run, scene in zip(runs, (a, b), strict=True)}

    def load(run: Any) -> Dataset:
        own = of_fold[run.path.name]
        rest = tuple(replace(scene, split="train") for scene in (a, b) if scene != own)
        return Dataset("made", Path(), (own, *rest, test), classes)

    judges = held_out.judges_of(runs, load)
    names = [(judge.run.path.name, [scene.name for scene in judge.scenes]) for judge in judges]
    assert names == [("fold_1", ["a", "test"]), ("fold_2", ["b"])]
    unlabelled = Dataset("made", Path(), (replace(a, label=None), replace(b, split="train")), classes)
    with pytest.raises(DatasetError):
        held_out.judges_of(runs, lambda _: unlabelled)  # type: ignore[arg-type]


@pytest.mark.parametrize("crs", ["EPSG:25833", None])
def test_files_hold_the_findings_and_nothing_is_half_written(
    make_geotiff: Make,
    make_classes: Callable[..., ClassMap],
    truth: Ids,
    rng: np.random.Generator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crs: str | None,
) -> None:
    pyogrio = pytest.importorskip("pyogrio")
    label, _ = spoiled(truth, rng)
    classes = make_classes(K)
    dataset = Dataset("made", Path(), (scene_of(make_geotiff, "one", truth, label, crs=crs),), classes)
    monkeypatch.setattr(held_out, "runs_of", lambda _: [run_of(classes)])
    monkeypatch.setattr("datasets.known.dataset_of_run", lambda *_, **__: dataset)
    output = tmp_path / "out"
    arguments = ["run", "--output", str(output), "--cell", str(SIDE), "--most", "3"]
    with small_files(1000), pytest.raises(OutputError):
        main(arguments)
    assert [path.name for path in output.iterdir()] in ([], ["review.csv"])
    assert main([*arguments, "--overwrite"]) == 0
    assert sorted(path.name for path in output.iterdir()) == ["review.csv", "review.gpkg", "review.html"]
    rows = list(csv.DictReader((output / "review.csv").read_text().splitlines()))
    meta, _, wkb, values = pyogrio.raw.read(output / "review.gpkg", layer="review")
    assert [int(row["rank"]) for row in rows] == [1, 2, 3] == list(values[0])
    assert [row["label"] for row in rows] == list(values[list(meta["fields"]).index("label")])
    import shapely

    row, col = int(rows[0]["row"]), int(rows[0]["col"])
    box = shapely.from_wkb(wkb[0]).bounds
    if crs is None:
        assert box == (col, -row - SIDE, col + SIDE, -row)
    else:
        assert box == pytest.approx(
            (368000 + col / 2, 5808000 - row / 2 - 8, 368008 + col / 2, 5808000 - row / 2)
        )
    assert (output / "review.html").read_text().count("<img ") == 9
    with pytest.raises(SegmenterError):
        main(arguments)


@pytest.mark.parametrize(
    "options",
    [
        ["--insist"],
        ["--points", "3"],
        ["--apart", "3"],
        ["--unlabelled", "x.tif", "--most", "3"],
        ["--unlabelled", "x.tif", "--root", "x"],
    ],
)
def test_an_option_of_the_other_mode_is_refused(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(ConfigError):
        main([str(tmp_path), *options])


def test_the_next_label_is_where_folds_doubt_rare_classes_and_places_keep_their_distance(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = make_classes(K)
    ids = np.zeros((130, 175), np.uint8)
    ids[16:64, 16:112] = 3
    masks = np.full(ids.shape, 255, np.uint8)
    masks[64:, 100:] = 0
    images = [make_geotiff("many/one.tif", (ids.astype(np.uint16) * STEP)[..., None], masks=masks)]
    plain = make_geotiff("many/plain.tif", np.zeros((65, 33, 1), np.uint16))
    pixels = dict(zip(classes.names, (1000, 1000, 1000, 10), strict=True))
    monkeypatch.setattr(teaching, "load_origin", lambda _: SimpleNamespace(pixels=pixels))
    doubting = [run_of(classes, w, doubtful=3, other=k) for w, k in ((40, 0), (40, 1))]
    monkeypatch.setattr(teaching, "join_runs", lambda runs: runs[0])
    where = [str(images[0].parent)]
    found = teaching.spots(doubting, where, SIDE, 4, 2 * SIDE, insist=True)
    assert [spot.place.name for spot in found[:2]] == ["one.tif"] * 2
    for spot in found[:2]:
        assert (ids[spot.place.window.slices()] == 3).all(), "the only thing that they doubt"
        assert 3 in spot.likely
        assert spot.disagreement > 0
    corners = [
        (spot.place.window.row, spot.place.window.col) for spot in found if spot.place.name == "one.tif"
    ]
    gaps = [np.hypot(a[0] - b[0], a[1] - b[1]) for i, a in enumerate(corners) for b in corners[:i]]
    assert min(gaps) >= 2 * SIDE
    other = [run_of(classes, 96, doubtful=3, other=k) for k in (0, 1)]
    again = teaching.spots(other, where, SIDE, 4, 2 * SIDE, insist=True)
    told = [[(spot.place.name, spot.place.window, spot.score) for spot in each] for each in (found, again)]
    assert told[0] == told[1], "whatever the windows"
    assert teaching.class_weights(doubting)[3] > 5 * teaching.class_weights(doubting)[0]
    assert plain.exists()


def test_places_of_one_name_are_told_apart_and_without_georeference_they_have_no_polygon(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], tmp_path: Path
) -> None:
    pyogrio = pytest.importorskip("pyogrio")
    systems = {"metres": "EPSG:25833", "nowhere": None}
    pixels = np.full((SIDE, SIDE, 1), STEP, np.uint16)
    images = [str(make_geotiff(f"{name}/x.tif", pixels, crs=crs)) for name, crs in systems.items()]
    run = run_of(make_classes(K), doubtful=1)
    run.metres_per_pixel, run.recipe.augmentation = 2.0, SimpleNamespace(scale_to=None)
    with listening() as said:
        found = teaching.spots([run], images, SIDE, 9, 9, insist=True)
    assert sum("trained on 2 m" in line for line in said.warnings) == 1
    places.write_polygons([spot.place for spot in found], {}, tmp_path / "next.gpkg")
    meta, _, wkb, values = pyogrio.raw.read(tmp_path / "next.gpkg")
    assert meta["crs"] == "EPSG:25833"
    assert list(values[1]) == ["metres/x.tif", "nowhere/x.tif"]
    assert [shape is None for shape in wkb] == [False, True]


def test_places_are_chosen_in_what_predict_maps(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenes whose bands are files, by the layout of the training; not images of other bands."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    pixels = np.full((SIDE, SIDE, 2), STEP, np.uint16)
    run, two = run_of(make_classes(K), doubtful=1), make_geotiff("two.tif", pixels)
    with refused(RasterError, where="two.tif", fault="1 bands"):
        teaching.spots([run], [str(two)], SIDE, 1, 1, insist=True)
    files = [make_geotiff(f"new/place/{name}.tif", pixels[..., :1]) for name in ("B02", "B03")]
    names = [f"{{name}}/{file.name}" for file in files]
    section = FolderConfig(
        kind="folder",
        root=str(tmp_path),
        images=tuple(names),
        labels="{name}.png",
        classes=[
            {"name": "a", "code": 0, "colour": "#000000"},
            {"name": "b", "code": 1, "colour": "#ffffff"},
        ],
    )
    layout = layout_of(section)
    run.band_count = 2
    found = teaching.spots([run], [str(tmp_path / "new")], SIDE, 1, 1, layout=layout, insist=True)
    assert [spot.place.name for spot in found] == ["place.tif"]


@pytest.mark.slow
def test_folds_of_a_training_review_their_labels_and_choose_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    recipe, run = made(tmp_path / "data"), tmp_path / "run"
    train(recipe, "--folds", "2", "--run", str(run), "--set", "training.epochs=2")
    output, images = tmp_path / "out", str(tmp_path / "data" / "images")
    assert main([str(run), "--output", str(output), "--cell", "16"]) == 0
    assert (
        main([str(run), "--output", str(output), "--cell", "16", "--unlabelled", images, "--points", "3"])
        == 0
    )
    rows = list(csv.DictReader((output / "next.csv").read_text().splitlines()))
    assert len(rows) == 3
    assert all(float(row["score"]) > 0 for row in rows)
