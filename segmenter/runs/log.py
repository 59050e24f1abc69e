"""Training log of a run, log.jsonl: one JSON object with checksum a line; damaged lines are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError, OutputError, failing
from segmenter.base.files import write_whole
from segmenter.base.sealed import other_format, seal, unseal
from segmenter.runs.run import load_run

_MOST_POINTS = 400
"""Points of the history; of a longer log neighbouring lines are taken together."""


@dataclass(frozen=True)
class LogPoint:
    """A stretch of a run's log: the share of its steps that held each class, up to `step`."""

    step: int
    epoch: int
    held_share: list[float]


@dataclass(frozen=True)
class LoggedCoverage:
    """Class coverage of a run's steps, from its log.

    Attributes:
        promised: classes that every line of the log promises; `best_effort`: classes that some line does not.
        held_tiles, promised_tiles: mean tiles of each class in a step, as received and as promised last (0:
            no promise); empty for an older log.
    """

    path: str
    steps: int
    short_steps: int
    promised: list[int]
    best_effort: list[int]
    held_share: list[float]
    tiles_drawn: int
    redrawn: float
    replaced: float
    history: list[LogPoint]
    held_tiles: list[float] = field(default_factory=list)
    promised_tiles: list[float] = field(default_factory=list)


def run_coverage(path: Path, names: Sequence[str]) -> LoggedCoverage:
    """Return the coverage that a run directory's log records.

    A class is promised if every line of the log promises it; else it is best effort.

    Args:
        names: expected class names of the run, in order.

    Raises:
        CheckpointError: the log is missing, damaged or without coverage, or the run has other classes.
    """
    lines = _lines(path / LOG)
    _check_classes(path, lines, names)
    try:
        return _section(str(path), lines)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{path / LOG}: damaged",
            expected=f"whole numbers of steps and classes in each line of training ({type(error).__name__}: "
            f"{error})",
        ) from None


def _section(path: str, lines: list[dict[str, Any]]) -> LoggedCoverage:
    steps, held_LK = _numbers(lines, "steps"), np.array([line["held_steps"] for line in lines], np.int64)
    drawn = max(1, int(_numbers(lines, "tiles_drawn").sum()))
    promised = set.intersection(*(set(line.get("promised", ())) for line in lines))
    best_effort = set.union(*(set(line.get("best_effort", ())) for line in lines))
    return LoggedCoverage(
        path=path,
        steps=int(steps.sum()),
        short_steps=int(_numbers(lines, "short_steps").sum()),
        promised=sorted(int(c) for c in promised),
        best_effort=sorted(int(c) for c in best_effort),
        held_share=_shares(held_LK, steps),
        tiles_drawn=int(_numbers(lines, "tiles_drawn").sum()),
        redrawn=float(_numbers(lines, "tiles_redrawn").sum() / drawn),
        replaced=float(_numbers(lines, "tiles_replaced").sum() / drawn),
        history=_history(lines, held_LK, steps),
        **_tiles(lines, steps),
    )


def _tiles(lines: list[dict[str, Any]], steps_L: NDArray[np.int64]) -> dict[str, list[float]]:
    if not all("held_tiles" in line for line in lines):
        return {}
    shape = len(lines), len(lines[0]["held_steps"])
    held_LK = np.array([line["held_tiles"] for line in lines], np.int64).reshape(shape)
    promised = dict(zip(lines[-1]["promised"], lines[-1]["promised_tiles"], strict=True))
    return {
        "held_tiles": _shares(held_LK, steps_L),
        "promised_tiles": [float(promised.get(c, 0)) for c in range(shape[1])],
    }


def _lines(file: Path) -> list[dict[str, Any]]:
    """Return the log's lines with coverage: lines of training, not of validation."""
    try:
        records = [record for record in log_records(file) if "held_steps" in record]
    except OSError as error:
        raise CheckpointError(
            file, expected=f"the log of a run as train.py leaves it, cannot read it: {error.strerror}"
        ) from None
    if not records:
        raise CheckpointError(
            file,
            expected="lines of training with the classes their steps held, there are none: the run has not "
            "begun",
        )
    return records


