"""The host reads nothing of the call under way; what copies and workers have in common, and how they stop."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from tqdm import tqdm

from datasets.commands.gpu.bench import strategy_of
from datasets.commands.gpu.laboratory import LIMIT
from segmenter.base.errors import TrainingError, WorkerError
from segmenter.config.reading import recipe_from
from segmenter.devices.machines.cluster import Cluster
from segmenter.devices.machines.workers import Workers
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices
from segmenter.grid.labels import ClassMap
from segmenter.runs.checkpoints import checkpoints
from segmenter.training.learner import Agreement
from segmenter.training.step import StepResult
from segmenter.training.workers_agree import Stop, check_same, facts_of
from tests.helpers.made_trainer import BATCH, made_trainer
from tests.helpers.made_training import apart, made, train
from tests.helpers.refusals import refused
from tests.helpers.small_training import central_of

REPLICAS, STEPS, PER_CALL = 2, 22, 2
CALLS = STEPS // PER_CALL


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
    classes = 3

    def steps(stack: Any, count: Any) -> Any:
        made.append(len(made))
        held = np.full((PER_CALL, 2, classes), [[BATCH], [REPLICAS]])
        values = np.ones(PER_CALL, np.float32), held, np.ones(PER_CALL, bool), np.ones(PER_CALL, np.float32)
        return StepResult(*(Result(value, made[-1], made, reads) for value in values))

    monkeypatch.setattr("segmenter.training.learner.make_steps", lambda parts: steps)
    trainer = made_trainer(
        tmp_path, make_classes(classes), REPLICAS, STEPS, steps_per_call=PER_CALL, epochs=1
    )

    written: list[int] = []
    monkeypatch.setattr(trainer._log, "trained", lambda step, values: written.append(step))
    with tqdm(total=STEPS, disable=True) as bar:
        trainer._epoch(bar, Stop(trainer.devices, []))
    assert len(made) == CALLS
    # Four results of each call, all of them when the next one has been handed over; of the last at the end.
    assert reads == [(call, min(call + 2, CALLS)) for call in range(CALLS) for _ in range(4)]
    assert written == [20, 22]


def test_replicas_that_differ_end_the_run_before_a_checkpoint(
    tensorflow: ModuleType, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> None:
    trainer = made_trainer(tmp_path, make_classes(3), REPLICAS)
    first = trainer.save()
    assert first.is_file()
    variable = trainer.learner.model.trainable_variables[0]
    copy = trainer.devices.strategy.experimental_local_results(variable.value)[1]
    copy.assign(copy * 1.0000002)
    trainer.position = trainer.position.after(1)
    with refused(TrainingError, fault="CPU:0 for down0_conv0/kernel"):
        trainer.save()
    assert list(first.parent.iterdir()) == [first]


REPLICAS = 3


class Copies:
    """Some variables with a copy on each replica, and the check of them."""

    def __init__(self, models: tuple[str, ...] = ("a card",) * REPLICAS) -> None:
        strategy = strategy_of(REPLICAS)
        used: Any = [SimpleNamespace(name=f"CPU:{i}", model=model) for i, model in enumerate(models)]
        rng = np.random.default_rng(5)
        with strategy.scope():
            plain = [keras.Variable(rng.normal(size=(5, 7)), dtype=t, name=t) for t in ("float32", "float64")]
            counter = keras.Variable(3, dtype="int64", trainable=False, name="counter")
            local = {"synchronization": "on_read", "aggregation": "only_first_replica"}
            moving = keras.Variable(rng.normal(size=9), trainable=False, name="moving", **local)
        self.variables = [*plain, counter, moving]
        self.agreement = Agreement(Devices(strategy, tuple(used)), self.variables)
        self._strategy = strategy

    def copy(self, variable: Any, replica: int) -> Any:
        return self._strategy.experimental_local_results(variable.value)[replica]


def test_equal_copies_agree_and_one_bit_of_one_copy_does_not(tensorflow: ModuleType) -> None:
    copies = Copies()
    assert copies.agreement.check(1) == ""
    for variable in copies.variables:
        copy = copies.copy(variable, 2)
        before = copy.numpy()
        changed = before + 1 if before.dtype == np.int64 else before.copy()
        if before.dtype != np.int64:
            changed.flat[-1] = np.nextafter(changed.flat[-1], np.inf, dtype=before.dtype)
        copy.assign(changed)
        line = f"step 7: expected the same .* got others on CPU:2 than on CPU:0 for {variable.path}; a device"
        with pytest.raises(TrainingError, match=line):
            copies.agreement.check(7)
        copy.assign(before)
    assert copies.agreement.check(8) == ""


def test_several_models_of_card_may_differ_and_it_is_said_once(tensorflow: ModuleType) -> None:
    copies = Copies(("RTX 2080 Ti", "RTX 2080 Ti", "TITAN RTX"))
    copies.copy(copies.variables[0], 1).assign(np.zeros((5, 7)))
    assert copies.agreement.check(7).endswith("for float32; so do RTX 2080 Ti and TITAN RTX side by side")
    assert copies.agreement.check(8) == ""


def test_there_are_no_copies_to_compare(tensorflow: ModuleType) -> None:
    used: Any = tuple(Device(f"CPU:{i}", "its model", "", "CPU") for i in range(2))
    devices = Devices(central_of(2), used)
    assert devices.central
    assert devices.computed_on["variables"] == "one copy, on the host"
    assert Agreement(devices, []).check(1) == ""


@pytest.mark.slow
def test_a_run_goes_on_mirrored_and_a_mirrored_one_there(tmp_path: Path) -> None:
    recipe = made(tmp_path / "data")
    two = ("--logical-devices", "2", "--set", "training.precision=float64")
    central = ("--set", "distribution.strategy=central_storage", "--set", "distribution.shares=[5,3]")
    kinds_of = {"mirrored": (), "central": central}
    for first, then in (("mirrored", "central"), ("central", "mirrored")):
        run = tmp_path / first
        train(recipe, "--run", str(run), *two, *kinds_of[first])
        whole = shutil.copytree(run, tmp_path / f"{first} as it was")
        step = min(checkpoints(run))
        out = train(recipe, "--run", str(run), "--resume-from", str(step), *two, *kinds_of[then]).stdout
        assert "computed otherwise, the bits of what follows may differ: " in out
        assert "variables" in out
        assert apart(run, whole) <= LIMIT


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
    other = Others(json.dumps(facts(make_classes, **change)))
    with refused(WorkerError, where=where):
        check_same(other, facts(make_classes))


def test_other_programs_are_refused_and_what_each_may_have_of_its_own_is_not(
    tensorflow: ModuleType, make_classes: Any
) -> None:
    own = facts(make_classes)
    for name, there in (("program", "0.1.0 123"), ("version of tensorflow", "2.20.0")):
        with refused(WorkerError, where=f"worker 1 (b:2): {name}", got=there):
            check_same(Others(json.dumps({**own, name: there})), own)

    dataset = {"dataset": {"kind": "potsdam", "root": "there", "cache": "elsewhere"}}
    other = facts(make_classes, **dataset, training={"input_workers": 3})
    check_same(Others(json.dumps(other)), facts(make_classes))


@pytest.mark.parametrize(
    ("heard", "signal"), [([2, 0], 2), ([0, 15], 15), ([2, 15], 15), ([2, 2], 2), ([0, 0], 0)]
)
def test_all_stop_for_the_same_signal(tensorflow: ModuleType, heard: list[int], signal: int) -> None:
    devices: Any = SimpleNamespace(workers=Others(""))
    stop = Stop(devices, [])
    stop.take(heard)
    assert (bool(stop), stop.signal) == (signal > 0, signal)
