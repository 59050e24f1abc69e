"""Law 3, resume: a run that is made longer is the one that was as long from its start, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.devices import strategy
from segmenter.runs.checkpoints import BEST, load_arrays, newest_checkpoint
from segmenter.runs.run import Extension, load_run, read_run_file
from segmenter.training.prepare import check_run_directory, prepare_tiles
from tests.helpers.made_training import made, records

SETTINGS = (
    *("training.schedule=constant", "training.warmup=1", "training.steps_per_call=2"),
    *("training.checkpoint_every=2", "model.width=2", "distribution.strategy=one_device"),
)
EVERYTHING = ("training.ema=0.9", "training.precision=mixed_float16")
PLAIN = ("dataset.split={test: [s4]}", "model.dropout=0", "loss.dice=0")
"""Without validations, whose figures take longer than these trainings."""


class Killed(BaseException):
    """As a kill: nothing that the training would still do is done."""


class Trainings:
    """train.py's calls for one recipe, but for the number of epochs."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        self._file, self._settings = made(folder), [*SETTINGS, *settings]
        recipe = self._recipe(1)
        self._dataset = load_dataset(recipe)
        self._tiles = prepare_tiles(recipe, self._dataset)
        self._devices = strategy.make_devices(recipe.distribution, None)

    def _recipe(self, epochs: int) -> Recipe:
        return load_recipe(self._file, [*self._settings, f"training.epochs={epochs}"])

    def train(self, path: Path, epochs: int, *, resume: bool = False) -> int:
        from segmenter.training.start import start_training

        recipe = self._recipe(epochs)
        checkpoint = check_run_directory(path, recipe, resume=resume)
        parts = (recipe, self._dataset, self._tiles, self._devices, path)
        return start_training(*parts, checkpoint=checkpoint).exit_code


@pytest.mark.parametrize(
    ("settings", "killed"),
    [
        pytest.param(PLAIN, False, id="at once"),
        pytest.param(EVERYTHING, True, id="killed meanwhile", marks=pytest.mark.slow),
    ],
)
def test_made_longer_it_is_the_run_that_was_as_long_from_its_start(
    tensorflow: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: Sequence[str],
    killed: bool,
) -> None:
    """Two epochs and then two more, of which the first is killed in its middle; against four."""
    train = Trainings(tmp_path / "data", settings).train
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    assert train(whole, 4) == 0
    assert train(longer, 2) == 0
    done = _done(longer)
    if killed:
        best = (longer / BEST).read_bytes()
        with monkeypatch.context() as patch:
            _kill_after(patch, done + 3)
            with pytest.raises(Killed):
                train(longer, 4, resume=True)
        assert done < _done(longer) < 2 * done
        assert (longer / BEST).read_bytes() == best  # until a validation is better
    assert train(longer, 4, resume=True) == 0
    assert capsys.readouterr().out.count(f"training.epochs: 2 → 4, from step {done} on\n") == 1

    expected, got = _arrays(whole), _arrays(longer)
    assert any(name.startswith("ema/") for name in expected) == killed
    assert expected.keys() == got.keys()
    different = {name for name in expected if not np.array_equal(expected[name], got[name])}
    assert different == {"run.json"}  # which says how it came about
    assert load_run(longer).extensions == (Extension(done, 2, 4),)
    assert read_run_file(got["run.json"].tobytes(), "the copy").extensions[0].epochs == 4
    assert load_run(longer).recipe == load_run(whole).recipe
    validations = [[r for r in records(run) if "miou" in r] for run in (longer, whole)]
    assert validations[0] == validations[1]
    assert len(validations[1]) == 4 * killed


def _kill_after(patch: pytest.MonkeyPatch, step: int) -> None:
    from segmenter.training.trainer import Trainer

    real = Trainer.save

    def save_and_die(self: Any) -> Any:
        written = real(self)
        if self.position.done > step:
            raise Killed
        return written

    patch.setattr(Trainer, "save", save_and_die)


def _arrays(run: Path) -> dict[str, Any]:
    newest = newest_checkpoint(run)
    return dict(load_arrays(newest))


def _done(run: Path) -> int:
    return int(_arrays(run)["position"][0])
