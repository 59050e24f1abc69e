"""Training on parameter servers: steps on this process' own devices, and as users run it, by processes.

One worker computes what one device does, several lose nothing of each other's.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import pytest

from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.extras.parameter_servers.state import ServedState, Shard
from segmenter.extras.parameter_servers.trainer import InFlight, follow, make_served_step
from tests.helpers.laboratory import BATCH
from tests.helpers.made_training import ROOT, made, records, train, users_environment, weights
from tests.helpers.several_workers import addresses
from tests.helpers.small_training import AVERAGE, NORM, PER_IMAGE, PER_PIXEL, Training, batches
from tests.helpers.time_limits import wait_until

LONG = [
    *("--set", "training.epochs=200", "--set", "training.validate_every=200"),
    *("--set", "training.checkpoint_every=20", "--set", "training.ema=0.9"),
]


SHORT = ["--set", "training.ema=0.9", "--set", "training.epochs=2"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return made(tmp_path / "data")


@pytest.fixture
def one_core() -> Iterator[None]:
    """For all processes that the test starts; TensorFlow has a thread for each core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def last_step(run: Path) -> int:
    log = run / "log.jsonl"
    return max((line["step"] for line in records(run)), default=0) if log.is_file() else 0


def saved_step(run: Path) -> int:
    return max(
        (int(p.stem.removeprefix("step-")) for p in (run / "checkpoints").glob("step-*.npz")), default=0
    )


@pytest.mark.slow
def test_two_workers_train_by_one_plan_and_all_end_with_the_chief(
    one_core: None, tmp_path: Path, recipe: Path
) -> None:
    run = tmp_path / "run"
    with Cluster(tmp_path, recipe, 2, 1, *SHORT) as cluster:
        cluster.start_all("--run", str(run))
        assert set(cluster.codes().values()) == {0}, cluster.said("chief")
        said = cluster.said("chief")
        assert all(is_free(address) for address in cluster.addresses)
    assert "parameter_server: 2 workers (" in said
    assert "each on whole batches of its own, 1 server (" in said
    assert said.count("asynchrony: ") == 2
    for role, index in (("worker", 0), ("worker", 1), ("ps", 0)):
        lines = cluster.said(role, index).splitlines()
        assert lines[-1] == f"{role} {index}: the chief has ended, so this ends"
    lines = [line for line in records(run) if "loss" in line]
    assert sum(line["steps"] for line in lines) == last_step(run) == saved_step(run) == 14  # 7 an epoch
    assert all(line["held_steps"] == [line["steps"]] * 3 for line in lines)  # every class in every step
    assert sum(line["tiles_drawn"] for line in lines) == 14 * 8
    assert lines[-1]["loss"] < lines[0]["loss"]
    arrays = weights(run)
    assert arrays["ema_updates"] == 14
    assert all(np.isfinite(array).all() for name, array in arrays.items() if name.startswith("model/"))


@pytest.mark.slow
def test_one_worker_gives_the_bits_of_one_device_and_either_goes_on_from_the_other(
    tmp_path: Path, recipe: Path
) -> None:
    one, run = tmp_path / "one", tmp_path / "run"
    alike = (*SHORT, "--set", "training.precision=mixed_float16")
    train(recipe, "--run", str(one), *alike, "--set", "training.input_workers=0")
    with Cluster(tmp_path, recipe, 1, 1, *alike) as cluster:
        cluster.start_all("--run", str(run))
        assert set(cluster.codes().values()) == {0}, cluster.said("chief")
    got, expected = weights(run), weights(one)
    assert got.keys() == expected.keys()
    for name in expected:
        if name.split("/")[0] in ("model", "ema", "optimiser", "ema_updates", "position"):
            np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    (run / "checkpoints" / "step-00000014.npz").unlink()
    done = train(recipe, "--run", str(run), *alike, "--resume", "--set", "training.input_workers=0")
    assert "updates asynchronous, by 1 workers → none" in done.stdout
    for name, array in weights(run).items():
        if name.startswith("model/"):
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_and_is_taken_in_again(tmp_path: Path, recipe: Path) -> None:
    run = tmp_path / "run"
    with Cluster(tmp_path, recipe, 2, 1, *LONG) as cluster:
        cluster.start_all("--run", str(run))
        cluster.until(lambda: last_step(run) >= 20)
        cluster.kill("worker", 1)
        cluster.until(lambda: "is lost; its step goes to another worker" in cluster.said("chief"))
        before = last_step(run)
        cluster.until(lambda: last_step(run) >= before + 60)
        cluster.start("worker", 1)
        cluster.until(lambda: "is back" in cluster.said("chief"))
        before = last_step(run)
        cluster.until(lambda: last_step(run) >= before + 100)
        cluster.members["chief", 0].send_signal(signal.SIGTERM)
        codes = cluster.codes()
        assert codes.pop(("chief", 0)) == 143
        assert set(codes.values()) == {0}
    assert "Traceback" not in cluster.said("chief")
    lines = [line for line in records(run) if "loss" in line]
    assert all(line["held_steps"] == [line["steps"]] * 3 for line in lines)
    assert sum(line["steps"] for line in lines) == saved_step(run)
    assert weights(run)["position"][0] == saved_step(run)


