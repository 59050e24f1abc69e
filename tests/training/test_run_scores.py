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

from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.labels import ClassMap
from segmenter.runs.checkpoints import BEST
from segmenter.runs.resume import Position
from segmenter.runs.score_files import BEST_FILES, LAST_FILES, describe_scores


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
) -> Callable[[int], None]:
    """`validate(wrong)`: the trainer's validation after one more epoch of seven steps."""
    from segmenter.training import trainer
    from segmenter.training.log import TrainLog

    classes = make_classes(2)
    protocol = Protocol(tuple(classes.names), "full", "validation")
    state = SimpleNamespace(
        run=SimpleNamespace(
            path=tmp_path,
            classes=classes,
            recipe=SimpleNamespace(sampling=SimpleNamespace(scale_strata=())),
        ),
        dataset=None,
        position=Position(),
        _predict=None,
        _log=TrainLog(tmp_path),
        _arrays=lambda: {"done": np.array(state.position.done)},
    )
    monkeypatch.setattr(trainer, "validation_protocol", lambda _: protocol)

    def validate(wrong: int) -> None:
        state.position = state.position.after(7).at_next_epoch()
        monkeypatch.setattr(trainer, "validate", lambda *_: confusion_of(classes, wrong))
        bar: Any = SimpleNamespace(set_description=lambda _: None)
        trainer.Trainer._validate(state, bar)  # type: ignore[arg-type]

    return validate


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_score_files_are_of_the_best_and_the_last_is_beside_them(
    validate: Callable[[int], None], tmp_path: Path
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
    validate: Callable[[int], None], tmp_path: Path
) -> None:
    assert describe_scores(tmp_path) == []
    for wrong in (0, 50):
        validate(wrong)
    assert describe_scores(tmp_path) == [
        "best: epoch 1, step 7, mIoU 100.00 %; best.npz, which predict.py uses, scores.json, confusion.png",
        "last: epoch 2, step 14, mIoU 58.33 %; last_scores.json, last_confusion.png",
    ]


def test_without_a_score_there_is_a_last_and_no_best(tmp_path: Path) -> None:
    (tmp_path / LAST_FILES[0]).write_text('{"format": 2, "epoch": 1, "step": 7, "miou": null}')
    assert describe_scores(tmp_path) == []  # of another format
    (tmp_path / LAST_FILES[0]).write_text('{"format": 1, "epoch": 1, "step": 7, "miou": null}')
    assert describe_scores(tmp_path) == [
        "last: epoch 1, step 7, mIoU –; last_scores.json, last_confusion.png"
    ]
    (tmp_path / LAST_FILES[0]).write_text("{")
    assert describe_scores(tmp_path) == []