def _check_classes(path: Path, lines: list[dict[str, Any]], names: Sequence[str]) -> None:
    what = "name a run of this recipe with --run"
    if (path / "run.json").is_file():
        theirs = load_run(path).classes.names
        if theirs != list(names):
            raise CheckpointError(
                path,
                expected=f"the recipe's classes ({', '.join(names)}), the run has {', '.join(theirs)}",
                remedy=what,
            )
    for line in lines:
        held = line["held_steps"]
        count = len(held) if isinstance(held, list) else 0
        if count != len(names):
            raise CheckpointError(
                path / LOG,
                expected=f"steps of the recipe's {len(names)} classes",
                got=f"{count} at step {line.get('step')}",
                remedy=what,
            )


def _numbers(lines: list[dict[str, Any]], key: str) -> NDArray[np.int64]:
    return np.array([line.get(key, 0) for line in lines], np.int64)


def _shares(held_LK: NDArray[np.int64], steps_L: NDArray[np.int64]) -> list[float]:
    shares = held_LK.sum(axis=0) / max(1, int(steps_L.sum()))
    return [float(share) for share in shares]


def _history(
    lines: list[dict[str, Any]], held_LK: NDArray[np.int64], steps_L: NDArray[np.int64]
) -> list[LogPoint]:
    """Return the share of steps that held each class, for each line."""
    part = np.arange(len(lines)) * min(len(lines), _MOST_POINTS) // len(lines)
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    history = []
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = lines[stop - 1]
        share = _shares(held_LK[start:stop], steps_L[start:stop])
        history.append(LogPoint(int(last["step"]), int(last.get("epoch", 0)), share))
    return history


LOG = "log.jsonl"
_NUMBERS = ("loss", "learning_rate", "miou")
_MOST_STEPS = 1 << 53
_FORMAT = 2


class RunLog:
    """Log of a run directory; does not import TensorFlow.

    Attributes:
        path: the file, which may be missing.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / LOG

    def records(self) -> list[dict[str, Any]]:
        """Return all undamaged records, oldest first; none if there is no log.

        Raises:
            CheckpointError: the log is unreadable or of another format.
        """
        with failing(CheckpointError, self.path, "cannot read it"):
            return list(log_records(self.path)) if self.path.exists() else []

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record as a line.

        Raises:
            OutputError: the log cannot be written.
        """
        with failing(OutputError, self.path, "cannot write it", "is the disk full?"):
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(log_line(record))
            except FileNotFoundError:
                raise OutputError(
                    self.path.parent, "the folder of the run is gone: it was moved or removed meanwhile"
                ) from None

    def rewind(self, step: int, *, validated: bool) -> None:
        """Remove records that will be made again: those after a step, and its validation if not done."""
        remaining = [
            record
            for record in self.records()
            if record["step"] < step or (record["step"] == step and (validated or "miou" not in record))
        ]
        write_whole(self.path, "".join(map(log_line, remaining)).encode())


def log_line(record: Mapping[str, Any]) -> str:
    """Return the log line of a record, which must have a `step`."""
    return seal(json.dumps({"format": _FORMAT, **record})) + "\n"


def log_records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the undamaged records of a log in order.

    Raises:
        OSError: the log cannot be read.
        CheckpointError: an undamaged line is of another format.
    """
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        record = unseal(line)
        if record is None:
            continue
        if (version := record.pop("format", None)) != _FORMAT:
            raise CheckpointError(f"{file}, line {number}: {other_format(_FORMAT, version)}")
        if _is_record(record):
            yield record


def _is_record(record: Mapping[str, Any]) -> bool:
    """Return True if a record has valid types and ranges for drawing and rewinding a log."""
    step, iou = record.get("step"), record.get("iou") or {}
    return (
        type(step) is int
        and 0 <= step < _MOST_STEPS
        and isinstance(iou, dict)
        and all(_is_number(value) for value in (*iou.values(), *map(record.get, _NUMBERS)))
    )


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, float) or (type(value) is int and abs(value) < _MOST_STEPS)
