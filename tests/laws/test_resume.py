"""Law 3, resume: a training that is stopped, killed or out of disk and goes on ends in the same bits.

Real processes and real signals; with augmentation, dropout, quotas, averaged weights and a loss scale.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.runs.checkpoints import checkpoints, load_arrays
from segmenter.runs.score_files import BEST_FILES, LAST_FILES
from tests.helpers.made_training import ROOT, made, records, train, users_environment, weights

EVERYTHING = [
    *("--set", "training.precision=mixed_float16", "--set", "training.ema=0.9"),
    *("--set", "training.steps_per_call=2", "--set", "training.keep_checkpoints=3"),
    *("--set", "training.checkpoint_every=3", "--set", "sampling.quota=rarity"),
]
"""An epoch has 7 steps: checkpoints also in the middle of one."""
HANGING = """
    import ctypes, os, runpy, sys, time
    import segmenter.training.validation
    what, sys.argv = sys.argv[1], sys.argv[2:]
    fsync, written = os.fsync, []

    def hang(*_, **__):
        os.write(1, b"hanging\\n")
        while True:
            ctypes.CDLL(None).sleep(1000)

    def hang_in_checkpoint(handle):
        if "/checkpoints/.step-" in os.readlink(f"/proc/self/fd/{handle}"):
            written.append(handle)
            if len(written) == 2:
                hang()
        fsync(handle)

    if what == "validation":
        segmenter.training.validation.validate = hang
    else:
        os.fsync = hang_in_checkpoint
    runpy.run_path("train.py", run_name="__main__")
