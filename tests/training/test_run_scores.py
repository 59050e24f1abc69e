"""A run's score files are of the model that predicts, the last validation's beside them under its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import TrainingConfig
from segmenter.devices.machines.workers import Workers
from segmenter.evaluation.scores import ConfusionMatrix, Protocol, check_name
from segmenter.grid.labels import ClassMap
from segmenter.runs.checkpoints import BEST
from segmenter.runs.resume import Position
from segmenter.runs.score_files import BEST_FILES, LAST_FILES, describe_scores
from tests.helpers.refusals import refused


def confusion_of(classes: ClassMap, wrong: int) -> ConfusionMatrix:
    """100 pixels of each of two classes, of which so many of the first are taken for the second."""
    confusion = ConfusionMatrix(classes)
    truth = np.repeat(np.arange(2, dtype=np.uint8), 100)
    found = truth.copy()
    found[:wrong] = 1
    confusion.add(truth, found)
    return confusion


@pytest.fixture
def validate(
    tensorflow: ModuleType,
    tmp_path: Path,
    make_classes: Callable[..., ClassMap],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    """`validate(wrong)`: the trainer's state after the validation of one more epoch of seven steps."""
    from segmenter.training import trainer
    from segmenter.training.log import TrainLog
    from segmenter.training.workers_agree import Stop

    classes = make_classes(2)
    protocol = Protocol(tuple(classes.names), "full", "validation")
    recipe = SimpleNamespace(training=TrainingConfig(), sampling=SimpleNamespace(scale_strata=()))
    state = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path, classes=classes, recipe=recipe),
        dataset=SimpleNamespace(of=lambda _: ()),
        feed=SimpleNamespace(check=None),
        position=Position(),
        learner=SimpleNamespace(predictor=lambda: None),
        _log=TrainLog(tmp_path),
        _workers=Workers(),
        _arrays=lambda: {"done": np.array(state.position.done)},
    )
    monkeypatch.setattr(trainer, "validation_protocol", lambda _: protocol)

    def validate(wrong: int, **settings: Any) -> Any:
        if settings:
            state.run.recipe.training = TrainingConfig(**settings)
        state.position = state.position.after(7).at_next_epoch()
        monkeypatch.setattr(trainer, "validate", lambda *_, **__: confusion_of(classes, wrong))
        bar: Any = SimpleNamespace(set_description=lambda _: None)
        devices: Any = SimpleNamespace(workers=Workers())
        trainer.Trainer._validate(state, bar, Stop(devices, []))  # type: ignore[arg-type]
        return state

    return validate


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_score_files_are_of_the_best_and_the_last_is_beside_them(
    validate: Callable[..., Any], tmp_path: Path
) -> None:
    for wrong in (50, 10, 30):
        validate(wrong)
    best, last = (read(tmp_path / names[0]) for names in (BEST_FILES, LAST_FILES))
    assert (best["epoch"], best["step"], best["missed"]) == (2, 14, [0, 0])
    assert best["confusion"] == [[90, 10], [0, 100]]
    assert (last["epoch"], last["step"], last["confusion"]) == (3, 21, [[70, 30], [0, 100]])
    with np.load(tmp_path / BEST) as file:
        assert int(file["done"]) == best["step"]
    pictures = [imread(tmp_path / names[1]) for names in (BEST_FILES, LAST_FILES)]
    assert not np.array_equal(*pictures)
    validate(5)
    for names in zip(BEST_FILES, LAST_FILES, strict=True):
        assert (tmp_path / names[0]).read_bytes() == (tmp_path / names[1]).read_bytes()


def test_the_end_names_the_best_and_the_last_with_epoch_and_step(
    validate: Callable[..., Any], tmp_path: Path
) -> None:
    assert describe_scores(tmp_path) == []
    for wrong in (0, 50):
        validate(wrong)
    assert describe_scores(tmp_path) == [
        "best: epoch 1, step 7, mIoU 100.00 %; best.npz, which predict.py uses, scores.json, confusion.png",
        "last: epoch 2, step 14, mIoU 58.33 %; last_scores.json, last_confusion.png",
    ]


def test_files_of_another_kind_are_no_scores(tmp_path: Path) -> None:
    (tmp_path / LAST_FILES[0]).write_text('{"format": 2, "epoch": 1, "step": 7, "miou": null}')
    assert describe_scores(tmp_path) == []  # of another format
    (tmp_path / LAST_FILES[0]).write_text("{")
    assert describe_scores(tmp_path) == []


def test_the_best_is_chosen_by_the_named_score(
    validate: Callable[..., Any], make_classes: Callable[..., ClassMap], tmp_path: Path
) -> None:
    """Pixels of the first class that are taken for the second leave the first's precision at 1."""
    first, second = make_classes(2).names
    for wrong in (50, 0):
        state = validate(wrong, best_by=f"precision:{first}")
    assert state.position.best_score == 1.0
    assert read(tmp_path / BEST_FILES[0])["epoch"] == 1
    assert describe_scores(tmp_path, f"precision:{first}")[0].startswith(
        f"best: epoch 1, step 7, mIoU 58.33 %, precision of {first} 100.00 %; best.npz"
    )
    assert validate(0, best_by=f"precision:{second}").position.without_gain == 2  # as high is no gain


def test_a_validation_without_a_gain_counts_and_a_gain_counts_anew(
    validate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from segmenter.training.trainer import Trainer

    found = []
    for wrong in (50, 50, 10, 30, 10):
        state = validate(wrong, stop_after=2)
        found.append((state.position.without_gain, Trainer.ended_early.fget(state)))  # type: ignore[attr-defined]
    assert found == [(0, False), (1, False), (0, False), (1, False), (2, True)]
    assert "2 validations without a gain in mIoU (90.45 %)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("loss", {"expected": "validation (miou"}),
        ("miou:water", {"expected": "validation"}),
        ("iou:roof", {"expected": "dataset (land"}),
    ],
)
def test_a_score_that_nothing_has_is_refused(name: str, fields: dict[str, object]) -> None:
    with refused(ConfigError, **fields):
        check_name(name, ["land", "water"], "r")
    check_name("iou:water", ["land", "water"], "r")
