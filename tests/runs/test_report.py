"""Reports and comparisons of trainings: what they say is what the runs' files say; what differs is said."""

import html
import re
import shutil
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import numpy as np
import plotly.graph_objects as go
import pytest

from datasets.commands.runs import main
from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.base.files import remove_leftovers
from segmenter.evaluation.calibration import fit_held_out
from segmenter.grid.labels import MAX_CLASSES
from segmenter.pages.parts import Block
from segmenter.runs.compare import comparison
from segmenter.runs.log import RunLog
from segmenter.runs.records import (
    CALIBRATION,
    PROGRESS,
    WINDOWS,
    Progress,
    ProgressMap,
    add_progress,
    load_calibration,
    load_progress,
    load_windows,
    save_calibration,
)
from segmenter.runs.report.run_record import finite, read_story
from segmenter.runs.report.sections import REPORT, write_report
from segmenter.runs.run import Extension, load_run
from tests.helpers.made_diagnosis import HOSTILE
from tests.helpers.made_runs import rewritten
from tests.helpers.refusals import refused
from tests.helpers.report_page import Page
from tests.helpers.trained_run import STEPS, trained_run

MOST = 3 << 19
"""Bytes of a page."""
CASES: dict[str, dict[str, Any]] = {
    "whole": {},
    "one epoch": {"epochs": 1},
    "stopped": {"epochs": 3, "of": 10, "extensions": [Extension(50, 2, 10)]},
    "ended early": {"epochs": 4, "of": 10, "stop_after": 2, "without_gain": 2},
    "without a validation": {"validations": False, "windows": 0},
    "a class without scores": {"absent": [1]},
    "no class has a score": {"absent": [0, 1, 2]},
    "an older version": {
        "without": ("waiting_for_data", "images_per_second", "held_steps", "steps", "learning_rate"),
        "windows": 0,
    },
    "without a checkpoint": {"checkpoint": False, "of": 10},
    "one class": {"names": ["water"]},
    "all classes": {"names": [f"class {i}" for i in range(MAX_CLASSES)], "epochs": 9},
    "hostile": {"names": HOSTILE, "scenes": HOSTILE},
}


def calibrated(run: Path) -> None:
    """Write the calibration of a run of three classes, fitted on made pixels."""
    rng = np.random.default_rng(4)
    label = rng.integers(0, 3, 600)
    fitted = fit_held_out(9 * (rng.normal(size=(600, 3)) + np.eye(3)[label]), label, np.arange(600) % 5)
    save_calibration(load_run(run), fitted, pixels=600, scenes=5, fitted_on=[])


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`made("stopped")`: a case's run directory and its page."""
    known: dict[str, tuple[Path, Page]] = {}

    def make(case: str) -> tuple[Path, Page]:
        if case not in known:
            path = tmp_path_factory.mktemp("run") / "run"
            trained_run(path, **CASES[case])
            known[case] = path, page_of(path)
        return known[case]

    return make


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_whole_page_within_its_size(made: Any, case: str) -> None:
    run, page = made(case)
    assert (run / REPORT).stat().st_size < MOST
    for chart in page.data()["charts"].values():
        for figure in chart["figures"]:
            go.Figure(figure)  # by Plotly's own schema
        assert all(
            len(title) > 10 and "None" not in title and "nan" not in title for title in chart["titles"]
        )
    words = page.text()
    assert "None" not in words
    assert " nan" not in words
    assert {link.removeprefix("#") for link in page.attributes("href") if link != "data:,"} <= set(
        page.attributes("id")
    )
    assert page.attributes("id") == list(dict.fromkeys(page.attributes("id")))
    assert all(src.startswith("data:image/") for src in page.attributes("src"))


def test_its_curves_are_those_of_the_log(made: Any) -> None:
    run, page = made("whole")
    records = RunLog(run).records()
    trained = [record for record in records if "loss" in record]
    loss = page.figure("loss")["data"][0]
    assert loss["x"] == [record["step"] for record in trained]
    assert loss["y"] == pytest.approx([record["loss"] for record in trained], rel=1e-4)
    validated = [record for record in records if "miou" in record]
    curves = {curve["name"]: curve for curve in page.figure("scores")["data"] if "hoverinfo" not in curve}
    assert curves.keys() == {"water", "forest", "road", "mIoU"}
    assert curves["mIoU"]["x"] == [record["step"] for record in validated]
    for name in ("water", "forest", "road"):
        expected = [100 * record["iou"][name] for record in validated]
        assert curves[name]["y"] == pytest.approx(expected, rel=1e-4)
    speeds = [(speed.epoch, speed.rate) for speed in read_story(run).speeds]
    assert speeds == [(epoch, 100.0 + epoch) for epoch in range(1, 7)]


