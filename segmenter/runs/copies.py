"""Copies of run.json and recipe.yaml that a run's checkpoints hold, for when these are lost or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from segmenter.base.errors import CheckpointError
from segmenter.base.files import write_whole
from segmenter.base.terminal import say
from segmenter.runs.arrays import load_arrays

RUN_FILE = "run.json"
"""Of the files of a run, the one that makes it one."""
_SHOWN = 5


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
            f"{_others(path.parent) if path.name == RUN_FILE else ''}"
        )
    write_whole(path, copy[1])
    say(f"{path}: was not there; put back from {copy[0].name}", aside=True)


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories in a folder, in order of names."""
    with suppress(OSError):
        return sorted(file.parent for file in folder.glob(f"*/{RUN_FILE}"))
    return []


def _others(missing: Path) -> str:
    """A hint: the runs in a folder, or beside it the one that is spelt nearly so, or the first of all."""
    if inside := runs_in(missing):
        return f"; runs in it are {_listed(inside)}"
    beside = {run.name: run for run in runs_in(missing.parent)}
    if near := get_close_matches(missing.name, beside, 1):
        return f"; did you mean {beside[near[0]]}?"
    return f"; runs beside it are {_listed(list(beside.values()))}" if beside else ""


def _listed(runs: Sequence[Path]) -> str:
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    return ", ".join(map(str, runs[:_SHOWN])) + more


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
