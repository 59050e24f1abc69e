"""`python -m datasets coverage`: facts on stdout and in files, mistakes in one line, and no TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from datasets.__main__ import main
from datasets.synthetic.make import make_naic2020
from segmenter.runs.log import log_line

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe beside 41 made scenes, the validation ones among them; global batch 6."""
    folder = tmp_path_factory.mktemp("naic")
    make_naic2020(folder / "data", scenes=41, seed=3, size=64)
    data = {
        "name": "made",
        "dataset": {"kind": "naic2020", "root": str(folder / "data")},
        "tiles": {"size": 32},
        "model": {"depth": 2},
        "training": {"global_batch": 6},
    }
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def coverage(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user has it."""
    command = [sys.executable, "-m", "datasets", "coverage", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_facts_come_as_text_json_and_report(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    facts, page = tmp_path / "out.json", tmp_path / "out.html"
    done = coverage(config, "--json", facts, "--report", page)
    assert done.returncode == 0, done.stderr
    found = json.loads(facts.read_text())
    assert [p["batch"] for p in found["plans"]] == [6, 16, 32, 64, 128]
    assert [p["batch"] for p in found["forecast"]["batches"]] == [6, 16, 32, 64, 128]
    assert found["tiles"] == 4 * found["scenes"] > 100
    assert "an epoch of the plan" in done.stdout
    assert f"what limits: {found['limit']['why'][:20]}" in done.stdout
    assert done.stdout.count("written: ") == 2
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert all(c["name"] in text for c in found["classes"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json"]


def test_batches_and_split_are_as_asked_for(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "out.json"
    call = ["coverage", str(config), "--batch", "40, 8,8", "--split", "validation", "--json", str(facts)]
    assert main([*call, "--set", "dataset.validation_share=0.4"]) == 0
    found = json.loads(facts.read_text())
    assert [p["batch"] for p in found["plans"]] == [8, 40]
    assert found["split"] == "validation"
    assert ", validation: " in capsys.readouterr().out


def test_a_run_stands_beside_the_plan(config: Path, tmp_path: Path) -> None:
    line = {"step": 4, "epoch": 0, "steps": 4, "held_steps": [4] * 7 + [3], "short_steps": 1}
    line |= {"promised": [*range(8)], "best_effort": [], "tiles_drawn": 24}
    (tmp_path / "log.jsonl").write_text(log_line(line))
    done = coverage(config, "--batch", "8", "--run", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 steps, 1 short of a promised class" in " ".join(done.stdout.split())
    assert "75.00%" in done.stdout


def test_no_tensorflow_is_imported(config: Path) -> None:
    code = (
        "import sys\nfrom datasets.__main__ import main\n"
        "assert main(['coverage', sys.argv[1], '--batch', '8']) == 0\n"
        "print('loaded:', sorted({'tensorflow', 'keras', 'matplotlib', 'plotly'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--batch", "16,x"],
            "--batch: expected whole numbers of tiles in 1 … 65536, as in 16,32,64, got '16,x'",
        ),
        (["--batch", "0,16"], "got '0,16'"),
        (["--batch", ""], "--batch: expected whole numbers"),
        (["--json", "{tmp}/none/out.json"], "there is no folder"),
        (["--report", "{tmp}"], "expected the name of a file to write, it is a folder"),
        (["--run", "{tmp}"], "log.jsonl: expected the log of a run"),
        (["--split", "test"], "expected scenes of the split test, there are none"),
        (["--set", "sampling.min_pixels=0"], "sampling.min_pixels"),
        (["--set", "dataset.root={tmp}/none"], "none"),
    ],
)
def test_a_users_mistake_is_one_clear_line(
    config: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = coverage(config, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused_before_the_work(config: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    tmp_path.chmod(0o500)
    done = coverage(config, "--json", tmp_path / "out.json")
    assert done.returncode == 2
    assert "cannot write to the folder" in done.stderr
    assert done.stdout == ""


def test_a_log_of_other_classes_is_refused(config: Path, tmp_path: Path) -> None:
    line = {"step": 4, "epoch": 0, "steps": 4, "held_steps": np.ones(3, int).tolist()}
    (tmp_path / "log.jsonl").write_text(log_line(line))
    done = coverage(config, "--run", tmp_path)
    assert done.returncode == 2
    assert "expected steps of the recipe's 8 classes, got 3 at step 4" in done.stderr


def test_the_short_form_is_part_of_the_whole(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", str(config), "--batch", "6,16"]) == 0
    short = capsys.readouterr().out.strip().split("\n\n")
    assert main(["coverage", str(config), "--batch", "6,16", "--all"]) == 0
    whole = capsys.readouterr().out.strip().split("\n\n")
    assert short[0] == whole[0]
    assert short[1:3] == [
        part for part in whole if part.startswith(("a random batch", "an epoch of the plan"))
    ]
    limit, hint = short[3].rsplit("\n", 1)
    assert (whole[-1].startswith(limit), hint.startswith("--all shows")) == (True, True)
    assert len(short) + 1 < len(whole)
