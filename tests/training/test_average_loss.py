"""The default training averages its loss by `tf.nn.compute_average_loss`, over the global batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segmenter.config.reading import recipe_from
from segmenter.geometry import Size
from segmenter.labels import ClassMap
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.run import Run
from segmenter.tiles.index import TileIndex
from tests.helpers.equivalence_matrix import strategy_of

REPLICAS, BATCH, SIDE, CLASSES = 2, 6, 16, 3


@pytest.fixture
def first_loss(
    tensorflow: ModuleType, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> Callable[[], float]:
    """The loss of the first step of a trainer under a recipe that says nothing of the loss."""
    from segmenter.devices.strategy import Devices
    from segmenter.training.trainer import Trainer

    recipe = recipe_from(
        {
            "name": "t",
            "dataset": {"kind": "potsdam", "root": "x"},
            "tiles": {"size": SIDE},
            "model": {"depth": 1, "width": 2},
            "training": {"global_batch": BATCH},
        },
        "test",
    )
    normalisation = Normalisation.of([120.0] * 3, [60.0] * 3)
    run = Run(
        tmp_path,
        recipe,
        make_classes(CLASSES),
        None,
        3,
        "uint8",
        normalisation,
        1.0,
        "full",
        NetworkGeometry(2, 9),
    )
    counts = np.full((2 * BATCH, CLASSES), 80)
    where = np.zeros(2 * BATCH, np.int32)
    index = TileIndex((), where, where, where, counts.sum(axis=1), counts, Size(SIDE, SIDE), 0)
    devices = Devices(strategy_of(REPLICAS), tuple(SimpleNamespace(name=f"CPU:{i}") for i in range(REPLICAS)))
    rng = np.random.default_rng(4)
    shape = (1, BATCH, SIDE, SIDE)
    stack = (
        rng.integers(0, 256, (*shape, 3), np.uint8),
        np.ones(shape, bool),
        rng.integers(0, CLASSES, shape, np.uint8),
    )

    def loss() -> float:
        trainer = Trainer(run, index, None, devices, None)  # type: ignore[arg-type]
        trainer._use_step_of(0)
        return float(trainer._steps(devices.distributed(stack, axis=1), tensorflow.constant(1)).loss[0])

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
