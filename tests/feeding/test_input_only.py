"""`train.py --input-only`: a screen, no run, and no option that would do nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import train
from segmenter.training import input_only
from tests.helpers.made_training import made


def test_it_says_what_the_input_feeds_and_writes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = made(tmp_path / "data")
    (tmp_path / "here" / "runs" / "made" / "checkpoints").mkdir(parents=True)
    (tmp_path / "here" / "runs" / "made" / "checkpoints" / "step-00000001.npz").touch()  # of another training
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(input_only, "_COST_SECONDS", 0.1)
    before = sorted((tmp_path / "here").rglob("*"))
    options = ("--input-only", "--steps", "3", "--need", "2", "--set", "training.input_workers=1")
    monkeypatch.setattr(sys, "argv", ["train.py", str(recipe), *options])
    assert train.main() == 0
    said = capsys.readouterr().out
    assert "input: 1 worker process on " in said
    assert "input of made: 7 steps an epoch of 8 tiles of 32 × 32 × 3 uint8" in said
    assert "tiles/s by 1 worker process on " in said
    assert "(3 steps)\nneeded: 2 tiles/s a card; this feeds " in said
    assert sorted((tmp_path / "here").rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--input-only", "--resume"), "--resume: --input-only trains nothing: leave it out"),
        (("--input-only", "--run", "x"), "--run: --input-only trains nothing: leave it out"),
        (("--steps", "3"), "--steps: --input-only is needed with it"),
        (("--need", "3"), "--need: --input-only is needed with it"),
        (("--input-only", "--need", "0"), "argument --need: invalid float above 0 value: '0'"),
        (("--input-only", "--steps", "1.5"), "argument --steps: invalid int above 0 value: '1.5'"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options: tuple[str, ...],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "recipe.yaml", *options])
    with pytest.raises(SystemExit) as ended:
        train.parse_arguments()
    assert ended.value.code == 2
    assert f"error: {line}; --help shows" in capsys.readouterr().err
