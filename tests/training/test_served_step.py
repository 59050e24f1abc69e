"""Steps on parameter servers: one worker computes what one device does, several lose nothing of each other's.

The servers are this process' own devices here; as processes of their own: test_served.py.
"""

import threading
from typing import Any

import keras
import numpy as np
import pytest

from datasets.commands.gpu.laboratory import BATCH
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.extras.parameter_servers.state import ServedState, Shard
from segmenter.extras.parameter_servers.trainer import InFlight, follow, make_served_step
from tests.helpers.small_training import AVERAGE, NORM, PER_IMAGE, PER_PIXEL, Training, batches
from tests.helpers.time_limits import wait_until

pytestmark = pytest.mark.usefixtures("tensorflow")

ADAMW = TrainingConfig(
    global_batch=BATCH, learning_rate=0.01, warmup=2, clip_norm=0.5, ema=AVERAGE, weight_decay=0.1
)
MIXED = ADAMW.model_copy(update={"precision": "mixed_float16", "clip_norm": 0.0, "clip_value": 0.01})
LATE = ADAMW.model_copy(update={"freeze_encoder": 1, "rates": {"head": 0.5}, "optimizer": "sgd"})
DROPOUT = UNetConfig(depth=1, width=3, dropout=0.3)
REGION = LossConfig(dice=1.0)


def served(one: Training, config: TrainingConfig, servers: int = 2, workers: int = 1) -> Any:
    names = [f"CPU:{i}" for i in range(servers)]
    state = ServedState(one.model, one.optimiser, one.averaged, config, 10, one.pace, names, workers)
    state.push()
    return state


def state_of(training: Training) -> dict[str, Any]:
    found = {f"model {v.path}": v.numpy() for v in training.model.variables}
    found |= {f"optimiser {name}": array for name, array in training.optimiser.arrays().items()}
    if training.averaged is not None:
        found |= {f"average {v.path}": v.numpy() for v in training.averaged.model.variables}
        found |= training.averaged.arrays()
    return found


@pytest.mark.parametrize(
    ("model", "loss", "dtype", "config", "options"),
    [
        pytest.param(DROPOUT, REGION, "float64", ADAMW, {}, id="dropout, Dice, clipping by norm"),
        pytest.param(NORM, PER_IMAGE, "mixed_float16", MIXED, {}, id="loss scale with an overflow"),
        pytest.param(
            NORM,
            PER_PIXEL,
            "float64",
            LATE,
            {"accumulate": 2},
            id="micro-batches, frozen encoder",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_worker_computes_what_one_device_does(
    model: UNetConfig, loss: LossConfig, dtype: str, config: TrainingConfig, options: dict[str, Any]
) -> None:
    one, other = (Training(model, loss, 1, dtype, AVERAGE, config, **options) for _ in range(2))
    state = served(other, config, servers=1 if config.clip_norm else 2)  # a norm's sum has the servers' order
    stack = batches(6)
    if config is MIXED:  # the second step overflows, and is skipped
        one.optimiser.loss_scale.scale.assign(2.0**24)
        state.loss_scale.scale.assign(2.0**24)
    applied = []
    for i in range(6):
        if i in (0, 3):
            one.enter(i // 3)
            other.enter(i // 3)
            step = make_served_step(other.parts, state)
        batch = tuple(part[i] for part in stack)
        expected = one.step(one.devices.distributed(batch))
        result, late = step(*batch)
        assert late == 0
        for got, wanted in zip(result, expected, strict=True):
            np.testing.assert_array_equal(got, np.asarray(wanted, got.dtype.as_numpy_dtype))
        applied.append(bool(result.applied))
    state.pull()
    assert (False in applied) == (config is MIXED)
    got, wanted = state_of(other), state_of(one)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_two_workers_at_once_lose_no_update() -> None:
    training = Training(DROPOUT, REGION, 1, "float32", AVERAGE, ADAMW)
    state, steps = served(training, ADAMW, workers=2), 30
    step = make_served_step(training.parts, state)
    stack = batches(2)
    late: list[int] = []

    def work(number: int) -> None:
        for _ in range(steps):
            late.append(int(step(*(part[number] for part in stack))[1]))

    work(0)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    state.pull()
    assert len(late) == 3 * steps
    assert min(late) >= 0
    counts = {int(shard.optimiser.iterations.numpy()) for shard in state.shards}
    assert counts == {int(training.optimiser.iterations.numpy())} == {3 * steps}
    assert training.averaged.arrays()["ema_updates"] == 3 * steps
    masks = [v.numpy()[1] for v in training.model.variables if v.path.endswith("/masks")]
    assert masks
    assert set(masks) == {3 * steps}


def test_statistics_that_others_have_changed_meanwhile_are_changed_further() -> None:
    with keras.name_scope("norm"):
        names = ("moving_mean", "moving_variance", "masks")
        kept = [keras.Variable([1.0, 3.0], trainable=False, name=name) for name in names]
    shard = Shard("CPU:0", tuple(kept), tuple(kept), None, None)
    read, made = np.float32([1.0, 9.0]), np.float32([0.25, 8.0])
    follow(shard, {v.path: (read, made) for v in kept}, shared=True)
    for v in kept:
        np.testing.assert_array_equal(v.numpy(), [0.25, 2.0], err_msg=v.path)  # 3 + (8 − 9)
    follow(shard, {v.path: (read, made) for v in kept}, shared=False)
    for v in kept:
        np.testing.assert_array_equal(v.numpy(), made, err_msg=v.path)


class Result:
    """Value that a coordinator gives for a step; comes when it is told to."""

    def __init__(self, value: Any) -> None:
        self._value, self.come = value, threading.Event()

    def fetch(self) -> Any:
        self.come.wait()
        return self._value


class Coordinator:
    def __init__(self) -> None:
        self.given: list[Result] = []

    def schedule(self, step: Any, args: tuple[Any, ...]) -> Result:
        self.given.append(Result(step(*args)))
        return self.given[-1]


def test_a_slow_step_does_not_keep_the_others_from_being_taken() -> None:
    coordinator = Coordinator()
    flight = InFlight(coordinator, lambda a, b: (a, b), most=2)
    flight.give(7, ("a", 1))
    flight.give(8, ("b", 2))
    assert flight.full
    assert flight.done(0.0) is None
    coordinator.given[1].come.set()
    assert wait_until(lambda: flight.done(0.0) == ("b", 2))
    assert (flight.full, flight.under_way) == (False, [7])
    flight.give(9, ("c", 3))
    coordinator.given[2].come.set()
    assert wait_until(lambda: flight.done(0.0) == ("c", 3))
    coordinator.given[0].come.set()
    assert wait_until(lambda: flight.done(0.0) == ("a", 1))
    assert flight.under_way == []
