"""Accepted findings are burnt into labels of their own, in the recipe's values, and nothing else changes."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'")

from datasets import known
from datasets.commands.review import main
from datasets.commands.view_kinds import routes_of
from segmenter.base.errors import ConfigError, DatasetError, SegmenterError
from segmenter.extras.review import held_out
from segmenter.extras.review import mended as mended_module
from segmenter.extras.review.answers import AnsweredFinding, answered_findings, finding_table, is_findings
from segmenter.extras.vector_files.database import UNCLEAR
from segmenter.extras.view.opening import Wanted
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import LabelIds, raster_info
from tests.helpers.exact_network import fake_load_predictor
from tests.helpers.geopackage import changed
from tests.helpers.page_client import PageClient, served
from tests.helpers.spoiled_labels import SIDE, K, Make, run_of, scene_of, spoiled


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "load_predictor", fake_load_predictor)


@pytest.fixture
def reviewed(
    make_geotiff: Make,
    make_classes: Callable[..., ClassMap],
    rng: np.random.Generator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """`reviewed(**of_classes)`: a run, truth and label of its spoiled scene, dataset and `review.gpkg`."""

    def reviewed(colours: bool = False, crs: str | None = "EPSG:25833") -> Any:
        truth = rng.integers(0, K, (9, 11), np.uint8).repeat(24, axis=0).repeat(24, axis=1)[:203, :251]
        label, _ = spoiled(truth, rng)
        label[:30, :40] = 9
        classes = make_classes(K, ignored=(9,))
        if colours:
            classes = ClassMap(classes.classes, "colours", ((9, 9, 9),))
        stored = label
        if colours:
            table = np.full((256, 3), 9, np.uint8)
            table[:K] = [each.colour for each in classes.classes]
            stored = table[label]
        other = truth[::-1].copy()
        scenes = (
            scene_of(make_geotiff, "wrong", truth, stored, crs=crs),
            replace(
                scene_of(make_geotiff, "learnt", other, table[other] if colours else other, crs=crs),
                split="train",
            ),
        )
        dataset = Dataset("made", tmp_path if crs else Path("elsewhere"), scenes, classes)
        run = run_of(classes, path=str(tmp_path / "run"))
        monkeypatch.setattr(held_out, "runs_of", lambda _: [run])
        for name in ("dataset_of_run", "whole_scenes_of_run"):
            monkeypatch.setattr(f"datasets.known.{name}", lambda *_, **__: dataset)
        output = tmp_path / "out"
        words = [str(tmp_path / "run"), "--output", str(output), "--cell", str(SIDE), "--most", "12"]
        assert main(words) == 0
        label[label == 9] = IGNORE
        return truth, label, dataset, output / "review.gpkg"

    return reviewed


def answer(path: Path, answers: Callable[[AnsweredFinding], str | None]) -> list[AnsweredFinding]:
    """Answer the findings of a file in their order."""
    with finding_table(path) as table:
        for row, one in zip(table.rows(), answered_findings(path), strict=True):
            table.write(row.fid, row.stamp, answers(one))
    return answered_findings(path)


def mended(dataset: Dataset, run: Path) -> dict[str, Any]:
    found = {}
    for scene in dataset.scenes:
        below = "labels" if scene.label.is_relative_to(dataset.root) else ""
        path = run / "labels_mended" / below / f"{scene.title}.tif"
        labels = LabelIds(path, dataset.classes, raster_info(scene.image))
        found[scene.title] = labels.read(Window.of(raster_info(scene.image).size))
        labels.close()
    return found


@pytest.mark.parametrize(("colours", "crs"), [(False, "EPSG:25833"), (True, None)])
def test_accepted_findings_change_the_contradicted_pixels_of_their_cells_alone(
    reviewed: Any, tmp_path: Path, colours: bool, crs: str | None
) -> None:
    truth, label, dataset, path = reviewed(colours, crs)
    assert is_findings(path)
    names = dataset.classes.names
    kinds = ["likely", "label", "third", UNCLEAR, None]

    def reply(one: AnsweredFinding) -> str | None:
        kind = kinds[answered.index(one) % 5]
        third = next(name for name in names if name not in (one.label, one.likely))
        return {"likely": one.likely, "label": one.label, "third": third}.get(str(kind), kind)

    answered = answered_findings(path)
    found = answer(path, reply)
    assert main([str(tmp_path / "run"), "--accept", str(path)]) == 0
    got = mended(dataset, tmp_path / "run")
    np.testing.assert_array_equal(got["learnt"], truth[::-1])
    assert (got["wrong"][label == IGNORE] == IGNORE).all()
    apart = got["wrong"] != label
    burnt = np.zeros_like(apart)
    for number, one in enumerate(found):
        inside = np.zeros_like(apart)
        for cell in one.cells:
            inside[cell.slices()] = True
        own = inside & apart & (label == names.index(one.label))
        assert own.any() == (number % 5 in (0, 2))
        assert (got["wrong"][own] == names.index(one.reference or one.label)).all()
        burnt |= own
    np.testing.assert_array_equal(burnt, apart)


def test_labels_are_nearer_to_the_truth_when_true_findings_are_accepted(
    reviewed: Any, tmp_path: Path
) -> None:
    truth, label, dataset, path = reviewed()
    names = dataset.classes.names

    def is_true(one: AnsweredFinding) -> str:
        inside = np.concatenate([(truth == label)[cell.slices()].ravel() for cell in one.cells])
        return one.label if inside.all() else one.likely

    found = answer(path, is_true)
    assert sum(one.accepted for one in found) >= 4
    assert main([str(tmp_path / "run"), "--accept", str(path)]) == 0
    known = label != IGNORE
    before = (label != truth)[known].sum()
    after = (mended(dataset, tmp_path / "run")["wrong"] != truth)[known].sum()
    assert after < before / 3
    assert set(names) >= {one.reference for one in found}


def test_a_file_of_the_user_is_never_written(reviewed: Any, tmp_path: Path) -> None:
    _, _, dataset, path = reviewed()
    answer(path, lambda one: one.likely)
    run, words = tmp_path / "run", [str(tmp_path / "run"), "--accept", str(path)]
    originals = {scene.label: scene.label.read_bytes() for scene in dataset.scenes}
    folder = run / "labels_mended"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(SegmenterError):
        main(words)
    assert [each.name for each in folder.iterdir()] == ["mine.txt"]
    assert main([*words, "--overwrite"]) == 0
    assert sorted(each.name for each in folder.rglob("*.*")) == ["learnt.tif", "mine.txt", "wrong.tif"]
    assert all(file.read_bytes() == content for file, content in originals.items())
    label = Path(shutil.copy(dataset.scenes[0].label, folder / "wrong.tif"))
    object.__setattr__(dataset.scenes[0], "label", label)
    with pytest.raises(DatasetError):
        main([*words, "--overwrite"])
    assert label.read_bytes() == next(iter(originals.values()))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE review SET reference = 'sea'",
        "UPDATE review SET scene = 'elsewhere'",
        "UPDATE review SET cells = '[[0, 0, 16, 16]]', row = 100",
        "UPDATE review SET cells = NULL",
        "UPDATE review SET wrong_pixels = NULL",
        "UPDATE review SET row = 9000, cells = '[[9000, 0, 1, 1]]', col = 0",
    ],
)
def test_edited_findings_are_refused_and_nothing_is_written(
    reviewed: Any, tmp_path: Path, change: str
) -> None:
    _, _, _, path = reviewed()
    answer(path, lambda one: one.likely)
    changed(path, change)
    with pytest.raises(DatasetError):
        main([str(tmp_path / "run"), "--accept", str(path)])
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    "words", [("--unlabelled", "y.tif"), ("--output", "fixed"), ("--cell", "16"), ("--most", "9")]
)
def test_accept_is_of_findings_in_labels(tmp_path: Path, words: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        main([str(tmp_path), "--accept", "x.gpkg", *words])


def test_findings_of_moved_data_are_shown_and_accepted_where_they_are(
    reviewed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed()
    roots, whole = [], known.whole_scenes_of_run
    monkeypatch.setattr(known, "whole_scenes_of_run", lambda run, root: roots.append(root) or whole(run))
    moved = tmp_path / "moved here"
    words = [str(tmp_path / "run"), "--output", str(tmp_path / "again"), "--root", str(moved)]
    assert main(words) == 0
    path = tmp_path / "again" / "review.gpkg"
    with routes_of(Wanted((path,))) as routes, served(routes) as server:
        page = PageClient(server)
        assert page.get("state?page=one")["done"].endswith(f"--accept {path} --root '{moved}'")
        assert page.get("next/0")["layers"] == ["image", "label"]
    assert roots == [str(moved)]
    with pytest.raises(SegmenterError), routes_of(Wanted((path,), moved)):
        pass


def test_findings_are_answered_in_a_page_and_seen_in_image_and_label(reviewed: Any, tmp_path: Path) -> None:
    _, label, dataset, path = reviewed()
    names = dataset.classes.names
    with routes_of(Wanted((path,))) as routes, served(routes) as server:
        page = PageClient(server)
        state, row = page.get("state?page=one"), page.get("next/0")
        assert state["done"].endswith(f"review {tmp_path / 'run'} --accept {path}")
        assert [each["name"] for each in state["classes"]] == names
        first = answered_findings(path)[0]
        assert (row["number"], row["label"], row["likely"]) == (1, first.label, first.likely)
        side = 65
        status, content = page.ask(f"place/{row['fid']}/label/{side}")
        assert status == 200
        picture = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)[..., [2, 1, 0, 3]]
        own = first.window
        top, left = (
            start + length // 2 - side // 2 for start, length in ((own.row, own.height), (own.col, own.width))
        )
        inside = np.zeros((label.shape[0] + 2 * side, label.shape[1] + 2 * side), np.bool_)
        for cell in first.cells:
            inside[cell.shifted(side, side).slices()] = True
        padded = np.pad(label, side, constant_values=IGNORE)
        shown = (slice(top + side, top + 2 * side), slice(left + side, left + 2 * side))
        for class_id, each in enumerate(dataset.classes.classes):
            there = (padded[shown] == class_id) & inside[shown]
            assert (picture[there] == (*each.colour, 255)).all(), "the cells have no line over them"
        line = (picture == (255, 0, 255, 255)).all(axis=2)
        assert line.any()
        assert not (line & inside[shown]).any()
        assert page.ask(f"place/{row['fid']}/image/{side}")[0] == 200
        for text in (first.likely, first.label):
            row = page.answer(page.get(f"row/{row['fid']}"), text)[1]["row"]
        assert page.get(f"next/{row['fid']}")["number"] == 2
        changed(path, "UPDATE review SET label = 'sea' WHERE rank = 1")
        assert page.answer(row, first.likely)[0] == 409
    assert [one.reference for one in answered_findings(path)][:2] == [first.label, ""]


def test_findings_that_say_no_root_are_of_the_run_as_it_is(reviewed: Any) -> None:
    *_, path = reviewed()
    changed(path, "ALTER TABLE runs DROP COLUMN root")
    with routes_of(Wanted((path,))) as routes, served(routes) as server:
        assert "--root" not in PageClient(server).get("state?page=one")["done"]


def test_findings_of_an_earlier_version_are_refused(reviewed: Any) -> None:
    *_, path = reviewed()
    changed(path, "ALTER TABLE review DROP COLUMN reference")
    with pytest.raises(DatasetError), routes_of(Wanted((path,))):
        pass


def test_a_finding_in_blocks_is_of_the_run_that_held_them_out(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    classes = make_classes(K, ignored=(9,))
    truth = rng.integers(0, K, (64, 64), np.uint8)
    judges = []
    for number, half in enumerate((slice(0, 32), slice(32, 64))):
        label = np.full_like(truth, 9)
        label[half] = truth[half]
        scene = replace(scene_of(make_geotiff, f"s_{number}", truth, label), blocks=True)
        judges.append(
            (held_out.Judge(run_of(classes), Dataset("made", Path(), (scene,), classes), (scene,)), scene)
        )
    for number, row in enumerate((0, 48)):
        cell = Window(row, 16, 16, 16)
        one = AnsweredFinding("", 1, "s", cell, (cell,), *classes.names[:2], 1.0, "")
        assert mended_module._owner(one, judges) is judges[number]


def test_labels_have_the_names_by_which_the_recipe_pairs_them(tmp_path: Path) -> None:
    def scene(name: str, label: str, **more: Any) -> Scene:
        return Scene(name, tmp_path / "image.tif", tmp_path / label, name, "train", **more)

    scenes = [scene("1_a", "tile_1/masks/a.png"), scene("2_a", "tile_2/masks/a.png")]
    found = {"1_a": Path("tile_1/masks/a.tif"), "2_a": Path("tile_2/masks/a.tif")}
    assert mended_module.label_paths(scenes, tmp_path) == found
    for other in (
        [scene("1_a", "all.tif"), scene("2_a", "all.tif")],
        [scene("1_a", "a.gpkg"), scene("2_a", "b.gpkg")],
        [scene("1_a", ".cache/x.tif"), scene("2_a", "b.tif")],
        [scene("1_a", "x.png", masks=((1, tmp_path / "x.png"),)), scene("2_a", "b.tif")],
    ):
        assert mended_module.label_paths(other, tmp_path) == {"1_a": Path("1_a.tif"), "2_a": Path("2_a.tif")}
    assert mended_module.label_paths(scenes, tmp_path / "elsewhere")["1_a"] == Path("1_a.tif")