@pytest.mark.slow
def test_a_chief_that_has_lost_a_worker_ends_when_it_is_done(tmp_path: Path, recipe: Path) -> None:
    run = tmp_path / "run"
    with Cluster(tmp_path, recipe, 2, 1, *LONG, "--set", "training.epochs=20") as cluster:
        cluster.start_all("--run", str(run))
        cluster.until(lambda: last_step(run) >= 20)
        cluster.kill("worker", 1)
        assert cluster.codes()["chief", 0] == 0
    assert saved_step(run) == 20 * 7


@pytest.mark.slow
def test_a_lost_server_ends_the_run_in_one_line_and_resume_goes_on(tmp_path: Path, recipe: Path) -> None:
    run = tmp_path / "run"
    with Cluster(tmp_path / "first", recipe, 2, 2, *LONG) as cluster:
        cluster.start_all("--run", str(run))
        cluster.until(lambda: saved_step(run) >= 20)
        cluster.kill("ps", 1)
        codes = cluster.codes()
        assert codes[("chief", 0)] == 2
        assert codes[("worker", 0)] == codes[("worker", 1)] == codes[("ps", 0)] == 0
        said = cluster.said("chief")
        assert "Traceback" not in said
        assert said.splitlines()[-1].startswith("error: ps 1 (127.0.0.1:")
        assert (
            f"trained after step-{saved_step(run):08d}.npz: start the cluster again, the chief with --resume"
            in said
        )
    stopped = saved_step(run)
    with Cluster(tmp_path / "second", recipe, 1, 1, *LONG) as cluster:
        cluster.start_all("--run", str(run), "--resume")
        cluster.until(lambda: saved_step(run) > stopped)
        assert f"resumed after step {stopped} of" in cluster.said("chief")
        cluster.members["chief", 0].send_signal(signal.SIGINT)
        assert cluster.codes()[("chief", 0)] == 130


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
        pytest.param(
            NORM,
            PER_IMAGE,
            "mixed_float16",
            MIXED,
            {},
            id="loss scale with an overflow",
            marks=pytest.mark.slow,
        ),
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
        if not i or (i == 3 and config.freeze_encoder):
            one.enter(i // 3)
            other.enter(i // 3)
            step = make_served_step(other.parts, state)
        batch = tuple(part[i] for part in stack)
        expected = one.step(one.devices.distribute(batch))
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


@pytest.mark.slow
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


SERVED = ("--set", "distribution.strategy=parameter_server", "--set", "training.input_workers=0")


def is_free(address: str) -> bool:
    """True if nobody listens there."""
    host, port = address.split(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError:
        return False
    return True


class Cluster:
    """Processes, all of which are ended when the context is left.

    Attributes:
        members: (role, index) → process.
    """

    def __init__(self, folder: Path, recipe: Path, workers: int, servers: int, *arguments: str) -> None:
        listed = {"chief": addresses(1), "worker": addresses(workers), "ps": addresses(servers)}
        self.addresses = [a for group in listed.values() for a in group]
        self.counts = {"worker": workers, "ps": servers}
        cluster = [f"{role}={','.join(group)}" for role, group in listed.items()]
        self._command = [sys.executable, "train.py", str(recipe), *SERVED, *arguments, "--cluster", *cluster]
        self._folder = folder
        self.members: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, role: str, index: int = 0, *arguments: str) -> None:
        more = [] if role == "chief" else ["--role", role, "--index", str(index)]
        with self._file(role, index).open("ab") as file:
            self.members[role, index] = subprocess.Popen(
                [*self._command, *more, *arguments],
                cwd=ROOT,
                env=users_environment(PYTHONUNBUFFERED="1"),
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def start_all(self, *of_chief: str) -> None:
        for role, count in self.counts.items():
            for index in range(count):
                self.start(role, index)
        self.start("chief", 0, *of_chief)

    def said(self, role: str, index: int = 0) -> str:
        return self._file(role, index).read_text(errors="replace")

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait; the chief must live."""
        while not condition():
            assert self.members["chief", 0].poll() is None, self.said("chief")
            time.sleep(0.01)

    def kill(self, role: str, index: int = 0) -> None:
        assert self.members[role, index].poll() is None, self.said(role, index)
        self.members[role, index].send_signal(signal.SIGKILL)
        self.members[role, index].wait()

    def codes(self) -> dict[tuple[str, int], int]:
        """Exit codes, when all have ended."""
        return {member: process.wait() for member, process in self.members.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.members.values():
            process.kill()
            process.wait()

    def _file(self, role: str, index: int) -> Path:
        return self._folder / f"{role}-{index}.txt"
