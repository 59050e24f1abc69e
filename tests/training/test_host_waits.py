"""What the host reads of the devices during an epoch, and when: never of the call that is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from segmenter.base.errors import TrainingError
from segmenter.grid.labels import ClassMap
from tests.helpers.made_trainer import BATCH, made_trainer
from tests.helpers.refusals import refused

REPLICAS, STEPS, PER_CALL = 2, 22, 2
CALLS = STEPS // PER_CALL
READERS = ("__array__", "__float__", "__int__", "__bool__", "__index__", "numpy", "_numpy")


class Result:
    """Results of a call that know which calls were made when they are read: on a GPU, a wait."""

    def __init__(self, values: Any, call: int, made: list[int], reads: list[tuple[int, int]]) -> None:
        self._values, self._call, self._made, self._reads = np.asarray(values), call, made, reads

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._reads.append((self._call, len(self._made)))
        return self._values


def test_an_epoch_waits_for_no_call_before_the_next_is_under_way(
    tensorflow: ModuleType,
    tmp_path: Path,
    make_classes: Callable[..., ClassMap],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    reads: list[tuple[int, int]] = []
    waits = waits_of_this_thread(tensorflow, monkeypatch)
    classes = 3

    def steps(stack: Any, count: Any) -> Any:
        from segmenter.training.step import StepResult

        if not made:
            waits.clear()  # what tf.data looks at to begin: tensors of the host
        made.append(len(made))
        held = np.full((PER_CALL, 2, classes), [[BATCH], [REPLICAS]])
        values = np.ones(PER_CALL, np.float32), held, np.ones(PER_CALL, bool), np.ones(PER_CALL, np.float32)
        return StepResult(*(Result(value, made[-1], made, reads) for value in values))

    monkeypatch.setattr("segmenter.training.learner.make_steps", lambda parts: steps)
    trainer = made_trainer(
        tmp_path, make_classes(classes), REPLICAS, STEPS, steps_per_call=PER_CALL, epochs=1
    )
    from segmenter.training.workers_agree import Stop

    written: list[int] = []
    monkeypatch.setattr(trainer._log, "trained", lambda step, values: written.append(step))
    with tqdm(total=STEPS, disable=True) as bar:
        trainer._epoch(bar, Stop(trainer.devices, []))
    assert len(made) == CALLS
    # Four results of each call, all of them when the next one has been handed over; of the last at the end.
    assert reads == [(call, min(call + 2, CALLS)) for call in range(CALLS) for _ in range(4)]
    # Beside these the learning rate of each line of the log, which the host computes for itself.
    assert written == [20, 22]
    assert waits == ["__float__"] * len(written)


def waits_of_this_thread(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with each reading of an eager tensor by this thread, whichever way; not that of the feeder."""
    from tensorflow.python.framework import ops

    found: list[str] = []
    own, nested = threading.get_ident(), threading.local()

    def spied(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(self: Any, *given: Any, **options: Any) -> Any:
            outermost = threading.get_ident() == own and not getattr(nested, "inside", False)
            if outermost:
                found.append(name)
                nested.inside = True
            try:
                return read(self, *given, **options)
            finally:
                if outermost:
                    nested.inside = False

        return reading

    for name in READERS:
        monkeypatch.setattr(ops._EagerTensorBase, name, spied(name, getattr(ops._EagerTensorBase, name)))
    before = len(found)
    float(tensorflow.constant(1.0))  # it does see one
    assert len(found) == before + 1
    found.clear()
    return found


def test_replicas_that_differ_end_the_run_before_a_checkpoint(
    tensorflow: ModuleType, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> None:
    trainer = made_trainer(tmp_path, make_classes(3), REPLICAS)
    first = trainer.save()
    assert first is not None
    assert first.is_file()
    variable = trainer.learner.model.trainable_variables[0]
    copy = trainer.devices.strategy.experimental_local_results(variable.value)[1]
    copy.assign(copy * 1.0000002)
    trainer.position = trainer.position.after(1)
    with refused(TrainingError, fault="CPU:0 for down0_conv0/kernel"):
        trainer.save()
    assert list(first.parent.iterdir()) == [first]
