"""The default training averages its loss by `tf.nn.compute_average_loss`, over the global batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from segmenter.grid.labels import ClassMap
from tests.helpers.made_trainer import BATCH, made_trainer

REPLICAS = 2


@pytest.fixture
def first_loss(
    tensorflow: ModuleType, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> Callable[[], float]:
    """The loss of the first step of a trainer under a recipe that says nothing of the loss."""

    def loss() -> float:
        trainer = made_trainer(tmp_path, make_classes(3), REPLICAS)
        trainer._use_step_of(0)
        stack = tuple(part[None] for part in trainer.feed.loader.batch)
        dealt = trainer.devices.distributed(stack, axis=1)
        return float(trainer.learner.steps(dealt, tensorflow.constant(1)).loss[0])

    return loss


def test_the_default_loss_goes_through_compute_average_loss(
    tensorflow: ModuleType, first_loss: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, average = first_loss(), tensorflow.nn.compute_average_loss
    calls: list[tuple[tuple[int, ...], int]] = []

    def spied(losses: Any, **given: Any) -> Any:
        calls.append((tuple(losses.shape), given["global_batch_size"]))
        return 3 * average(losses, **given)

    monkeypatch.setattr(tensorflow.nn, "compute_average_loss", spied)
    assert first_loss() == pytest.approx(3 * plain, rel=1e-5)  # it is the loss, and not a word beside it
    assert set(calls) == {((BATCH // REPLICAS,), BATCH)}
    assert len(calls) % REPLICAS == 0
