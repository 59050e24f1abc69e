"""Calibration of trainings as users run them: written at the end, used by maps, made anew when outdated."""

from __future__ import annotations

import filecmp
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml

import predict
from datasets import load_dataset
from datasets.commands import main
from segmenter.base.errors import run_script
from segmenter.runs.records import CALIBRATION, load_calibration
from segmenter.runs.report.run_record import read_story
from segmenter.runs.report.sections import report_sections
from segmenter.runs.run import load_run
from segmenter.training.calibrating import calibrate
from tests.helpers.made_training import made, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a training with three validation scenes."""
    folder = tmp_path_factory.mktemp("calibrated")
    recipe = made(folder / "data", scenes=6)
    data = yaml.safe_load(recipe.read_text())
    data["dataset"]["split"]["validation"] = ["s3", "s4", "s5"]
    recipe.write_text(yaml.safe_dump(data))
    train(recipe, "--run", str(folder / "run"))
    return folder / "run"


def maps(run: Path, output: Path, *options: str) -> dict[str, Path]:
    images = run.parent / "data" / "images"
    assert run_script(lambda: predict.main([str(run), str(images), "--output", str(output), *options])) == 0
    return {path.name: path for path in output.glob("*.tif")}


def test_a_training_leaves_a_calibration_of_its_best_model(trained: Path) -> None:
    found = load_calibration(trained)
    assert found is not None
    assert found.scenes == 3
    assert found.pixels == 3 * 97 * 83
    assert found.step == json.loads((trained / "scores.json").read_text())["step"]
    assert found.before.miou == pytest.approx(json.loads((trained / "scores.json").read_text())["miou"])
    assert found.fitted.after.ece < found.before.ece
    assert load_run(trained).calibration() == found.fitted.calibration
    titles = [section.name for section in report_sections(read_story(trained))]
    assert "calibration" in titles
    assert 'id="reliability"' in (trained / "report.html").read_text()


def test_maps_are_calibrated_unless_asked_otherwise(tensorflow: Any, trained: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare" / "run"
    shutil.copytree(trained, bare)
    (bare / CALIBRATION).unlink()
    (bare.parent / "data").symlink_to(trained.parent / "data")
    before = maps(bare, tmp_path / "before", "--confidence")
    off = maps(trained, tmp_path / "off", "--confidence", "--no-calibration")
    on = maps(trained, tmp_path / "on", "--confidence")
    assert len(before) == 12
    for name, path in before.items():
        assert filecmp.cmp(path, off[name], shallow=False)
        with rasterio.open(path) as first, rasterio.open(on[name]) as second:
            assert "CALIBRATION" not in first.tags()
            assert second.tags()["CALIBRATION"].startswith("temperature ")
            if ".confidence." in name:
                assert first.descriptions == ("largest probability",)
                assert "calibrated" in second.descriptions[0]
                assert (first.read() != second.read()).any()
            elif not load_calibration(trained).fitted.calibration.shifts:  # type: ignore[union-attr]
                np.testing.assert_array_equal(first.read(), second.read())


def test_the_command_makes_the_same_calibration_anew(
    tensorflow: Any, trained: Path, tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    whole = json.loads((run / CALIBRATION).read_text())
    (run / CALIBRATION).write_bytes((run / CALIBRATION).read_bytes()[:-9])
    images = str(trained.parent / "data" / "images" / "s0.tif")
    assert run_script(lambda: predict.main([str(run), images, "--output", str(tmp_path / "maps")])) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), str(run / CALIBRATION) in error) == (1, True)
    assert main(["calibrate", str(run)]) == 0
    again = json.loads((run / CALIBRATION).read_text())
    assert again["temperature"] == pytest.approx(whole["temperature"], rel=1e-3)
    np.testing.assert_allclose(again["bias"], whole["bias"], atol=1e-3)


def test_of_a_single_scene_one_half_measures_what_the_other_fits(
    tensorflow: Any, trained: Path, tmp_path: Path
) -> None:
    run = load_run(trained)
    dataset = load_dataset(run.recipe)
    shutil.copytree(trained, tmp_path / "run")
    one = replace(dataset, scenes=tuple(s for s in dataset.scenes if s.name not in ("s4", "s5")))
    copied = replace(run, path=tmp_path / "run")
    fitted = calibrate(copied, one, np.zeros(len(run.classes)))
    found = load_calibration(tmp_path / "run")
    assert found is not None
    assert (found.scenes, found.pixels) == (1, 97 * 83)
    assert fitted.after.ece < fitted.before.ece
