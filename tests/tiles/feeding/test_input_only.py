"""The tool for the input alone: a screen, no run."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.commands import input as input_tool
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
    options = ("--steps", "3", "--need", "2", "--set", "training.input_workers=1")
    assert input_tool.main([str(recipe), *options]) == 0
    said = capsys.readouterr().out
    assert "input: 1 worker process on " in said
    assert "input of made: 7 steps an epoch of 8 tiles of 32 × 32 × 3 uint8" in said
    assert "tiles/s by 1 worker process on " in said
    assert "(3 steps)\nneeded: 2 tiles/s a card; this feeds " in said
    assert sorted((tmp_path / "here").rglob("*")) == before


def test_a_number_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        input_tool.main(["recipe.yaml", "--steps", "1.5"])
    assert ended.value.code == 2
    assert "argument --steps: invalid int above 0" in capsys.readouterr().err
