"""Copies of run.json and recipe.yaml that a run's checkpoints hold, for when these are lost or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from segmenter.errors import CheckpointError
from segmenter.files import write_whole
from segmenter.runs.arrays import load_arrays
from segmenter.terminal import say


def put_back(path: Path, files: Sequence[Path]) -> None:
    """Write a file that is not there from its copy in the first whole one of `files`; says so on stderr.

    Raises:
        CheckpointError: none holds a copy.
        SegmenterError: it cannot be written.
    """
    copy = _copy_of(path, files)
    if copy is None:
        raise CheckpointError(
            f"{path.parent}: expected a run directory as train.py leaves it, there is no {path.name}"
        )
    write_whole(path, copy[1])
    say(f"{path}: was not there; put back from {copy[0].name}", aside=True)


def how_to_put_back(path: Path, files: Sequence[Path]) -> str:
    """Advice for a file that is there and damaged, or edited: it is never written over."""
    copy = _copy_of(path, files)
    if copy is None:
        return "put back a copy of it, if you have one: no checkpoint here holds one"
    return f"move it away, and the copy in {copy[0].name} takes its place"


def _copy_of(path: Path, files: Sequence[Path]) -> tuple[Path, bytes] | None:
    for file in files:
        with suppress(CheckpointError):
            if (copy := load_arrays(file).get(path.name)) is not None:
                return file, copy.tobytes()
    return None
