"""Law 3, resume, of trainings with a frozen encoder and an early end: the same bits from either phase on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from datasets import load_dataset
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.devices import strategy
from segmenter.evaluation.scores import ConfusionMatrix
from segmenter.grid.scenes import Dataset
from segmenter.runs.checkpoints import META, checkpoints, load_arrays, newest_checkpoint
from segmenter.training.prepare import Tiles, check_run_directory, prepare_tiles
from tests.helpers.made_training import made

WRONG = {1: 50, 2: 20, 3: 40, 4: 30, 5: 0}
"""After each epoch, so many of 100 pixels of a class are wrong: two without a gain end it at 4."""
SETTINGS = (
    *("training.epochs=6", "training.freeze_encoder=2", "training.rates.encoder=0.5"),
    *("training.stop_after=2", "training.best_by=iou:scarce", "training.ema=0.9"),
    *("training.keep_checkpoints=50", "training.checkpoint_every=1", "training.steps_per_call=2"),
    *("model.width=2", "model.dropout=0", "augmentation.scale=0", "augmentation.rotation=0"),
)


class Prepared(NamedTuple):
    """Arguments of a training of the made scenes."""

    recipe: Recipe
    dataset: Dataset
    tiles: Tiles
    devices: strategy.Devices


@pytest.fixture(scope="module")
def prepared(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    recipe = load_recipe(made(tmp_path_factory.mktemp("phases") / "data"), SETTINGS)
    dataset = load_dataset(recipe)
    devices = strategy.make_devices(recipe.distribution, None)
    return Prepared(recipe, dataset, prepare_tiles(recipe, dataset), devices)


@pytest.fixture(scope="module", autouse=True)
def made_validations(tensorflow: ModuleType) -> Iterator[None]:
    """Validations whose scores are those of `WRONG`."""
    from segmenter.training import trainer

    after = {"epoch": 0}
    real = trainer.Trainer._validate

    def noted(self: Any, *parts: Any) -> None:
        after["epoch"] = self.position.epoch
        real(self, *parts)

    def validate(run: Any, *_: Any, **__: Any) -> ConfusionMatrix:
        confusion = ConfusionMatrix(run.classes)
        truth = np.repeat(np.arange(3, dtype=np.uint8), 100)
        found = truth.copy()
        found[200 : 200 + WRONG[after["epoch"]]] = 0
        confusion.add(truth, found)
        return confusion

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "_validate", noted)
        patch.setattr(trainer, "validate", validate)
        yield


def train(prepared: Prepared, path: Path, step: int | None = None) -> int:
    """As train.py does, from the start or from the checkpoint of a step."""
    from segmenter.training.start import start_training

    recipe, dataset, tiles, devices = prepared
    checkpoint = check_run_directory(path, recipe, resume=step is not None, resume_from=step)
    return start_training(recipe, dataset, tiles, devices, path, checkpoint=checkpoint).exit_code


@pytest.fixture(scope="module")
def straight(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing stopped."""
    path = tmp_path_factory.mktemp("straight") / "run"
    assert train(prepared, path) == 0
    return path


def last_arrays(run: Path) -> dict[str, Any]:
    newest = newest_checkpoint(run)
    assert newest is not None
    return {name: array for name, array in load_arrays(newest).items() if name != META}


def test_it_ends_early_and_says_so_again_when_it_is_resumed(
    prepared: Prepared, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(straight, tmp_path / "run")
    before = last_arrays(run)
    assert before["position"].tolist()[1:3] == [4, 0]
    newest = max(checkpoints(run))
    assert train(prepared, run, newest) == 0
    assert (
        "finished early, after epoch 4 of 6: 2 validations in a row without a gain in IoU of scarce "
        "(training.stop_after: 2); to go on, --resume with a larger one" in capsys.readouterr().out
    )
    assert "Ended early, after 4 of 6 epochs." in (run / "report.html").read_text(encoding="utf-8")
    after = last_arrays(run)
    assert max(checkpoints(run)) == newest
    assert {name for name in before if not np.array_equal(before[name], after[name])} == set()


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(0.5, id="frozen"),
        pytest.param(2, id="at the border", marks=pytest.mark.slow),
        pytest.param(2.5, id="thawed", marks=pytest.mark.slow),
    ],
)
def test_from_either_phase_the_rest_is_the_same_to_the_bit(
    prepared: Prepared, straight: Path, tmp_path: Path, share: float
) -> None:
    """The record of the best is not set aside with a later best, and so the early end comes as without."""
    run = shutil.copytree(straight, tmp_path / "run")
    steps = max(checkpoints(run)) // 4
    step = min(checkpoints(run), key=lambda number: abs(number - share * steps))
    assert train(prepared, run, step) == 0
    one, other = last_arrays(straight), last_arrays(run)
    assert one.keys() == other.keys()
    assert {name for name in one if not np.array_equal(one[name], other[name])} == set()
    first = load_arrays(checkpoints(straight)[step])
    changed = {n for n in one if n.startswith("model/down") and not np.array_equal(one[n], first[n])}
    assert changed == {n for n in one if n.startswith("model/down")}
