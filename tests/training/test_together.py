"""What several workers must have in common, and how they stop: by made workers, without processes."""

import json
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import WorkerError
from segmenter.config.reading import recipe_from
from segmenter.devices.machines.cluster import Cluster
from segmenter.devices.machines.workers import Workers
from tests.helpers.refusals import refused

DATA = {"name": "t", "dataset": {"kind": "potsdam", "root": "here"}}


class Others(Workers):
    """This process as worker 0 of two; the other says what it is told to."""

    count = 2

    def __init__(self, said: str) -> None:
        self.said, self.cluster = said, Cluster(0, 2, "test", ("a:1", "b:2"))

    def name(self, index: int | None = None) -> str:
        return self.cluster.name(index)

    def exchange(self, text: str) -> list[str]:
        return [text, self.said]


def facts(make_classes: Any, tiles: str = "abc", devices: int = 2, **changes: Any) -> dict[str, str]:
    from segmenter.training.workers_agree import facts_of

    named: Any = SimpleNamespace(names=tuple(f"GPU:{i}" for i in range(devices)))
    classes = make_classes(changes.pop("classes", 3))
    return facts_of(recipe_from({**DATA, **changes}, "test"), classes, tiles, named)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"seed": 5}, "worker 1 (b:2): recipe"),
        ({"training": {"learning_rate": 0.5}}, "recipe, training.learning_rate"),
        ({"tiles": "xyz"}, "data (fingerprint)"),
        ({"devices": 4}, "devices"),
        ({"classes": 4}, "worker 1 (b:2): classes"),
    ],
)
def test_a_worker_that_differs_is_named(
    tensorflow: ModuleType, make_classes: Any, change: dict[str, Any], where: str
) -> None:
    from segmenter.training.workers_agree import check_same

    other = Others(json.dumps(facts(make_classes, **change)))
    with refused(WorkerError, where=where) as caught:
        check_same(other, facts(make_classes))
    assert "\n" not in str(caught.value)


def test_other_programs_are_refused_and_what_each_may_have_of_its_own_is_not(
    tensorflow: ModuleType, make_classes: Any
) -> None:
    from segmenter.training.workers_agree import check_same

    own = facts(make_classes)
    for name, there in (("program", "0.1.0 123"), ("version of tensorflow", "2.20.0")):
        with refused(WorkerError, where=f"worker 1 (b:2): {name}", got=there):
            check_same(Others(json.dumps({**own, name: there})), own)

    dataset = {"dataset": {"kind": "potsdam", "root": "there", "cache": "elsewhere"}}
    other = facts(make_classes, **dataset, training={"input_workers": 3})
    check_same(Others(json.dumps(other)), facts(make_classes))


def test_arrays_as_text_are_the_same_to_the_bit(tensorflow: ModuleType) -> None:
    from segmenter.training.workers_agree import packed, unpacked

    arrays = {"a/b": np.array([-0.0, np.nan]), "c": np.arange(6).reshape(2, 3)}
    again = unpacked(packed(arrays))
    assert {name: a.tobytes() for name, a in again.items()} == {n: a.tobytes() for n, a in arrays.items()}


@pytest.mark.parametrize(
    ("heard", "signal"), [([2, 0], 2), ([0, 15], 15), ([2, 15], 15), ([2, 2], 2), ([0, 0], 0)]
)
def test_all_stop_for_the_same_signal(tensorflow: ModuleType, heard: list[int], signal: int) -> None:
    from segmenter.training.workers_agree import Stop

    devices: Any = SimpleNamespace(workers=Others(""))
    stop = Stop(devices, [])
    stop.take(heard)
    assert (bool(stop), stop.signal) == (signal > 0, signal)
