"""What training says and keeps of coverage: the log, the diagnosis after the run, the plan's identity."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml

from tests.helpers.made_training import ROOT, made, records, train

OFF = ("--set", "sampling.per_replica=off", "--set", "sampling.max_repeats_per_tile=4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A recipe, the run that it gave on two replicas, and what was printed."""
    folder = tmp_path_factory.mktemp("train")
    recipe = made(folder / "data")
    text = yaml.safe_load(recipe.read_text())
    text["sampling"] = {"per_replica": "guarantee", "max_repeats_per_tile": 20}
    text["training"]["epochs"] = 1
    recipe.write_text(yaml.safe_dump(text))
    output = train(recipe, "--run", str(folder / "run"), "--logical-devices", "2").stdout
    return recipe, folder / "run", output


def diagnosis(recipe: Path, run: Path, to: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "datasets", "coverage", str(recipe)]
    command += ["--run", str(run), "--json", str(to)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return json.loads(to.read_text())


def test_the_plan_is_told_before_the_first_step(finished: tuple[Path, Path, str]) -> None:
    output = finished[2]
    assert "held by 4 tiles" in output  # the scarce class: one tile of each training scene
    assert "coverage repeats (no plan has fewer than" in output
    assert "drawn again to keep a class in view" in output


def test_the_log_has_what_each_class_had(finished: tuple[Path, Path, str]) -> None:
    lines = [line for line in records(finished[1]) if "held_steps" in line]
    steps = sum(line["steps"] for line in lines)
    assert steps == lines[-1]["step"]
    assert np.sum([line["held_steps"] for line in lines], axis=0).tolist() == [steps] * 3
    assert {tuple(line["promised"]) for line in lines} == {(0, 1, 2)}
    assert (np.sum([line["held_tiles"] for line in lines], axis=0) >= steps).all()
    assert sum(line["tiles_drawn"] for line in lines) == 8 * steps
    assert {line["classes_per_replica"] for line in lines} == {3.0}
    assert sum(line["short_steps"] for line in lines) == 0


def test_the_diagnosis_after_a_run_is_what_the_steps_had(
    finished: tuple[Path, Path, str], tmp_path: Path
) -> None:
    recipe, run, _ = finished
    ran = diagnosis(recipe, run, tmp_path / "coverage.json")["run"]
    assert ran["held_share"] == [1.0, 1.0, 1.0]
    assert (ran["short_steps"], ran["promised"]) == (0, [0, 1, 2])
    assert ran["steps"] == records(run)[-1]["step"]


def test_a_resumption_on_other_tiles_is_refused(finished: tuple[Path, Path, str], tmp_path: Path) -> None:
    recipe, run, _ = finished
    copy = shutil.copytree(run, tmp_path / "run")
    label = recipe.parent / "labels" / "s0.tif"
    before = label.read_bytes()
    with rasterio.open(label, "r+") as file:
        pixels = file.read()
        pixels[:, 50:60, 20:30] = 2
        file.write(pixels)
    try:
        again = train(recipe, "--run", str(copy), "--resume", "--logical-devices", "2", check=False)
    finally:
        label.write_bytes(before)
    assert again.returncode == 2
    assert "s0 has changed" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_guarantee_for_each_replica_is_bound_to_their_number(finished: tuple[Path, Path, str]) -> None:
    recipe, run, output = finished
    assert "each of 2 devices gets every class" in output
    other = train(recipe, "--run", str(run), "--resume", "--logical-devices", "4", check=False)
    assert other.returncode == 2
    assert "2 devices" in other.stderr


def test_strict_coverage_refuses_to_start(finished: tuple[Path, Path, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    strict = ("--set", "sampling.coverage=strict", "--set", "training.global_batch=4")
    refused = train(finished[0], "--run", str(run), *OFF, *strict, check=False)
    assert refused.returncode == 2
    assert "4 tiles" in refused.stderr
    assert not run.exists()
