"""Runs as they train: their state by lock and files, parts that change, several side by side."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from datasets.commands.view_kinds import routes_of
from segmenter.base.errors import CheckpointError
from segmenter.base.files import FileLock
from segmenter.evaluation.scores import Scores
from segmenter.extras.view.opening import Wanted
from segmenter.extras.view.runs import WatchedRun
from segmenter.extras.view.server import Asked
from segmenter.runs.log import LOG, log_line
from segmenter.runs.records import Progress, ProgressMap, add_progress
from segmenter.runs.score_files import BEST_FILES
from tests.helpers.page_client import PageClient, headless, served, text_of, until
from tests.helpers.report_page import Page
from tests.helpers.trained_run import STEPS, trained_run

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def page_of(*paths: Path, run: str = "") -> Page:
    with routes_of(Wanted(paths)) as routes:
        answer = routes["GET "](Asked(("",), {"run": run} if run else {}))
    return Page(answer.content.decode())


def test_a_run_says_whether_it_trains_stands_or_has_finished(tmp_path: Path) -> None:
    path = trained_run(tmp_path / "mine", epochs=3, of=12).path
    changed = 1_700_000_000
    for file in path.rglob("*"):
        os.utime(file, (changed, changed))
    watched = WatchedRun(path, clock=lambda: changed + 180.0)
    assert watched.state().startswith("Stands since 3 min, at step ")
    assert "--resume" in watched.state()
    lock = FileLock(path / ".lock")
    lock.take()
    assert watched.is_training
    steps = 9 * STEPS
    rate, batch = 103.0, 8
    assert f"epoch 3 of 12, step {3 * STEPS:,}" in watched.state()
    assert f"{steps:,} steps" in watched.state()
    seconds = steps * batch / rate
    assert f"about {seconds / 60:.0f} min" in watched.state() or f"about {seconds:.0f} s" in watched.state()
    lock.release()
    assert not watched.is_training
    (path / ".lock").touch()  # as kill -9 leaves it
    assert not watched.is_training
    assert (path / ".lock").exists(), "it is the training's to remove"
    done = trained_run(tmp_path / "done", epochs=3).path
    assert WatchedRun(done).state().startswith("Finished")


def test_after_an_epoch_was_watched_the_time_left_has_its_validations(tmp_path: Path) -> None:
    run, now = trained_run(tmp_path / "mine", epochs=3, of=12), [1000.0]
    watched, lock = WatchedRun(run.path, clock=lambda: now[0]), FileLock(run.path / ".lock")
    lock.take()
    assert "and the time of validations" in watched.state()
    with (run.path / LOG).open("a") as log:
        line = {"step": 4 * STEPS, "epoch": 4, "loss": 1.0, "steps": STEPS, "images_per_second": 1e6}
        log.write(log_line(line))
    now[0] += 600
    assert watched.state().endswith(f"step {4 * STEPS}, about 80 min left"), "8 epochs of 10 minutes"
    lock.release()


def test_the_first_epoch_has_no_time_left_yet(tmp_path: Path) -> None:
    path = trained_run(tmp_path / "mine", epochs=1, of=12, validations=False, checkpoint=False).path
    lock = FileLock(path / ".lock")
    lock.take()
    assert "after the first epoch" in WatchedRun(path).state()
    lock.release()


def test_a_page_changes_with_the_files_and_stays_without(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "mine", epochs=3, of=12)
    for file in run.path.rglob("*"):
        os.utime(file, (1_700_000_000, 1_700_000_000))  # it stands since years, not seconds
    with routes_of(Wanted((run.path,))) as routes, served(routes) as server:
        page = PageClient(server)
        first = page.get("now")
        assert page.get("now") == first
        assert first["stamp"] in page.ask("")[1].decode()
        with (run.path / LOG).open("a") as log:
            log.write(log_line({"step": 3 * STEPS + 20, "epoch": 4, "loss": 0.25, "steps": 20}))
            log.write('{"half": ')  # as it is while the training writes it
        later = page.get("now")
        assert later["stamp"] != first["stamp"]
        charts = Page(page.ask("")[1].decode()).data()["charts"]
        assert charts["loss"]["figures"][0]["data"][0]["x"][-1] == 3 * STEPS + 20
        for script in ("charts.js", "page.js", "runs.js"):
            assert page.ask(script)[0] == 200


def test_the_followed_window_has_a_row_for_each_epoch_the_newest_first(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "mine", epochs=3, of=12)
    pixel: Any = PIXEL
    for epoch in (1, 2, 3):
        one = ProgressMap(step=epoch * STEPS, epoch=epoch, miou=epoch / 10, map=pixel)
        window: Any = {"scene": "a", "row": 0, "col": 0, "height": 9, "width": 9}
        size: Any = {"picture_height": 1, "picture_width": 1}
        add_progress(run.path, Progress(**window, **size, image=pixel, label=pixel, maps=(one,)))
    text = page_of(run.path).text()
    places = [text.index(f"Epoch {epoch}, mIoU {10 * epoch} %") for epoch in (3, 2, 1)]
    assert places == sorted(places)


def test_several_runs_are_side_by_side_with_the_settings_that_differ(tmp_path: Path) -> None:
    trained_run(tmp_path / "runs" / "one", epochs=3)
    trained_run(tmp_path / "runs" / "two", epochs=2, of=6, learning_rate=0.5)
    page = page_of(tmp_path / "runs")
    text = page.text()
    assert "training.learning_rate" in text
    assert "training.precision" not in text
    assert len(page.figure("losses")["data"]) == len(page.figure("mious")["data"]) == 2
    assert page.data() == page_of(tmp_path / "runs" / "one", tmp_path / "runs" / "two").data()
    assert "Training of" in page_of(tmp_path / "runs", run="1").text()


def test_runs_of_other_labels_are_said_not_to_be_comparable(tmp_path: Path) -> None:
    one = trained_run(tmp_path / "one").path
    other = trained_run(tmp_path / "other", scenes=("a", "c")).path
    assert "not to be compared" in page_of(one, other).text()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CheckpointError), routes_of(Wanted((tmp_path,))):
        pass


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_in_a_browser_the_report_follows_the_training(tmp_path: Path, width: int, dark: bool) -> None:
    run = trained_run(tmp_path / "mine", epochs=3, of=12)
    with (
        routes_of(Wanted((run.path,))) as routes,
        served(routes) as server,
        headless(tmp_path / "profile", server.address, width, dark=dark) as page,
    ):
        drawn = "return document.querySelectorAll('.chart svg').length"
        until(lambda: page.execute_script(drawn))
        before = text_of(page, "loss-title")
        page.execute_script("document.querySelector('details').open = true")
        with (run.path / LOG).open("a") as log:
            for step in range(20, 400, 20):
                log.write(log_line({"step": 3 * STEPS + step, "epoch": 4, "loss": 9.0, "steps": 20}))
        until(lambda: text_of(page, "loss-title") != before)
        figure = "return document.querySelector('.figure').textContent"
        assert f"{Scores.from_dict(json.loads((run.path / BEST_FILES[0]).read_text())).miou:.0%}"[:-1] in (
            page.execute_script(figure)
        )
        assert page.execute_script("return document.querySelector('details').open")
        assert page.execute_script(drawn)
        assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert json.loads(page.execute_script("return document.getElementById('data').textContent"))["charts"]
