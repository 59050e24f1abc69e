"""Trainings of all folds, `segmenter train RECIPE --folds`: by one that notes what is asked, and stops."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio

from datasets import load_dataset
from datasets.commands.folds import train_folds
from datasets.commands.train_options import TrainOptions
from datasets.commands.train_stages import TrainRequest
from segmenter.base.errors import ConfigError
from segmenter.runs import checkpoints
from tests.helpers.made_training import made
from tests.helpers.refusals import refused


class Noted(list[TrainRequest]):
    def __call__(self, request: TrainRequest) -> Any:
        self.append(request)
        return SimpleNamespace(exit_code=143)


def folds(given: TrainOptions, asked: Noted) -> None:
    train_folds(given, given.read(), asked, alone=True)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("folds"), scenes=6)


def test_no_fold_trains_if_another_cannot(tmp_path: Path) -> None:
    """The last one validates on scenes without the class that chooses the best model."""
    recipe, asked = made(tmp_path / "data", scenes=6), Noted()
    given = TrainOptions(recipe=recipe, folds=3, run=tmp_path / "run", set=("training.best_by=iou:scarce",))
    for scene in load_dataset(given.read("dataset.split.fold=3")).of("validation"):
        assert scene.label is not None
        with rasterio.open(scene.label, "r+") as file:
            file.write(np.minimum(file.read(), 1))
    with refused(ConfigError, where="fold 3: training.best_by", got="scarce"):
        folds(given, asked)
    assert asked == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("begun", [(), (1,)])
def test_a_fold_starts_from_another_run_or_goes_on_from_its_own(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: tuple[int, ...]
) -> None:
    monkeypatch.setattr(checkpoints, "has_checkpoint", lambda path: path.name in {f"fold_{n}" for n in begun})
    asked, source = Noted(), tmp_path / "source"
    folds(TrainOptions(recipe=recipe, folds=2, run=tmp_path, init_from=source, init_from_partial=True), asked)
    (given,) = [request.options for request in asked]
    assert (given.resume, given.init_from, given.init_from_partial) == (
        (True, None, False) if begun else (False, source, True)
    )
