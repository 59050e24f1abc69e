"""train.py as a user runs it: real processes on made data. Stopping and resuming: test_resume*.py."""

import filecmp
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml

from datasets import load_dataset
from datasets.commands import main, predict
from datasets.commands import train as train_script
from segmenter.base.errors import CheckpointError, run_script
from segmenter.config.reading import load_recipe
from segmenter.evaluation.calibration import Fitted
from segmenter.evaluation.protocol import Protocol
from segmenter.runs.records import CALIBRATION, load_calibration, load_progress, validation_images
from segmenter.runs.report.run_record import read_story
from segmenter.runs.report.sections import report_sections
from segmenter.runs.run import load_run
from segmenter.training.calibrating import calibrate
from segmenter.training.prepare import check_run_directory
from tests.helpers.file_server import FileServer
from tests.helpers.made_training import made, records, train
from tests.helpers.refusals import refused
from tests.helpers.trained_run import run_with_weights

pytestmark = pytest.mark.usefixtures("tensorflow")


def trained(folder: Path, dtype: str, bands: int) -> tuple[Path, Path]:
    """A recipe and the run it gave on two devices, each of which gets every class in every step.

    It began with random weights of another run, of three bands of uint8. Beside it `answer.json` and
    `words.txt`, what train.py gave and said.
    """
    recipe, run = made(folder / "data", dtype, bands, scenes=7), folder / "run"
    text = yaml.safe_load(recipe.read_text())
    text["dataset"]["split"]["validation"] = ["s4", "s5", "s6"]
    text["sampling"] = {"per_replica": "guarantee", "max_repeats_per_tile": 20}
    text["training"] |= {"checkpoint_every": 3, "keep_checkpoints": 9, "ema": 0.5}
    recipe.write_text(yaml.safe_dump(text))
    source = run_with_weights(folder / "source", load_recipe(recipe), ("left", "right", "scarce"))
    asked = ("--logical-devices", "2", "--json", "--profile", "--init-from", str(source))
    done = train(recipe, "--run", str(run), *asked)
    (folder / "answer.json").write_text(done.stdout)
    (folder / "words.txt").write_text(done.stderr)
    return recipe, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return trained(tmp_path_factory.mktemp("train"), "uint16", 5)


def test_a_run_directory_is_whole_and_learned(finished: tuple[Path, Path]) -> None:
    recipe, run = finished
    assert validation_images(run) == [recipe.parent / "images" / f"s{i}.tif" for i in (4, 5, 6)]
    names = {p.name for p in run.iterdir()}
    assert {
        "recipe.yaml", "run.json", "best.npz", "log.jsonl", "scores.json", "confusion.png",
        "last_scores.json", "last_confusion.png", "learning_curves.png", "tensorboard", "checkpoints",
        "origin.json", "progress.json",
        "windows.json", "report.html",
    } <= names  # fmt: skip
    losses = [line["loss"] for line in records(run) if "loss" in line]
    assert losses[-1] < losses[0]
    assert json.loads((run / "scores.json").read_text())["protocol"]["split"] == "validation"
    progress, validated = load_progress(run), [line for line in records(run) if "miou" in line]
    assert progress is not None
    assert [(each.step, each.miou) for each in progress.maps] == [
        (line["step"], pytest.approx(line["miou"], abs=1e-6)) for line in validated
    ]
    assert len(validated) > 1
    assert "One window while it trained" in (run / "report.html").read_text()


