"""Folds of one recipe: trained one after the other, resumable, one table, and one ensemble."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from segmenter.base.errors import SegmenterError
from segmenter.mapping.request.map_request import MapRequest
from segmenter.runs.score_files import fold_path, fold_table, folds_in
from tests.helpers.made_training import ROOT, made, records, train

FOLDS = ("--folds", "2")


def test_folds_are_found_in_order_and_a_run_is_none(tmp_path: Path) -> None:
    for fold in (1, 2, 10):
        fold_path(tmp_path, fold).mkdir()
        (fold_path(tmp_path, fold) / "run.json").write_text("{}")
    (tmp_path / "other").mkdir()
    assert [path.name for path in folds_in(tmp_path)] == ["fold_1", "fold_2", "fold_10"]
    request = MapRequest(run=tmp_path, inputs=(str(tmp_path),), output=tmp_path / "maps")
    assert request.runs == tuple(folds_in(tmp_path))
    with pytest.raises(SegmenterError, match=r"fold_1"):
        fold_table(folds_in(tmp_path))
    (tmp_path / "run.json").write_text("{}")
    assert folds_in(tmp_path) == []


def test_without_folds_in_the_recipe_there_is_nothing_to_train(tmp_path: Path) -> None:
    done = train(made(tmp_path / "data"), "--folds", "--run", str(tmp_path / "run"), check=False)
    assert done.returncode == 2
    assert "dataset.split.folds" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_folds_train_resume_and_predict_together(tmp_path: Path) -> None:
    recipe, run = made(tmp_path / "data"), tmp_path / "run"
    first = train(recipe, *FOLDS, "--run", str(run), "--set", "training.epochs=1")
    runs = folds_in(run)
    assert [path.name for path in runs] == ["fold_1", "fold_2"]
    table = fold_table(runs)
    assert table in first.stdout
    before = [records(path) for path in runs]
    again = train(recipe, *FOLDS, "--run", str(run), "--set", "training.epochs=1", "--json")
    assert table in again.stderr
    assert [each["run"] for each in json.loads(again.stdout)["folds"]] == list(map(str, runs))
    assert [[r for r in records(path) if "loss" in r] for path in runs] == [
        [r for r in each if "loss" in r] for each in before
    ], "what is finished is not trained again"
    maps = tmp_path / "maps"
    images = str(tmp_path / "data" / "images")
    command = [sys.executable, "predict.py", str(run), images, "--output", str(maps)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(maps.glob("*.tif"))) == 5
    command = [sys.executable, "predict.py", str(run), "--split", "validation", "--output", str(maps)]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "folds" in refused.stderr
