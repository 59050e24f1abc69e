"""The comparison of samplings and losses: which runs there are, what is done again, what the page says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.page import END
from benchmarks.what_lifts import ARMS, Task, finished, tasks_of
from benchmarks.what_lifts_data import DATA, Study
from benchmarks.what_lifts_page import MARK, arms_of, gain, interval, write_page
from segmenter.base.errors import SegmenterError
from tests.helpers.made_tables import recipe


def result(task: Task, miou: float = 0.5, rare: float = 0.2) -> dict[str, Any]:
    keys = ("data", "sampling", "loss", "seed", "steps", "hold_out")
    return {
        **{key: getattr(task, key) for key in keys},
        "settings": task.settings(),
        "mIoU": miou,
        "rare_IoU": rare,
        "rare_class": "water",
        "complete_steps": 0.25,
        "steps_with_rare": 0.3,
        "processor_seconds": 540.0,
        "global_batch": 16,
        "tiles": 100,
    }


def save(folder: Path, task: Task, **scores: float) -> None:
    (folder / f"{task.name}.json").write_text(json.dumps(result(task, **scores)))


def test_each_seed_of_all_arms_comes_before_the_next() -> None:
    tasks = tasks_of(["naic", "dubai"], [0, 1, 2], None, "tile_7")
    assert len({task.name for task in tasks}) == len(tasks) == 3 * 2 * 11
    assert [task.seed for task in tasks] == sorted(task.seed for task in tasks)
    assert {task.steps for task in tasks if task.data == "naic"} == {DATA["naic"].steps}
    some = tasks_of(["naic", "dubai"], [0], 7, only=["naic-plan-*", "foreground"])
    assert [t.name for t in some if t.sampling == "foreground"] == [
        *("naic-foreground-cross_entropy-0", "dubai-foreground-cross_entropy-0")
    ]
    assert {t.data for t in some if t.sampling == "plan"} == {"naic"}


def test_every_arm_is_a_recipe() -> None:
    for sampling, loss in ARMS:
        made = recipe(**Task("naic", sampling, loss, 0, 1).settings())
        assert (made.sampling.method, made.loss.cross_entropy) == (sampling, 1)
    assert len({str(Task("", *arm, 0, 1).settings()) for arm in ARMS}) == len(ARMS)


def test_a_run_that_is_there_is_not_done_again(tmp_path: Path) -> None:
    task = Task("dubai", "plan", "ohem", 1, 900, "tile_7")
    assert not finished(tmp_path, task)
    save(tmp_path, task)
    assert finished(tmp_path, task)
    for other in (
        Task("dubai", "plan", "ohem", 1, 901, "tile_7"),
        Task("dubai", "plan", "ohem", 1, 900, "tile_4"),
    ):
        with pytest.raises(
            SegmenterError, match=r"dubai-plan-ohem-1\.json: expected (steps 901|hold_out tile_4)"
        ):
            finished(tmp_path, other)


def test_missing_imagery_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        SegmenterError, match="--dubai: expected the folder of tile_N/images and tile_N/masks"
    ):
        Study(tmp_path, None, "tile_7").prepare("dubai")


def test_intervals_are_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / 3**0.5))
    assert np.isnan(interval([1.0])[1])


def test_gains_are_paired_by_seed() -> None:
    found = [result(Task("naic", "shuffle", "cross_entropy", s, 9), miou=0.3 + s / 10) for s in range(3)]
    found += [result(Task("naic", "plan", "cross_entropy", s, 9), miou=0.35 + s / 10) for s in (1, 2)]
    arms = arms_of(found)
    mean, half = gain(arms["plan", "cross_entropy"], arms["shuffle", "cross_entropy"], "mIoU")
    assert (mean, half) == (pytest.approx(0.05), pytest.approx(0, abs=1e-9))


def test_the_page_has_a_row_for_each_arm_and_a_plot(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARK}\nold\n{END}\nafter\n")
    with pytest.raises(SegmenterError, match="expected results of runs, there are none"):
        write_page(tmp_path / "results", page)
    (tmp_path / "results").mkdir()
    for task in tasks_of(["naic", "dubai"], [0, 1, 2], None):
        save(tmp_path / "results", task, miou=0.4 + 0.01 * task.seed + 0.1 * (task.sampling == "plan"))
    write_page(tmp_path / "results", page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count("| cross entropy | 3 |") == 10
    assert (
        "| plan | ohem | 3 | 51.0 ± 2.5 | 20.0 ± 0.0 | +10.0 ± 0.0 | +0.0 ± 0.0 | 25.0% | 30.0% | 9.0 |"
        in text
    )
    assert "| shuffle | cross entropy | 3 | 41.0 ± 2.5 | 20.0 ± 0.0 | - | - |" in text
    assert (tmp_path / "page.png").stat().st_size > 10_000
