"""Law 3 on these devices: a training run twice, and stopped and resumed, must end in the same bits.

Each is a process of its own that keeps a checkpoint of every step, so that the first step that differs is
known, and how far apart it is: a rounding is small there, a race or a wrong sum is not.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import TrainingError, run_tool
from segmenter.runs.checkpoints import checkpoints, load_arrays

from .bench import Bench, tool
from .figures import Figure

_UNET = {"kind": "unet"}
_EVERY = {
    "checkpoint_every": 1,
    "keep_checkpoints": 10_000,
    "steps_per_call": 1,
    "schedule": "constant",
    "warmup": 0,
}


@dataclass(frozen=True)
class Difference:
    """First step after which two trainings differ.

    Attributes:
        step: None: they are the same.
        steps, arrays, of: steps compared; arrays that differ after the first such step; arrays in all.
        largest: difference over the largest value of its array; `where` it is.
    """

    step: int | None
    steps: int
    arrays: int
    of: int
    largest: float
    where: str

    def __str__(self) -> str:
        if self.step is None:
            return f"the same {self.of} arrays after each of {self.steps} steps"
        differ = f"{self.arrays} of {self.of} arrays differ from step {self.step} of {self.steps} on"
        return f"{differ}, by up to {self.largest:.0e} of the largest value, in {self.where}"


def figures(bench: Bench, deterministic: bool = True, unet: bool = False) -> Iterator[Figure]:
    """Yield whether two equal trainings are the same, and one that is stopped and resumed.

    Args:
        deterministic: False: nothing is expected; it shows that the comparison sees a difference.
        unet: the default U-Net in place of the planned model.
    """
    recipe, folder = _recipe(bench, deterministic, unet), bench.folder
    name = f"{recipe.stem}-"
    one, again, resumed = (folder / f"{name}{run}" for run in ("one", "again", "resumed"))
    _train(bench, recipe, one)
    _train(bench, recipe, again)
    expected = {"expected": "the same", "law": bench.place != "parts"} if deterministic else {}
    model = " of a U-Net" if unet else ""
    yield _figure(f"the same training{model} again", compare_runs(one, again), expected)
    rmtree(again)  # a checkpoint each step: gigabytes
    if not deterministic:
        rmtree(one)
        return
    steps = sorted(checkpoints(one))
    middle = steps[(len(steps) - 1) // 2]
    copytree(one, resumed)
    for step, path in checkpoints(resumed).items():
        if step > middle:
            path.unlink()
    _train(bench, recipe, resumed, "--resume")
    yield _figure(
        f"one{model} stopped after step {middle}, and resumed", compare_runs(one, resumed), expected
    )
    for run in (one, resumed):
        rmtree(run)


def _figure(name: str, difference: Difference, expected: Mapping[str, Any]) -> Figure:
    holds = difference.step is None if expected else None
    unseen = not expected and difference.step is None
    note = "so this comparison was not seen to fail" if unseen else ""
    name = name if expected else f"{name}, without determinism"
    return Figure(name, str(difference), holds=holds, note=note, told=True, **expected)


def compare_runs(one: Path, two: Path) -> Difference:
    """Compare two runs checkpoint by checkpoint."""
    a, b = checkpoints(one), checkpoints(two)
    for step in sorted({*a, *b}):
        if step not in a or step not in b:
            return Difference(step, len(a), 0, 0, float("inf"), "a checkpoint of one alone")
        left, right = load_arrays(a[step]), load_arrays(b[step])
        apart = {name: _difference(left.get(name), right.get(name)) for name in {*left, *right}}
        apart = {name: value for name, value in apart.items() if value is not None}
        if apart:
            where = max(apart, key=lambda name: (np.nan_to_num(apart[name], nan=np.inf), name))
            return Difference(step, len(a), len(apart), len(left), float(apart[where]), where)
    return Difference(None, len(a), 0, len(left), 0.0, "")


def _difference(one: NDArray[Any] | None, two: NDArray[Any] | None) -> Any:
    """Return the largest difference over the largest value; None if no bit differs."""
    if one is None or two is None or one.shape != two.shape or one.dtype != two.dtype:
        return np.inf
    if one.tobytes() == two.tobytes():
        return None
    if one.dtype.kind not in "fiub":
        return np.inf
    x, y = one.astype(np.float64), two.astype(np.float64)
    return np.abs(x - y).max() / max(np.abs(x).max(), np.finfo(np.float64).tiny)


def _recipe(bench: Bench, deterministic: bool, unet: bool) -> Path:
    sizes = bench.sizes
    epochs = sizes.epochs[0]
    changes: dict[str, Any] = {
        "dataset": {"root": str(bench.scenes(sizes.enlarge[0])), "split": {}},  # nothing to validate
        "training": {"epochs": epochs, "validate_every": epochs, **_EVERY},
        "distribution": {"deterministic": deterministic},
    }
    if unet and not bench.tiny:
        changes["model"] = _UNET
    name = f"repeat-{bench.place}{bench.replicas}{'-unet' * unet}{'' if deterministic else '-free'}"
    return bench.recipe(name, changes, sizes.images[0])


def _train(bench: Bench, recipe: Path, run: Path, *more: str) -> None:
    """Run a training like `segmenter train`: tiny ones here, since to start takes longer than all else.

    Raises:
        TrainingError: it failed; the message is its last line.
    """
    words = [str(recipe), "--run", str(run), *more]
    if bench.logical is not None:
        words += ["--logical-devices", str(bench.logical)]
    if not bench.tiny:
        tool("train", *words)
        return
    from ..train import main

    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = run_tool(lambda: main(words))
    if code:
        raise TrainingError(
            f"train ended with exit code {code}: {output.getvalue().strip().splitlines()[-1]}"
        )
