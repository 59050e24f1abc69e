"""Law 3, resume, of trainings with a frozen encoder and an early end, and of one that is made longer."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.evaluation.scores import ConfusionMatrix
from segmenter.runs.checkpoints import BEST, META, checkpoints, load_arrays, newest_checkpoint
from segmenter.runs.run import Extension, load_run, read_run_file
from segmenter.runs.score_files import BEST_FILES, LAST_FILES
from tests.helpers.made_training import made, records, train_here

WRONG = {1: (50, 0), 2: (20, 60), 3: (20, 40), 4: (30, 0), 5: (0, 0)}
"""After each epoch, so many of 100 pixels of the scarce and of another class are wrong.

By the scarce one's IoU the second is the best, and two without a gain end it at 4; by mIoU, 4 would be.
"""
SETTINGS = ("model.width=2", "training.steps_per_call=2", "distribution.strategy=one_device")
PHASES = (
    *("training.freeze_encoder=2", "training.rates.encoder=0.5", "training.stop_after=2"),
    *("training.best_by=iou:scarce", "training.ema=0.9", "training.keep_checkpoints=50"),
    *("training.checkpoint_every=1", "model.dropout=0", "augmentation.scale=0", "augmentation.rotation=0"),
)


class Trainings:
    """Trainings of one recipe, but for the number of epochs, in this process; each returns its exit code."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        self._file, self._settings = made(folder), [*SETTINGS, *settings]

    def __call__(self, run: Path, epochs: int = 6, *, resume: bool = False, step: int | None = None) -> int:
        settings = [*self._settings, f"training.epochs={epochs}"]
        return train_here(self._file, run, *settings, resume=resume, step=step)


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
        scarce, other = WRONG[after["epoch"]]
        found[200 : 200 + scarce], found[100 : 100 + other] = 0, 0
        confusion.add(truth, found)
        return confusion

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "_validate", noted)
        patch.setattr(trainer, "validate", validate)
        yield


def last_arrays(run: Path) -> dict[str, Any]:
    newest = newest_checkpoint(run)
    assert newest is not None
    return {name: array for name, array in load_arrays(newest).items() if name != META}


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if not np.array_equal(one[name], other[name])}


@pytest.fixture(scope="module")
def train(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("phases") / "data", PHASES)


@pytest.fixture(scope="module")
def straight(train: Trainings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing stopped."""
    path = tmp_path_factory.mktemp("straight") / "run"
    assert train(path) == 0
    return path


@pytest.mark.slow
def test_it_ends_early_and_says_so_again_when_it_is_resumed(
    train: Trainings, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(straight, tmp_path / "run")
    before, newest = last_arrays(run), max(checkpoints(run))
    assert before["position"].tolist()[1:3] == [4, 0]
    assert train(run, step=newest) == 0
    assert "finished early, after epoch 4 of 6: 2 validations" in capsys.readouterr().out
    assert "Ended early, after 4 of 6 epochs." in (run / "report.html").read_text(encoding="utf-8")
    assert max(checkpoints(run)) == newest
    assert differing(before, last_arrays(run)) == set()


@pytest.mark.slow
def test_score_files_are_of_the_best_by_the_named_score_and_of_the_last(straight: Path) -> None:
    best, last = (json.loads((straight / names[0]).read_text()) for names in (BEST_FILES, LAST_FILES))
    assert (best["epoch"], last["epoch"]) == (2, 4)
    assert [scores["confusion"][2][2] for scores in (best, last)] == [80, 70]
    assert best["miou"] < last["miou"]
    assert load_arrays(straight / BEST)["position"][0] == best["step"]
    assert (straight / BEST_FILES[1]).read_bytes() != (straight / LAST_FILES[1]).read_bytes()


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(0.5, id="frozen"),
        pytest.param(2, id="at the border", marks=pytest.mark.slow),
        pytest.param(2.5, id="thawed", marks=pytest.mark.slow),
    ],
)
def test_from_either_phase_the_rest_is_the_same_to_the_bit(
    train: Trainings, straight: Path, tmp_path: Path, share: float
) -> None:
    """The record of the best is not set aside with a later best, and so the early end comes as without."""
    run = shutil.copytree(straight, tmp_path / "run")
    steps = max(checkpoints(run)) // 4
    step = min(checkpoints(run), key=lambda number: abs(number - share * steps))
    assert train(run, step=step) == 0
    one = last_arrays(straight)
    assert differing(one, last_arrays(run)) == set()
    first = load_arrays(checkpoints(straight)[step])
    encoder = {name for name in one if name.startswith("model/down")}
    assert {name for name in encoder if not np.array_equal(one[name], first[name])} == encoder


LONGER = ("training.schedule=constant", "training.warmup=1", "training.checkpoint_every=2")
EVERYTHING = (*LONGER, "training.ema=0.9", "training.precision=mixed_float16")
PLAIN = (*LONGER, "dataset.split={test: [s4]}", "model.dropout=0", "loss.dice=0")
"""Without validations, whose figures take longer than these trainings."""


class Killed(BaseException):
    """As a kill: nothing that the training would still do is done."""


@pytest.mark.parametrize(
    ("settings", "killed"),
    [
        pytest.param(PLAIN, False, id="at once", marks=pytest.mark.slow),
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
    train = Trainings(tmp_path / "data", settings)
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    assert train(whole, 4) == 0
    assert train(longer, 2) == 0
    done = max(checkpoints(longer))
    if killed:
        best = (longer / BEST).read_bytes()
        with monkeypatch.context() as patch:
            _kill_after(patch, done + 3)
            with pytest.raises(Killed):
                train(longer, 4, resume=True)
        assert done < max(checkpoints(longer)) < 2 * done
        assert (longer / BEST).read_bytes() == best  # until a validation is better
    assert train(longer, 4, resume=True) == 0
    assert capsys.readouterr().out.count(f"training.epochs: 2 → 4, from step {done} on\n") == 1

    expected, got = (dict(load_arrays(newest_checkpoint(run))) for run in (whole, longer))
    assert any(name.startswith("ema/") for name in expected) == killed
    assert differing(expected, got) == {"run.json"}  # which says how it came about
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
