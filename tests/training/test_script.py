"""train.py as a user runs it: real processes on made data. Stopping and resuming: test_resume*.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from segmenter.runs.records import CALIBRATION, validation_images
from tests.helpers.made_training import ROOT, made, records, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and the run it gave on one device."""
    folder = tmp_path_factory.mktemp("train")
    recipe = made(folder / "data")
    done = train(recipe, "--run", str(folder / "run"), "--json")
    (folder / "answer.json").write_text(done.stdout)
    (folder / "words.txt").write_text(done.stderr)
    return recipe, folder / "run"


def test_a_run_directory_is_whole_and_learned(finished: tuple[Path, Path]) -> None:
    recipe, run = finished
    assert validation_images(run) == [recipe.parent / "images" / "s4.tif"]
    names = {p.name for p in run.iterdir()}
    assert {
        "recipe.yaml", "run.json", "best.npz", "log.jsonl", "scores.json", "confusion.png",
        "last_scores.json", "last_confusion.png", "learning_curves.png", "tensorboard", "checkpoints",
        "origin.json",
        "windows.json", "report.html",
    } <= names  # fmt: skip
    lines = records(run)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    assert all(line.get("short_steps", 0) == 0 for line in lines)
    assert json.loads((run / "scores.json").read_text())["protocol"]["split"] == "validation"


def test_a_training_with_a_single_validation_scene_is_calibrated(finished: tuple[Path, Path]) -> None:
    assert (finished[1] / CALIBRATION).exists()


@pytest.mark.parametrize(
    ("dtype", "bands"), [("uint16", 5), pytest.param("float32", 2, marks=pytest.mark.slow)]
)
def test_other_imagery_trains_and_fine_tunes_as_8_bit_does(
    finished: tuple[Path, Path], tmp_path: Path, dtype: str, bands: int
) -> None:
    recipe = made(tmp_path / "data", dtype, bands)
    arguments = ("--run", str(tmp_path / "run"), "--init-from", str(finished[1]), "--profile")
    often = ("--set", "training.checkpoint_every=5", "--set", "training.keep_checkpoints=9")
    output = train(recipe, *arguments, *often, "--set", "training.ema=0.5").stdout
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())  # 7 steps an epoch, in calls of 4 and 3
    assert [int(path.stem.removeprefix("step-")) for path in kept] == [7, 11, 14, 18, 21]
    assert output.count("throughput: ") == 3
    assert "\nlast: epoch 3, step 21, mIoU " in output
    assert output.count("\nbest: epoch ") == 1
    assert "profile of 7 steps" in output  # from the third call, 4 steps, to the epoch's end, 3 more
    assert list((tmp_path / "run" / "tensorboard").rglob("*.xplane.pb"))

    assert "kept: bottleneck, decoder stage 1, head; kept in part: encoder stage 1\n" in output
    data = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (data["dtype"], data["band_count"]) == (dtype, bands)
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["miou"] > 0.5


def test_json_is_all_that_stdout_gets(finished: tuple[Path, Path]) -> None:
    run = finished[1]
    answer = json.loads((run.parent / "answer.json").read_text())
    reached = {"run": str(run), "ended": "finished", "resumed": False, "epochs": 3, "steps": 21}
    assert reached.items() <= answer.items()
    scores = json.loads((run / "scores.json").read_text())
    assert (answer["best_epoch"], answer["best_step"]) == (scores["epoch"], scores["step"])
    assert answer["scores"]["miou"] == scores["miou"]
    assert answer["seconds"] > 0
    words = (run.parent / "words.txt").read_text()
    assert f"done: {run} holds the run" in words
    assert words.count("throughput: ") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [  # before the data are read, and with the devices known; others in the tests of what refuses them
        (["--set", "tiles.sise=1"], "tiles.sise: unknown key"),
        (["--set", "training.global_batch=7", "--logical-devices", "4"], "multiple of 4"),
    ],
)
def test_a_users_mistake_is_one_clear_line(
    finished: tuple[Path, Path], tmp_path: Path, arguments: list[str], message: str
) -> None:
    run = tmp_path / "run"
    result = train(finished[0], "--run", str(run), *arguments, check=False)
    assert result.returncode == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in result.stderr
    assert not run.exists()


def test_a_run_is_not_written_over(finished: tuple[Path, Path]) -> None:
    recipe, run = finished
    before = (run / "log.jsonl").read_bytes()
    result = train(recipe, "--run", str(run), check=False)
    assert result.returncode == 2
    assert "run already" in result.stderr
    assert (run / "log.jsonl").read_bytes() == before


def test_a_run_with_dropout_predicts(finished: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, run = finished
    command = [
        sys.executable,
        "predict.py",
        str(run),
        str(recipe.parent / "images"),
        "--output",
        str(tmp_path),
    ]
    labels = ["--labels", str(recipe.parent / "labels" / "{stem}.tif")]
    result = subprocess.run([*command, *labels], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "scores.json").read_text())["miou"] > 0.5
    assert len(list(tmp_path.glob("*.tif"))) == 5


@pytest.mark.parametrize(
    ("which", "scene"),  # one scene that trains, one that validates
    [
        ("images", "s0"),
        ("images", "s4"),  # while the next epoch's batches are made
        pytest.param("labels", "s0", marks=pytest.mark.slow),
        pytest.param("labels", "s4", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_file_is_named_before_or_while_training(tmp_path: Path, which: str, scene: str) -> None:
    recipe = made(tmp_path / "data")
    file = tmp_path / "data" / which / f"{scene}.tif"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    result = train(recipe, "--run", str(tmp_path / "run"), check=False)
    assert result.returncode == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"{which}/{scene}.tif" in errors[0]
    assert "Traceback" not in result.stderr


def test_print_config_shows_what_load_reads(finished: tuple[Path, Path], tmp_path: Path) -> None:
    shown = train(finished[0], "--print-config", "--set", "training.global_batch=16").stdout
    assert "global_batch: 16  # tiles: of one optimiser step" in shown
    copy = tmp_path / "copy.yaml"
    copy.write_text(shown)
    assert train(copy, "--print-config").stdout == shown
