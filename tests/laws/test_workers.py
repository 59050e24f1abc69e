"""Law 2 over process borders: workers of one CPU device each train as one device, and stop as one."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from datasets.commands.gpu.laboratory import LIMIT
from tests.helpers.child_worker import ROWS, done
from tests.helpers.naive import SEEN
from tests.helpers.several_workers import workers
from tests.helpers.small_training import difference

MIXED = 5e-3
"""Of 16 bits, whose rounding depends on what is added up where."""


def test_two_workers_train_and_stop_as_one(tensorflow: ModuleType, tmp_path: Path) -> None:
    check(tmp_path, 2, [next(iter(ROWS))])
    first, second = (json.loads((tmp_path / f"{i}.json").read_text()) for i in range(2))
    assert first["texts"] == second["texts"] == ["from 0", "from 1"]
    assert first["chief"] == second["chief"] == {"step": 3}
    assert first["a"] == second["a"] == np.array([-0.0, np.nan, 1e-310]).tobytes().hex()
    assert second["b"] == np.zeros((3, 5)).tolist()
    # Worker 1 heard the signal before the second call; its sum is read, by both, with the third's.
    assert first["stopped"] == second["stopped"] == [False, False, True, True]
    assert first["signal"] == second["signal"] == 15
    assert [one["replicas"] for one in (first, second)] == [2, 2]
    assert [one["first"] for one in (first, second)] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_workers_equal_one_device(tensorflow: ModuleType, tmp_path: Path, count: int) -> None:
    check(tmp_path, count, list(ROWS))


def check(folder: Path, count: int, names: list[str]) -> None:
    """Run the rows on so many workers and on one device here, and compare all that is trained."""
    with workers(folder, count, names) as running:
        assert [worker.wait() for worker in running] == [0] * count
    for name in names:
        row = ROWS[name]
        training = row.made()
        start = [a.copy() for a in training.weights()]
        one = done(training, row.stack())
        assert difference(start, training.weights()) > SEEN
        for i in range(count):
            with np.load(folder / f"{i}-{list(ROWS).index(name)}.npz") as found:
                other = dict(found)
            assert one.keys() == other.keys()
            for kind in ("weights", "ema", "moments", "counts", "losses"):
                ours, theirs = ([a for k, a in x.items() if k.startswith(kind)] for x in (one, other))
                if not ours:
                    continue
                if row.mixed:
                    if kind in ("weights", "counts"):  # moments are as rough as gradients of 16 bits
                        assert difference(theirs, ours) <= MIXED, (name, kind)
                    continue
                limit = {"losses": 1e-6, "counts": 0.0}.get(kind, LIMIT)  # losses are reported in float32
                assert difference(theirs, ours) <= limit, (name, kind)
            if row.mixed:
                assert_skipped(one, other)


def assert_skipped(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """The second step was skipped by all: the scale is halved, and one update fewer counted."""
    numbers = [{float(a) for k, a in x.items() if k.startswith("counts")} for x in (one, other)]
    assert numbers[0] == numbers[1]
    assert {2.0**14, 4.0} <= numbers[0]
