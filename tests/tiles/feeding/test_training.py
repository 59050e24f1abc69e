"""train.py with worker processes: the same weights as without, and a killed worker ends it in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.made_training import ROOT, made, train, weights
from tests.helpers.time_limits import wait_until

WORKERS = ("--set", "training.input_workers=2")


@pytest.mark.slow
def test_workers_train_the_same_weights_and_a_killed_one_ends_in_one_line(tmp_path: Path) -> None:
    recipe = made(tmp_path / "data")
    train(recipe, "--run", str(tmp_path / "threads"))
    told = train(recipe, "--run", str(tmp_path / "workers"), *WORKERS).stdout
    assert "input: 2 worker processes on " in told
    threads, workers = (weights(tmp_path / name) for name in ("threads", "workers"))
    for name in threads.keys() - {"meta", "sha256", "recipe.yaml", "run.json"}:
        np.testing.assert_array_equal(threads[name], workers[name], err_msg=name)

    run = tmp_path / "killed"
    many = (*WORKERS, "--set", "training.epochs=10000", "--set", "training.validate_every=10000")
    command = [sys.executable, "train.py", str(recipe), "--run", str(run), *many]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as main:
        assert wait_until(lambda: list((run / "checkpoints").glob("step-*.npz")))
        found = _workers_of(main.pid)
        assert len(found) == 2
        os.kill(found[1], signal.SIGKILL)
        assert main.stderr is not None
        error = main.stderr.read().decode()
    assert main.returncode == 2
    assert "Traceback" not in error
    assert "error: input worker 2 of 2" in (last := error.strip().splitlines()[-1])
    assert last.endswith("; go on with the same command and --resume")
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)
    short = (*WORKERS, "--set", "training.epochs=1")  # what is there can be gone on from
    assert (
        "cannot resume under another recipe"
        in train(recipe, "--run", str(run), "--resume", *short, check=False).stderr
    )  # the epochs differ: the checkpoint was read


def _workers_of(pid: int) -> list[int]:
    """Processes of a training that make batches, in the order in which they started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(
        int(c) for c in children if b"segmenter.tiles.feeding" in Path(f"/proc/{c}/cmdline").read_bytes()
    )