"""
"""train.py, which never comes back from its first validation, or from writing its second checkpoint."""


class Training:
    """train.py as a process that writes to a file."""

    def __init__(self, recipe: Path, run: Path, *arguments: str, hanging: str = "") -> None:
        script = ["-c", textwrap.dedent(HANGING), hanging] if hanging else []
        command = [sys.executable, *script, "train.py", str(recipe), "--run", str(run), *arguments]
        environment = users_environment(PYTHONUNBUFFERED="1", PYTHONPATH=str(ROOT))
        self._run, self._file = run, run.parent / "output.txt"
        self._before = stamps(run)
        with self._file.open("w") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self._file.read_text(errors="replace")

    def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            assert self.process.poll() is None, self.output
            time.sleep(0.001)

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.output)

    def until_saved(self) -> None:
        """A checkpoint that was not there at the start."""
        self.until(lambda: stamps(self._run) - self._before)

    def until_saving(self) -> None:
        """A checkpoint is being written: as near as can be to the middle of it."""
        folder = self._run / "checkpoints"
        self.until(lambda: folder.is_dir() and any(n.startswith(".step-") for n in os.listdir(folder)))

    def end(self, number: int | None = None) -> int:
        """Send a signal, if one is given, and wait."""
        if number is not None:
            assert self.process.poll() is None, self.output
            self.process.send_signal(number)
        code = self.process.wait()
        assert "Traceback" not in self.output
        return code


def stamps(run: Path) -> set[tuple[str, int]]:
    found = set()
    for path in checkpoints(run).values():
        try:
            found.add((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:  # the oldest goes while we look
            continue
    return found


def a_moment(most: float) -> None:
    time.sleep(random.SystemRandom().uniform(0, most))


def half_written(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob(".step-*"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("resume") / "data")


def check_same(run: Path, whole: Path) -> None:
    """All arrays, with position and what they were made with, the best, and the log."""
    got, expected = weights(run), weights(whole)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    assert any(name.startswith("ema/") for name in got)
    last = f"checkpoints/{max(checkpoints(whole).items())[1].name}"
    for name in ("best.npz", last, *BEST_FILES, *LAST_FILES):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert validations(run) == validations(whole)
    # A stop in the middle of an epoch ends a line of the log: compared are lines of the same steps, which
    # are equal, and the mean of each epoch, whose sum is taken in another order.
    same = losses(run).keys() & losses(whole).keys()
    assert same
    assert {key: losses(run)[key] for key in same} == {key: losses(whole)[key] for key in same}
    assert list(epochs(run)) == list(epochs(whole))
    assert list(epochs(run).values()) == pytest.approx(list(epochs(whole).values()), rel=1e-6)


def validations(run: Path) -> list[dict[str, Any]]:
    return [line for line in records(run) if "miou" in line]


def losses(run: Path) -> dict[tuple[int, int], float]:
    """(last step, steps) → mean loss, of each line."""
    return {(line["step"], line["steps"]): line["loss"] for line in records(run) if "loss" in line}


def epochs(run: Path) -> dict[int, float]:
    """Epoch → sum of its steps' losses."""
    sums: dict[int, float] = {}
    for line in records(run):
        if "loss" in line:
            sums[line["epoch"]] = sums.get(line["epoch"], 0.0) + line["loss"] * line["steps"]
    return sums


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every_way", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_interrupted_in_every_way_it_ends_in_the_same_bits(
    recipe: Path, tmp_path: Path, every_way: bool
) -> None:
    """One training: kill -9 in a checkpoint, a full disk, a damaged checkpoint; and others."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    settings = [*EVERYTHING, "--set", "training.epochs=5"]
    train(recipe, "--run", str(whole), *settings)
    again = [*settings, "--resume"]

    training = Training(recipe, run, *settings, hanging="checkpoint")
    training.until_said("hanging")
    assert training.end(signal.SIGKILL) == -9
    assert len(half_written(run)) == 1

    training = Training(recipe, run, *again)
    training.until_saved()
    assert "removed 1 file that a killed training left half-written" in training.output
    full_disk(training, run)

    if every_way:
        ctrl_c_twice(Training(recipe, run, *again, hanging="checkpoint"))
        assert len(half_written(run)) == 1
        training = Training(recipe, run, *again)
        training.until_said("resumed after step")
        a_moment(1)
        assert training.end(signal.SIGKILL) == -9
        stopped(Training(recipe, run, *again), signal.SIGTERM)
        stopped(Training(recipe, run, *again), signal.SIGINT)
        ctrl_c_twice(Training(recipe, run, *again, hanging="validation"))

    before, last = damage_the_newest(recipe, run, settings)
    with (run / "log.jsonl").open("a") as file:
        file.write('{"step": 9')  # as a kill leaves it
    resumed = train(recipe, "--run", str(run), *settings, "--resume-from", str(before)).stdout
    aside = run / "checkpoints" / "aside" / "1"
    assert f"its checkpoints ({checkpoint_name(last)}" in resumed
    assert f") and the log are kept in {aside}\n" in resumed
    assert f"resumed after step {before} of" in resumed
    check_same(run, whole)
    assert not half_written(run)
    assert (aside / checkpoint_name(last)).is_file()
    assert f'"step": {last},' in (aside / "log.jsonl").read_text()


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}.npz"


def stopped(training: Training, number: int) -> None:
    """After a checkpoint that was not there at the start."""
    training.until_saved()
    a_moment(0.1)
    assert training.end(number) == 128 + number
    assert "go on with the same command and --resume" in training.output


def ctrl_c_twice(training: Training) -> None:
    """The first is waited with, as what is under way never ends; the second ends at once."""
    training.until_said("hanging")
    training.process.send_signal(signal.SIGINT)
    training.until_said("once more ends at once")
    assert training.end(signal.SIGINT) == 130


def full_disk(training: Training, run: Path) -> None:
    """No file may be as large as a checkpoint."""
    most = max(checkpoints(run).items())[1].stat().st_size - 1
    resource.prlimit(training.process.pid, resource.RLIMIT_FSIZE, (most, most))
    assert training.end() == 1
    lines = [line for line in training.output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert ".npz: cannot write it: File too large; is the disk full?" in lines[0]
    assert lines[0].endswith("make room, then give the same command again with --resume")
    assert len([load_arrays(path) for path in checkpoints(run).values()]) in (1, 2, 3)
    assert not half_written(run)


def damage_the_newest(recipe: Path, run: Path, settings: list[str]) -> tuple[int, int]:
    """Bytes of the newest checkpoint are flipped; it is named, and the one before it offered: their steps."""
    *_, before, last = checkpoints(run)
    path = checkpoints(run)[last]
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 200):  # more than a header between two arrays
        content[place] ^= 1
    path.write_bytes(content)
    told = error(recipe, run, *settings, "--resume")
    assert told.startswith(f"error: {path}: damaged checkpoint (")
    assert told.endswith(f"the one of step {before} is whole: go on from it with --resume-from {before}")
    told = error(recipe, run, *settings, "--resume-from", "999999")
    assert told.endswith(f"--resume-from 999999: expected one of {', '.join(map(str, checkpoints(run)))}")
    return before, last


def error(recipe: Path, run: Path, *arguments: str) -> str:
    """The one line in which train.py ends, before TensorFlow is started."""
    result = train(recipe, "--run", str(run), *arguments, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_twenty_times_it_ends_in_the_same_bits(recipe: Path, tmp_path: Path) -> None:
    """At random moments, and every other time when a checkpoint is seen being written."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    settings = [*EVERYTHING, "--set", "training.epochs=40"]
    train(recipe, "--run", str(whole), *settings)
    caught = 0
    for kill in range(20):
        training = Training(recipe, run, *settings, *(["--resume"] if checkpoints(run) else []))
        if kill % 2:
            training.until_saving()
        elif checkpoints(run):
            training.until_said(" images/s")
            a_moment(2)
        else:  # on a slow machine none is there in the first moments
            training.until_saved()
        assert training.end(signal.SIGKILL) == -9
        caught += len(half_written(run))
    train(recipe, "--run", str(run), *settings, "--resume")
    assert caught
    check_same(run, whole)
