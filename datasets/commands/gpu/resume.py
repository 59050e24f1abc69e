"""Resuming, law 3, on these devices: a training run twice, and stopped and resumed, bit for bit equal.

Uses `segmenter train` with `distribution.deterministic`; tiny sizes run in this process, since importing
TensorFlow three times would take longer than everything else.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from segmenter.base.errors import TrainingError, run_tool

from ..recipes import ready_made
from .bench import Bench, distribution
from .figures import Figure
from .sections import ROOT

_TOOLS = __package__.rpartition(".")[0]
_CODE = f"import sys; from {_TOOLS} import main; sys.exit(main())"
"""`segmenter`, in a clone too, where no such command is installed."""
_SMALL = ("model.depth=2", "model.width=8", "tiles.size=64", "tiles.overlap=0", "training.global_batch=16")
_TINY = ("model.depth=1", "model.width=2", "tiles.size=32", "tiles.overlap=0", "training.global_batch=8")
_EVERY = 3
"""Steps between checkpoints."""


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield whether all trainings end with equal bytes."""
    from ...synthetic.make import make_potsdam

    folder, tiny = bench.folder, bench.sizes.tiny
    make_potsdam(folder / "data", scenes=2 if tiny else 6, seed=1, size=128 if tiny else 512)
    train(bench, folder / "one")
    steps = checkpoints(folder / "one")
    middle = steps[len(steps) // 2 - 1]
    shutil.copytree(folder / "one", folder / "resumed")
    train(bench, folder / "resumed", "--resume-from", str(middle))
    name = f"stopped after step {middle} of {steps[-1]}, and resumed: arrays that differ"
    yield _compared(folder, "resumed", name)
    if not tiny:
        train(bench, folder / "again")
        yield _compared(folder, "again", "the same training again: arrays that differ")


def _compared(folder: Path, other: str, name: str) -> Figure:
    one, two = (last_arrays(folder / run) for run in ("one", other))
    different = len(set(one) ^ set(two)) + sum(one[key] != two[key] for key in set(one) & set(two))
    return Figure(name, float(different), "", "0", different == 0, law=True, note=f"of {len(one)}")


def checkpoints(run: Path) -> list[int]:
    """Return the steps of a run's checkpoints, in order."""
    return sorted(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*.npz"))


def last_arrays(run: Path) -> dict[str, str]:
    """Return the SHA-256 of each array of the last checkpoint, by name."""
    newest = max((run / "checkpoints").glob("step-*.npz"), key=lambda p: int(p.stem.removeprefix("step-")))
    with np.load(newest) as file:
        return {name: hashlib.sha256(file[name].tobytes()).hexdigest() for name in file.files}


def train(bench: Bench, run: Path, *more: str) -> None:
    """Run one training like `segmenter train`.

    Raises:
        TrainingError: the training failed; the message is its last line.
    """
    arguments = [str(ready_made()["potsdam_small"]), "--run", str(run), *_settings(bench), *more]
    if bench.sizes.tiny:
        code, output = _here(bench, arguments)
    else:
        environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
        done = subprocess.run(
            [sys.executable, "-c", _CODE, "train", *arguments], cwd=ROOT, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        code, output = done.returncode, done.stderr
    if code:
        lines = output.strip().splitlines() or ["nothing"]
        raise TrainingError(f"the training ended with exit code {code}: {lines[-1]}")


def _here(bench: Bench, arguments: list[str]) -> tuple[int, str]:
    """Train in this process, which already has its devices."""
    from ..train import main

    bench.devices(1)
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        return run_tool(lambda: main(arguments)), output.getvalue()


def _settings(bench: Bench) -> list[str]:
    common = ["training.epochs=2", "training.keep_checkpoints=99", f"training.checkpoint_every={_EVERY}"]
    common += ["training.steps_per_call=1", f"dataset.root={bench.folder / 'data'}", "dataset.split={}"]
    replicas = 2 if bench.sizes.tiny else bench.numbers[-1]
    if replicas > 1:
        common += ["distribution.strategy=mirrored", f"distribution.devices={list(range(replicas))}"]
    settings = [*(_TINY if bench.sizes.tiny else _SMALL), *common]
    if bench.place == "logical":
        chosen = ["--logical-devices", str(bench.cards)]
    else:
        settings += ["distribution.deterministic=true", "training.precision=mixed_float16"]
        if bench.place == "parts":
            parts = distribution(bench.place, bench.most).logical_gpus
            assert parts is not None
            settings += ["distribution.visible_devices=[0]", "distribution.memory_growth=false"]
            settings += [f"distribution.logical_gpus={{number: {parts.number}, memory: {parts.memory}}}"]
        chosen = []
    return [*chosen, *(word for setting in settings for word in ("--set", setting))]
