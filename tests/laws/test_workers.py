"""Law 2 over process borders: workers train and stop as one device; the two-terminal recipe as written."""

import json
import re
import shlex
import signal
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from segmenter.runs.checkpoints import checkpoints
from tests.helpers.child_worker import ROWS, done
from tests.helpers.laboratory import LIMIT
from tests.helpers.made_training import apart, made, train, weights
from tests.helpers.naive import SEEN
from tests.helpers.several_workers import ROOT, ended_with, free_ports, workers
from tests.helpers.small_training import difference
from tests.helpers.time_limits import wait_until

MIXED = 5e-3
"""Of 16 bits, whose rounding depends on what is added up where."""


@pytest.mark.slow
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


PAGE = ROOT / "docs" / "machines.md"
CHANGED = ("distribution.heartbeat_timeout=20", "training.epochs=2", "training.precision=float64")
QUICK = [word for change in CHANGED for word in ("--set", change)]


def terminals(recipe: Path, *more: str) -> list[list[str]]:
    """The page's commands, with the test's recipe, this Python and free ports."""
    text = PAGE.read_text(encoding="utf-8").partition("<!-- two terminals")[2]
    lines = text.split("```")[1].strip().splitlines()
    assert len(lines) == 2
    found = "\n".join(lines)
    for port, free in zip(dict.fromkeys(re.findall(r":(\d+)", found)), free_ports(2), strict=True):
        found = found.replace(f":{port}", f":{free}")
    changed = [line.replace("configs/mine.yaml", shlex.quote(str(recipe))) for line in found.splitlines()]
    return [[sys.executable, *shlex.split(line)[1:], *more] for line in changed]


def run_both(recipe: Path, *more: str) -> list[str]:
    """Return the output of both workers, once both have ended well."""
    with ended_with(terminals(recipe, *more)) as running:
        said = [worker.communicate()[0] for worker in running]
    assert [worker.returncode for worker in running] == [0, 0], said
    return said


@pytest.mark.slow
def test_two_terminals_train_what_two_replicas_would(tmp_path: Path) -> None:
    recipe = made(tmp_path / "data")
    run, here = tmp_path / "run", tmp_path / "here"
    said = run_both(recipe, "--run", str(run), *QUICK)
    assert "2 workers of 1 device each" in said[0]
    assert said[0].count("after epoch") == 2
    assert "after epoch" not in said[1]
    assert len(list(run.glob("checkpoints/*.npz"))) == 2

    train(recipe, "--run", str(here), "--logical-devices", "2", *QUICK)
    assert apart(run, here) <= LIMIT
    assert weights(run)["position"][:2].tolist() == weights(here)["position"][:2].tolist()

    # From two workers to one process, and back to two, from the checkpoint after the first epoch.
    first = str(min(checkpoints(run)))
    alone = train(recipe, "--run", str(run), "--resume-from", first, *QUICK).stdout
    assert f"resumed after step {first}" in alone
    assert apart(run, here) <= LIMIT
    both = run_both(recipe, "--run", str(run), "--resume-from", first, *QUICK)
    assert "made on 1 devices, this is 2" not in both[1]
    assert apart(run, here) <= LIMIT


@pytest.mark.slow
def test_a_lost_worker_ends_the_other_and_the_run_goes_on(tmp_path: Path) -> None:
    recipe = made(tmp_path / "data")
    run = tmp_path / "run"
    more = ["--run", str(run), *QUICK[:2], "--set", "training.checkpoint_every=1"]
    more += ["--set", "training.steps_per_call=1"]
    with ended_with(terminals(recipe, *more, "--set", "training.epochs=300")) as (chief, other):
        assert wait_until(lambda: bool(checkpoints(run)))
        other.kill()
        said = chief.communicate()[0]
        assert chief.returncode == 1
    assert re.search(r"error: worker 1 \(127\.0\.0\.1:\d+\) was lost: .* --resume", said)
    for path in checkpoints(run).values():
        with np.load(path) as whole:
            assert len(whole.files) > 10
    with ended_with(terminals(recipe, *more, "--resume", "--set", "training.epochs=300")) as running:
        before = max(checkpoints(run))
        assert wait_until(lambda: max(checkpoints(run)) > before)
        running[1].send_signal(signal.SIGTERM)
        said_both = [worker.communicate()[0] for worker in running]
        assert [worker.returncode for worker in running] == [143, 143], said_both
    assert f"resumed after step {before}" in said_both[0]
    step = int(re.findall(r"stopped after step (\d+)", said_both[0])[0])
    assert max(checkpoints(run)) == step
