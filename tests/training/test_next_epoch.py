"""The next epoch's batches are begun before the validation of the present one."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from segmenter.devices.strategy import Devices
from segmenter.runs.resume import Position


@pytest.mark.parametrize("stops", [False, True])
def test_the_next_epoch_is_begun_before_the_validation_and_none_after_the_last(
    tensorflow: ModuleType, stops: bool
) -> None:
    from segmenter.training.trainer import StoppedError, Trainer

    trainer = Trainer.__new__(Trainer)
    training = SimpleNamespace(epochs=3, stop_after=0, validate_every=1)
    trainer.run, trainer.steps = SimpleNamespace(recipe=SimpleNamespace(training=training)), 6  # type: ignore[assignment]
    trainer.position, trainer.dataset = Position(), Mock()
    trainer.devices, trainer._time_left = Devices(None, ()), MagicMock()
    trainer._profiler, trainer._log, calls = Mock(), Mock(), []
    trainer._profiler.close.return_value = trainer._profiler.missing.return_value = ""
    trainer._plan = lambda epoch: f"plan {epoch}"  # type: ignore[assignment,method-assign,return-value]
    trainer.feed = Mock(begin=lambda plan, epoch: calls.append(f"begin {epoch} by {plan}"))
    trainer.save = Mock()  # type: ignore[method-assign]

    def epoch(_: object, stop: Any) -> None:
        calls.append(f"epoch {trainer.position.epoch}")
        if stops:
            stop.take([15])

    trainer._epoch = epoch  # type: ignore[method-assign]
    trainer._validate = lambda *_: calls.append("validate")  # type: ignore[method-assign]
    if stops:
        with pytest.raises(StoppedError):
            trainer.train()
        assert calls == ["epoch 0", "validate"]
        return
    trainer.train()
    assert calls == [
        *("epoch 0", "begin 1 by plan 1", "validate"),
        *("epoch 1", "begin 2 by plan 2", "validate"),
        *("epoch 2", "validate"),
    ]
