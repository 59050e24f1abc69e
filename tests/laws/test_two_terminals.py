"""The two-terminal recipe of docs/machines.md, run as written; a worker lost, and the run resumed."""

import re
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from datasets.commands.gpu.laboratory import LIMIT
from segmenter.runs.checkpoints import checkpoints
from tests.helpers.made_training import apart, made, train, weights
from tests.helpers.several_workers import ROOT, ended_with, free_ports
from tests.helpers.time_limits import wait_until

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
    """What both workers print, once both have ended well."""
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
