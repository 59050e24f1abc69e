"""Training on parameter servers as users run it: a chief, workers and servers as processes of train.py."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.made_cluster import Cluster, is_free
from tests.helpers.made_training import made, records, train, weights

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