def test_its_classes_and_confusions_are_those_of_the_best_scores(made: Any) -> None:
    run, page = made("whole")
    scores = read_story(run).best
    shown = page.figure("classes-iou")["data"][0]
    assert sorted(shown["x"]) == pytest.approx(sorted(100 * scores.scores.iou))
    cells = page.figure("confusion")["data"][0]["z"]
    matrix = scores.scores.matrix
    shares = (100 * matrix / matrix.sum(axis=1, keepdims=True)).tolist()
    assert [pytest.approx(row) for row in shares] == cells
    assert f"mIoU {100 * scores.scores.miou:.2f}, mF1" in page.text()
    assert "After epoch 6, on 2 validation scenes. Finished, 6 epochs." in page.text()


def test_foreign_names_change_no_tag_and_stay_text(made: Any, tmp_path: Path) -> None:
    page = made("hostile")[1]
    harmless = [f"name {i}" for i in range(len(HOSTILE))]
    calm = tmp_path / "run"
    trained_run(calm, names=harmless, scenes=harmless)
    assert [(tag, sorted(attrs)) for tag, attrs in page.tags] == [
        (tag, sorted(attrs)) for tag, attrs in page_of(calm).tags
    ]
    words = " ".join(page.text().split())
    assert all(name in words for name in HOSTILE)
    curves = page.figure("scores")["data"]
    assert not any(re.search(r"[<$]|%\{", curve["name"]) for curve in curves)
    templates = {curve["hovertemplate"].split("<br>step ")[0] for curve in curves if curve["hovertemplate"]}
    assert {html.unescape(template) for template in templates} == {*HOSTILE, "mIoU"}
    assert not any(re.search(r"[<$]|%\{", template) for template in templates)


def test_pictures_are_those_of_the_run_beside_each_other(made: Any) -> None:
    run, page = made("whole")
    windows = load_windows(run)
    wanted = [
        f"data:{kind};base64,{data}"
        for one in windows.shown
        for kind, data in (("image/jpeg", one.image), ("image/png", one.label), ("image/png", one.map))
    ]
    assert page.attributes("src") == wanted
    assert "50 % wrong" in page.text()


