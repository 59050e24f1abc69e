"""A step that falls short of the plan's promise is counted, shown, logged, and in strict mode an error."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segmenter.batches import DrawCounts
from segmenter.errors import TrainingError
from segmenter.sampler import Plan


def plan_of(blocks: int = 1) -> Plan:
    rows = np.arange(32).reshape(4, 8)
    return Plan(rows, 0, 0, True, 0, promised=(0, 2), best_effort=(1,), blocks=blocks)


def meter_of(coverage: str, rows: Plan) -> tuple[Any, list[dict[str, Any]], dict[str, str]]:
    """A meter over a stand-in for the trainer; the lines it logs; what its bar shows."""
    from segmenter.trainer import _Meter

    lines: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    recipe = SimpleNamespace(
        sampling=SimpleNamespace(coverage=coverage), training=SimpleNamespace(precision="float32")
    )
    trainer = SimpleNamespace(
        run=SimpleNamespace(recipe=recipe, classes=SimpleNamespace(names=("road", "lake", "car"))),
        loader=SimpleNamespace(drawn=DrawCounts(8, 1, 0)),
        devices=SimpleNamespace(replicas=4),
        position=SimpleNamespace(done=0, epoch=0),
        _optimiser=SimpleNamespace(learning_rate=0.1),
        _log=SimpleNamespace(trained=lambda step, values: lines.append({"step": step, **values})),
    )
    bar = SimpleNamespace(
        set_description=lambda *_, **__: None,
        set_postfix=lambda values, **_: shown.update(values),
        update=lambda _: None,
    )
    return _Meter(trainer, rows, bar), lines, shown


def take(meter: Any, *steps: list[list[int]]) -> None:
    """Results of steps: (tiles, replicas) that hold each class."""
    for held in steps:
        meter.push((0.5, np.array(held)))
        meter._trainer.position.done += 1
    meter.close()


WHOLE = [[5, 0, 1], [4, 0, 1]]
SHORT = [[8, 2, 0], [4, 2, 0]]


def test_a_short_step_is_counted_shown_and_logged(
    tensorflow: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    meter, lines, shown = meter_of("relaxed", plan_of())
    take(meter, WHOLE, SHORT, WHOLE)
    assert "step 2 holds no tile of car, which the plan promised" in capsys.readouterr().out
    assert (shown["short"], shown["classes"]) == ("1", "2/3")
    (line,) = lines
    assert (line["steps"], line["short_steps"], line["held_steps"]) == (3, 1, [3, 1, 2])
    assert (line["promised"], line["best_effort"]) == ([0, 2], [1])


def test_in_strict_mode_it_is_an_error(tensorflow: ModuleType) -> None:
    meter, _, _ = meter_of("strict", plan_of())
    with pytest.raises(TrainingError, match="step 2: expected every promised class in the step, car"):
        take(meter, WHOLE, SHORT, WHOLE)


def test_where_each_replica_was_planned_for_each_has_to_hold_the_class(tensorflow: ModuleType) -> None:
    meter, lines, _ = meter_of("relaxed", plan_of(blocks=4))
    take(meter, [[8, 0, 4], [4, 0, 4]], [[8, 0, 6], [4, 0, 3]])
    assert lines[0]["short_steps"] == 1
    assert lines[0]["classes_per_replica"] == pytest.approx((8 + 7) / 2 / 4)
