"""Checkpoints of a run directory: `checkpoints/step-N.npz`, and `best.npz`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError
from segmenter.base.files import make_folder
from segmenter.runs.arrays import load_arrays, save_arrays

BEST = "best.npz"
_STEP = re.compile(r"step-(\d+)\.npz")


def save_checkpoint(run: Path, step: int, arrays: Mapping[str, NDArray[Any]], keep: int) -> Path:
    """Write the checkpoint of a step, whole or not at all, then remove all but the newest `keep`."""
    folder = run / "checkpoints"
    make_run_folder(folder)
    path = folder / f"step-{step:08d}.npz"
    save_arrays(path, arrays)
    for old in list(checkpoints(run).values())[:-keep]:
        old.unlink(missing_ok=True)
    return path


def make_run_folder(folder: Path) -> None:
    """Make a folder of a run directory, whole or not at all.

    Raises:
        CheckpointError: it cannot be made.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot make the folder: {error.strerror}") from None


def has_checkpoint(run: Path) -> bool:
    """Whether a run directory has something to go on from."""
    return bool(checkpoints(run))


def newest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run directory, whole or not."""
    found = list(checkpoints(run).values())
    if not found:
        raise CheckpointError(f"{run}: expected a checkpoint in {run / 'checkpoints'}, there is none yet")
    return found[-1]


def newest_whole(run: Path, *, but: Path | None = None) -> Path | None:
    """The newest checkpoint that is not damaged; None: there is none."""
    for path in reversed(checkpoints(run).values()):
        with suppress(CheckpointError):
            if path != but:
                load_arrays(path)
                return path
    return None


def checkpoints(run: Path) -> dict[int, Path]:
    """Step → file of each checkpoint, oldest first; the best is not among them."""
    matches = ((_STEP.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*.npz"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))
