"""Runs compared: those of one protocol are ranked, others never put together, and what differs is said."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.runs.__main__ import main
from segmenter.runs.compare import as_text, comparison, duration
from segmenter.runs.report.run_record import read_story
from segmenter.runs.run import load_run
from tests.helpers.made_diagnosis import HOSTILE
from tests.helpers.trained_run import trained_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two protocols, one without scores."""
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
    compared = comparison([read_story(runs / name) for name in names])
    assert [list(group.members) for group in compared.groups] == [[1, 0], [2]]
    assert "3 classes, full labels, validation split (2 scenes), TTA none; by mIoU, in percent\n" in said
    assert said.index("\n  good ") < said.index("\n  poor ")
    assert "not in one ranking:\n  poor and eroded: labels: full and eroded\n" in said
    assert "Without scores\n  Run   " in said
    assert "  none  no validation was done\n" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line.startswith("  training.")}
    assert rows["training.learning_rate"][1:] == ["0.5", "0.001", "0.001", "0.001"]
    assert rows["training.epochs"][1:] == ["6", "3", "6", "6"]
    assert "training.global_batch" not in said
    best = read_story(runs / "good").best
    assert best is not None
    (line,) = (line for line in said.splitlines() if line.startswith("  water ") and "*" in line)
    assert line.split() == ["water", f"*{100 * best.scores.iou[0]:.2f}", line.split()[2]]
    assert "*" not in line.split()[2]


def test_order_is_by_the_score_that_all_choose_their_best_by(tmp_path: Path) -> None:
    stories = []
    for name, quality in (("a", 0.7), ("b", 0.8)):
        trained_run(tmp_path / name, quality=quality, best_by="iou:road")
        stories.append(read_story(tmp_path / name))
    (group,) = comparison(stories).groups
    assert group.ranking.header[:3] == ["Run", "IoU of road", "mIoU"]
    assert [row[0] for row in group.ranking.rows] == ["b", "a"]


def test_runs_whose_labels_were_changed_in_between_are_not_ranked_together(tmp_path: Path) -> None:
    stories = []
    for name, absent in (("before", ()), ("after", (1,))):
        trained_run(tmp_path / name, absent=absent)
        stories.append(read_story(tmp_path / name))
    compared = comparison(stories)
    assert [len(group.members) for group in compared.groups] == [1, 1]
    (line,) = compared.apart
    assert line == "before and after: labels that differ: 1,000 and 0 pixels of forest"


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    stories = []
    for folder in ("one", "other"):
        trained_run(tmp_path / folder / "run", names=HOSTILE)
        stories.append(read_story(tmp_path / folder / "run"))
    compared = comparison(stories)
    assert compared.names == ["one/run", "other/run"]
    assert as_text(compared).endswith("their recipes have the same settings")


def test_what_cannot_be_compared_is_refused_in_one_line(runs: Path, tmp_path: Path) -> None:
    good = str(runs / "good")
    with pytest.raises(SegmenterError, match=r"expected two run directories or more, .*got 1: "):
        main(["compare", good])
    with pytest.raises(
        SegmenterError, match=r"expected each run once, got .*good and .*good/\.\./good, which"
    ):
        main(["compare", good, str(runs / "poor"), f"{good}/../good/."])
    with pytest.raises(CheckpointError, match="expected a run directory"):
        main(["compare", good, str(tmp_path)])


def test_a_folder_of_runs_stands_for_them(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.name for path in runs.iterdir())
    assert main(["compare", str(runs)]) == 0
    found = capsys.readouterr().out
    assert main(["compare", *(str(runs / name) for name in names)]) == 0
    assert capsys.readouterr().out == found


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("goood", r"did you mean .*/good\?"),
        ("xyz", r"runs beside it are .*/eroded, .*/good, .*/none, .*/poor$"),
        (".", r"runs in it are .*eroded, .*good, .*none, .*poor$"),
        ("good/best.npz", "give the run that it is of, .*good$"),
        ("good/recipe.yaml", "give the run that it is of, .*good$"),
        ("good/checkpoints/any.npz", "give the run that it is of, .*good$"),
        ("mine.yaml", "a recipe is trained first, into runs/mine"),
        ("mine.zip", "unpack .*mine.zip"),
    ],
)
def test_what_is_no_run_says_which_is_meant(runs: Path, tmp_path: Path, given: str, meant: str) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    path = folder / given
    if path.suffix:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with pytest.raises(CheckpointError, match=meant):
        load_run(path)


def test_durations_as_people_write_them() -> None:
    seconds: Sequence[float] = (0.4, 89, 91, 3600, 5399, 11100)
    assert [duration(s) for s in seconds] == ["0 s", "89 s", "2 min", "60 min", "1 h 30 min", "3 h 5 min"]