def test_a_loss_that_is_not_finite_is_a_gap_that_is_counted(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", epochs=2)
    RunLog(run.path).append(
        {"step": 101, "epoch": 3, "loss": float("nan"), "steps": 1, "held_steps": [1, 1, 1]}
    )
    page = page_of(run.path)
    assert page.figure("loss")["data"][0]["y"][-1] is None
    assert "1 line has no finite loss" in page.text()
    assert [finite(value) for value in (1, 2.5, float("inf"), True, "1", None)] == [1, 2.5, *[None] * 4]


@pytest.mark.parametrize("what", ["checkpoint", "windows", "coverage"])
def test_what_is_damaged_is_named_and_the_rest_shown(tmp_path: Path, what: str) -> None:
    run = trained_run(tmp_path / "run").path
    if what == "checkpoint":
        file = next((run / "checkpoints").iterdir())
        file.write_bytes(file.read_bytes()[:-9])
    elif what == "windows":
        file = run / WINDOWS
        file.write_bytes(file.read_bytes().replace(b'"step": 300', b'"step": 301'))
    else:
        file = run / "log.jsonl"
        RunLog(run).append({"step": 400, "held_steps": "many"})
    page = page_of(run)
    assert f"{file}: " in page.text()
    assert "damaged" in page.text() or "expected steps of" in page.text()
    assert {"loss", "scores", "confusion"} <= page.data()["charts"].keys()


def test_pictures_that_are_none_never_reach_the_page(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run").path
    whole, data = (run / WINDOWS).read_bytes(), load_windows(run)
    rewritten(run / WINDOWS, shown=[{"why": "worst"}])
    with refused(CheckpointError, where="windows.json", fault="edited: shown.0.scene"):
        load_windows(run)
    (run / WINDOWS).write_bytes(whole)
    one = data.shown[0].model_dump() | {"image": 'x" onerror="alert(1)'}
    rewritten(run / WINDOWS, shown=[one])
    with refused(CheckpointError, where="run/windows.json", fault="shown.0.image: String should"):
        load_windows(run)


def followed(step: int) -> Progress:
    one = ProgressMap(step=step, epoch=step // 10, miou=min(1.0, step / 1000), map="AAAA")
    window = {"scene": "a", "row": 3, "col": 5, "height": 70, "width": 50}
    pictures = {"picture_height": 70, "picture_width": 50, "image": "AAAA", "label": "AAAA"}
    return Progress(**window, **pictures, maps=(one,))


@pytest.mark.parametrize(("every", "count"), [(10, 1), (10, 12), (10, 97), (130, 13)])
def test_of_many_maps_of_the_followed_window_some_stay_from_the_first_to_the_last(
    tmp_path: Path, every: int, count: int
) -> None:
    for number in range(1, count + 1):
        add_progress(tmp_path, followed(every * number))
    steps = [each.step for each in load_progress(tmp_path).maps]
    assert (steps[0], steps[-1], len(steps)) == (every, every * count, min(12, count))
    gaps = np.diff(steps)
    assert len(gaps) == 0 or gaps.max() <= 3 * max(every, every * count / 12)
    assert (gaps > 0).all()


def test_a_resumed_run_replaces_the_maps_that_come_after_it_and_a_damaged_file_is_begun_anew(
    tmp_path: Path,
) -> None:
    for step in (10, 20, 30, 20):
        add_progress(tmp_path, followed(step))
    assert [each.step for each in load_progress(tmp_path).maps] == [10, 20]
    (tmp_path / PROGRESS).write_text("{")
    with refused(CheckpointError, where=PROGRESS):
        load_progress(tmp_path)
    add_progress(tmp_path, followed(30))
    assert [each.step for each in load_progress(tmp_path).maps] == [30]


def test_the_page_shows_the_followed_window_once_there_are_two_maps(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run").path
    add_progress(run, followed(10))
    assert "epoch 1, mIoU" not in page_of(run).text()
    for step in range(20, 130, 10):
        add_progress(run, followed(step))
    text = page_of(run).text()
    assert [f"epoch {epoch}, mIoU" in text for epoch in (1, 12)] == [True, True]
    assert len(re.findall(r"epoch \d+, mIoU", text)) == 6


def test_long_logs_make_no_large_pages(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", epochs=80, every=1, validations=False).path
    page = page_of(run)
    loss, records = page.figure("loss")["data"][0], RunLog(run).records()
    assert len(records) == 80 * STEPS
    assert len(loss["x"]) <= 600
    assert loss["x"][-1] == 80 * STEPS
    size = len(records) // len(loss["x"]) + 1
    assert loss["y"][0] == pytest.approx(sum(r["loss"] for r in records[:size]) / size, rel=1e-3)
    mean = page.figure("loss")["data"][1]
    span = len(loss["x"]) // 20
    assert mean["x"] == loss["x"][span - 1 :]
    assert mean["y"][-1] == pytest.approx(sum(loss["y"][-span:]) / span, rel=1e-3)
    assert (run / REPORT).stat().st_size < MOST


def test_the_command_writes_it_whole_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained_run(tmp_path / "run", epochs=1).path
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / REPORT}\n"
    elsewhere = tmp_path / "page.html"
    assert main(["report", str(run), "--output", str(elsewhere)]) == 0
    assert elsewhere.read_bytes() == (run / REPORT).read_bytes()
    with refused(SegmenterError, expected="folder"):
        write_report(run, tmp_path)
    (run / f".{REPORT}.abcdefgh").write_text("<html>")
    assert remove_leftovers(run) == 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    trained_run(folder / "poor", quality=0.5, learning_rate=0.5)
    trained_run(folder / "good", quality=0.9, epochs=3, waiting=0.4)
    trained_run(folder / "eroded", labels="eroded", quality=0.95)
    trained_run(folder / "none", validations=False, windows=0)
    return folder


def test_the_best_is_first_and_other_protocols_are_apart(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("poor", "good", "eroded", "none")
    assert main(["compare", *(str(runs / name) for name in names)]) == 0
    said = capsys.readouterr().out
    assert "3 classes, full labels, validation split (2 scenes), TTA none, not calibrated; by mIoU, " in said
    assert said.index("\n  good ") < said.index("\n  poor ")
    assert "not in one ranking:\n  poor and eroded: labels: full and eroded\n" in said
    assert "Without scores\n  Run   " in said
    assert "  none  no validation was done\n" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line.startswith("  training.")}
    assert rows["training.learning_rate"][1:] == ["0.5", "0.001", "0.001", "0.001"]
    assert rows["training.epochs"][1:] == ["6", "3", "6", "6"]
    assert "training.global_batch" not in said
    best = read_story(runs / "good").best
    (line,) = (line for line in said.splitlines() if line.startswith("  water ") and "*" in line)
    assert line.split() == ["water", f"*{100 * best.scores.iou[0]:.2f}", line.split()[2]]
    assert "*" not in line.split()[2]


def test_order_is_by_the_score_that_all_choose_their_best_by(tmp_path: Path) -> None:
    stories = []
    for name, quality in (("a", 0.7), ("b", 0.8)):
        trained_run(tmp_path / name, quality=quality, best_by="iou:road")
        stories.append(read_story(tmp_path / name))
    lines = [line.split() for line in comparison(stories).splitlines()]
    assert lines[1][:5] == ["Run", "IoU", "of", "road", "mIoU"]
    assert [row[0] for row in lines[2:4]] == ["b", "a"]


def test_runs_whose_labels_were_changed_in_between_are_not_ranked_together(tmp_path: Path) -> None:
    stories = []
    for name, absent in (("before", ()), ("after", (1,))):
        trained_run(tmp_path / name, absent=absent)
        stories.append(read_story(tmp_path / name))
    apart = "not in one ranking:\n  before and after: labels that differ: 1,000 and 0 pixels of forest\n"
    assert apart in comparison(stories)


def test_what_cannot_be_compared_is_refused_in_one_line(runs: Path, tmp_path: Path) -> None:
    good = str(runs / "good")
    with refused(SegmenterError, where="compare", got="1:"):
        main(["compare", good])
    with refused(SegmenterError, where="compare", got="good and"):
        main(["compare", good, str(runs / "poor"), f"{good}/../good/."])
    with refused(CheckpointError, expected="run directory"):
        main(["compare", good, str(tmp_path)])


def test_a_folder_of_runs_stands_for_them(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.name for path in runs.iterdir())
    assert main(["compare", str(runs)]) == 0
    found = capsys.readouterr().out
    assert main(["compare", *(str(runs / name) for name in names)]) == 0
    assert capsys.readouterr().out == found


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ("goood", {"expected": "you mean"}),
        ("xyz", {"expected": "/eroded"}),
        (".", {"expected": "runs"}),
        ("good/best.npz", {"where": "runs/good/best.npz", "got": "a file"}),
        ("mine.yaml", {"where": "runs/mine.yaml", "got": "a file", "remedy": "first, into runs/mine"}),
        ("mine.zip", {"where": "runs/mine.zip", "got": "a file", "remedy": "mine.zip"}),
    ],
)
def test_what_is_no_run_says_which_is_meant(
    runs: Path, tmp_path: Path, given: str, fields: dict[str, object]
) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    path = folder / given
    if path.suffix:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with refused(CheckpointError, **fields):
        load_run(path)


def test_a_calibration_is_drawn_as_its_file_says_and_a_damaged_one_named(tmp_path: Path) -> None:
    trained_run(tmp_path / "run")
    calibrated(tmp_path / "run")
    file, whole = tmp_path / "run" / CALIBRATION, (tmp_path / "run" / CALIBRATION).read_bytes()
    rewritten(file, weights="ab" * 32)
    story = read_story(tmp_path / "run")
    assert story.calibration is None
    assert "of other weights" in " ".join(story.missing)
    file.write_bytes(whole)
    found = load_calibration(tmp_path / "run")
    charts = page_of(tmp_path / "run").data()["charts"]
    for name in ("reliability", "risk-coverage"):
        go.Figure(charts[name]["figures"][0])
    *_, before, after = charts["reliability"]["figures"][0]["data"]
    for curve, each in ((before, found.before), (after, found.fitted.after)):
        np.testing.assert_allclose(curve["y"], [100 * right for count, _, right in each.bins if count])
    risks = charts["risk-coverage"]["figures"][0]["data"][1]["y"]
    np.testing.assert_allclose(risks, 100 * np.array(found.fitted.after.risks))
    file.write_bytes(file.read_bytes()[:-3])
    story = read_story(tmp_path / "run")
    assert story.calibration is None
    assert str(file) in " ".join(story.missing)


def test_the_template_knows_each_kind_of_block_by_its_name() -> None:
    template = (resources.files("segmenter.pages") / "page.html").read_text(encoding="utf-8")
    named = set(re.findall(r'kind == "(\w+)"', template))
    assert named == {kind.__name__ for kind in get_args(Block)} - {
        "ShareMaps"
    }  # the last one, without a test