def test_the_log_and_the_diagnosis_have_what_each_class_had(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    recipe, run = finished
    assert "each of 2 devices gets every class" in (run.parent / "words.txt").read_text()
    lines = [line for line in records(run) if "held_steps" in line]
    steps = sum(line["steps"] for line in lines)
    assert steps == lines[-1]["step"]
    assert np.sum([line["held_steps"] for line in lines], axis=0).tolist() == [steps] * 3
    assert {tuple(line["promised"]) for line in lines} == {(0, 1, 2)}
    assert (np.sum([line["held_tiles"] for line in lines], axis=0) >= steps).all()
    assert sum(line["tiles_drawn"] for line in lines) == 8 * steps
    assert {line["classes_per_replica"] for line in lines} == {3.0}
    assert sum(line["short_steps"] for line in lines) == 0
    to = tmp_path / "coverage.json"
    assert main(["coverage", str(recipe), "--run", str(run), "--json", str(to)]) == 0
    ran = json.loads(to.read_text())["run"]
    assert ran["held_share"] == [1.0, 1.0, 1.0]
    assert (ran["short_steps"], ran["promised"], ran["steps"]) == (0, [0, 1, 2], steps)


def check_other_imagery(run: Path, dtype: str, bands: int) -> None:
    output = (run.parent / "words.txt").read_text()
    kept = sorted((run / "checkpoints").iterdir())  # 8 steps an epoch, in calls of 4
    assert [int(path.stem.removeprefix("step-")) for path in kept] == [4, 8, 12, 16, 20, 24]
    assert output.count(" images/s") == 3
    assert "\nlast: epoch 3, step 24, mIoU " in output
    assert output.count("\nbest: epoch ") == 1
    assert "profile of 8 steps" in output  # from the third call to the epoch's end
    assert list((run / "tensorboard").rglob("*.xplane.pb"))
    assert "kept: bottleneck, decoder stage 1, head; kept in part: encoder stage 1\n" in output
    data = json.loads((run / "run.json").read_text())
    assert (data["dtype"], data["band_count"]) == (dtype, bands)
    assert json.loads((run / "scores.json").read_text())["miou"] > 0.5


def test_other_imagery_trains_and_fine_tunes_as_8_bit_does(finished: tuple[Path, Path]) -> None:
    check_other_imagery(finished[1], "uint16", 5)


@pytest.mark.slow
def test_imagery_of_floats_trains_and_fine_tunes_as_8_bit_does(tmp_path: Path) -> None:
    check_other_imagery(trained(tmp_path, "float32", 2)[1], "float32", 2)


def test_json_is_all_that_stdout_gets(finished: tuple[Path, Path]) -> None:
    run = finished[1]
    answer = json.loads((run.parent / "answer.json").read_text())
    steps = records(run)[-1]["step"]
    reached = {"run": str(run), "ended": "finished", "resumed": False, "epochs": 3, "steps": steps}
    assert reached.items() <= answer.items()
    scores = json.loads((run / "scores.json").read_text())
    assert (answer["best_epoch"], answer["best_step"]) == (scores["epoch"], scores["step"])
    assert answer["scores"]["miou"] == scores["miou"]
    assert answer["seconds"] > 0
    assert f"done: {run} holds the run" in (run.parent / "words.txt").read_text()


Refusal = Callable[..., str]


@pytest.fixture
def refusal(
    tensorflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refusal:
    """`refusal(recipe, "--option")`: the one error of train.py, in this process."""

    def call(recipe: Path, *arguments: str) -> str:
        monkeypatch.setattr(
            sys, "argv", ["train.py", str(recipe), "--run", str(tmp_path / "run"), *arguments]
        )
        assert run_script(train_script.main) == 2
        (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return error

    return call


def test_a_users_mistake_is_one_clear_line(
    finished: tuple[Path, Path], tmp_path: Path, refusal: Refusal
) -> None:
    """Before the data are read, and with the devices known; others in the tests of what refuses them."""
    run = tmp_path / "run"
    done = train(finished[0], "--run", str(run), "--set", "tiles.sise=1", check=False)
    assert (done.returncode, done.stderr.count("error: "), "Traceback" in done.stderr) == (2, 1, False)
    assert "tiles.sise: unknown key" in done.stderr
    batch = ("--set", "training.global_batch=7", "--logical-devices", "4")
    assert "multiple of 4" in refusal(finished[0], *batch)
    assert not run.exists()


def test_a_run_is_not_written_over(finished: tuple[Path, Path]) -> None:
    recipe, run = finished
    with refused(CheckpointError, where="run", fault="run already"):
        check_run_directory(run, load_recipe(recipe), resume=False)


@pytest.mark.parametrize("which", ["images", "labels"])
@pytest.mark.parametrize("scene", ["s0", "s4"])  # that trains, that validates
def test_a_damaged_file_is_named_before_or_while_training(
    tmp_path: Path, which: str, scene: str, refusal: Refusal
) -> None:
    """An image that validates while the next epoch's batches are made."""
    recipe = made(tmp_path / "data")
    file = tmp_path / "data" / which / f"{scene}.tif"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    simple = ("distribution.strategy=one_device", "model.dropout=0", "model.width=1", "loss.dice=0")
    assert f"{which}/{scene}.tif" in refusal(recipe, *(f"--set={setting}" for setting in simple))


@pytest.mark.slow
def test_print_config_shows_what_load_reads(finished: tuple[Path, Path], tmp_path: Path) -> None:
    shown = train(finished[0], "--print-config", "--set", "training.global_batch=16").stdout
    assert "global_batch: 16  # tiles: number of tiles in one optimiser step" in shown
    copy = tmp_path / "copy.yaml"
    copy.write_text(shown)
    assert train(copy, "--print-config").stdout == shown


def maps(run: Path, output: Path, *options: str) -> dict[str, Path]:
    """Class map and confidence of a validation scene; with their scores."""
    data = run.parent / "data"
    arguments = [str(data / "images" / "s4.tif"), "--labels", str(data / "labels" / "{stem}.tif")]
    call = [str(run), *arguments, "--output", str(output), "--confidence", *options]
    assert run_script(lambda: predict.main(call)) == 0
    assert json.loads((output / "scores.json").read_text())["miou"] > 0.5
    return {path.name: path for path in output.glob("*.tif")}


def test_a_training_leaves_a_calibration_of_its_best_model(finished: tuple[Path, Path]) -> None:
    run = finished[1]
    found, scores = load_calibration(run), json.loads((run / "scores.json").read_text())
    assert (found.scenes, found.pixels, found.step) == (3, 3 * 97 * 83, scores["step"])
    assert found.before.miou == pytest.approx(scores["miou"])
    assert found.fitted.after.ece < found.before.ece
    assert load_run(run).calibration() == found.fitted.calibration
    assert found.weights == load_run(run).fingerprint()
    assert sorted(scene.name for scene in found.fitted_on) == ["s4", "s5", "s6"]
    assert "calibration" in [section.name for section in report_sections(read_story(run))]
    assert 'id="reliability"' in (run / "report.html").read_text()


@pytest.mark.slow
def test_maps_are_calibrated_unless_asked_otherwise(finished: tuple[Path, Path], tmp_path: Path) -> None:
    run, bare = finished[1], tmp_path / "bare" / "run"
    shutil.copytree(run, bare)
    (bare / CALIBRATION).unlink()
    (bare.parent / "data").symlink_to(run.parent / "data")
    before = maps(bare, tmp_path / "before")
    off = maps(run, tmp_path / "off", "--no-calibration")
    on = maps(run, tmp_path / "on")
    plain, fitted = (
        Protocol.from_dict(json.loads((tmp_path / name / "scores.json").read_text())["protocol"])
        for name in ("off", "on")
    )
    assert (plain.calibration, plain.fitted_on) == ("none", "")
    assert (fitted.calibration.split()[0], fitted.fitted_on) == ("temperature", "these scenes")
    assert plain.differences(fitted)
    assert len(before) == 2
    for name, path in before.items():
        assert filecmp.cmp(path, off[name], shallow=False)
        with rasterio.open(path) as first, rasterio.open(on[name]) as second:
            assert "CALIBRATION" not in first.tags()
            assert second.tags()["CALIBRATION"].startswith("temperature ")
            if ".confidence." in name:
                assert first.descriptions == ("largest probability",)
                assert "calibrated" in second.descriptions[0]
                assert (first.read() != second.read()).any()
            elif not load_calibration(run).fitted.calibration.shifts:  # type: ignore[union-attr]
                np.testing.assert_array_equal(first.read(), second.read())


@pytest.mark.slow
def test_the_command_makes_the_same_calibration_anew(
    finished: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    run = shutil.copytree(finished[1], tmp_path / "run")
    whole = json.loads((run / CALIBRATION).read_text())
    (run / CALIBRATION).write_bytes((run / CALIBRATION).read_bytes()[:-9])
    image = str(finished[0].parent / "images" / "s0.tif")
    assert run_script(lambda: predict.main([str(run), image, "--output", str(tmp_path / "maps")])) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), str(run / CALIBRATION) in error) == (1, True)
    moved = tmp_path / "moved"
    assert run_script(lambda: main(["calibrate", str(run), "--root", str(moved)])) == 2
    shutil.copytree(finished[0].parent, moved)
    assert main(["calibrate", str(run), "--root", str(moved)]) == 0
    again = json.loads((run / CALIBRATION).read_text())
    assert again["temperature"] == pytest.approx(whole["temperature"], rel=1e-3)
    np.testing.assert_allclose(again["bias"], whole["bias"], atol=1e-3)


@pytest.mark.slow
def test_of_a_single_scene_one_half_measures_what_the_other_fits(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A calibration that does not pay replaces none: an older one goes."""
    run = load_run(finished[1])
    dataset = load_dataset(run.recipe)
    copied = replace(run, path=shutil.copytree(run.path, tmp_path / "run"))
    one = replace(dataset, scenes=tuple(s for s in dataset.scenes if s.name not in ("s5", "s6")))
    fitted = calibrate(copied, one, np.zeros(len(run.classes)))
    found = load_calibration(copied.path)
    assert (found.scenes, found.pixels) == (1, 97 * 83)
    assert fitted.after.ece < fitted.before.ece
    monkeypatch.setattr(Fitted, "pays", False)
    assert calibrate(copied, one, np.zeros(len(run.classes))) == fitted
    assert load_calibration(copied.path) is None


@pytest.mark.slow
def test_a_training_over_urls_gives_the_bits_of_a_local_one(server: FileServer, tmp_path: Path) -> None:
    """Also by worker processes, where a tenth of the answers are cut off; the run holds no signature."""
    recipe = made(server.folder / "data")
    files = [p.relative_to(server.folder / "data").as_posix() for p in (server.folder / "data").rglob("*.*")]
    (tmp_path / "files.txt").write_text("\n".join(name for name in files if ".tile-index" not in name))
    train(recipe, "--run", str(tmp_path / "local"))
    server.fault = lambda number, path: "cut" if number % 10 == 7 else None
    remote = (
        *("--set", f"dataset.root={server.url('data?signature=n0t-t0-be-seen')}"),
        *("--set", f"dataset.files={tmp_path / 'files.txt'}"),
        *("--set", f"dataset.cache={tmp_path / 'cache'}"),
        *("--set", "training.input_workers=2"),
    )
    said = train(recipe, "--run", str(tmp_path / "remote"), *remote).stdout
    assert len(server.asked) > 10
    with np.load(tmp_path / "local/best.npz") as local, np.load(tmp_path / "remote/best.npz") as other:
        weights = [name for name in local.files if local[name].dtype.kind == "f"]
        assert weights
        for name in weights:
            np.testing.assert_array_equal(local[name], other[name], err_msg=name)
    texts = [path.read_bytes() for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    assert not any(b"n0t-t0-be-seen" in text for text in [*texts, said.encode()])
