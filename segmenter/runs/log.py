"""Training log of a run, log.jsonl: one JSON object with checksum a line; damaged lines are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from segmenter.base.errors import CheckpointError, OutputError, failing
from segmenter.base.files import write_whole
from segmenter.base.sealed import other_format, sealed, unsealed

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
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(log_line(record))
        except OSError as error:
            if not self.path.parent.is_dir():
                raise OutputError(
                    self.path.parent, "the folder of the run is gone: it was moved or removed meanwhile"
                ) from None
            raise OutputError(self.path, f"cannot write it: {error.strerror}; is the disk full?") from None

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
    return sealed(json.dumps({"format": _FORMAT, **record})) + "\n"


def log_records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the undamaged records of a log in order.

    Raises:
        OSError: the log cannot be read.
        CheckpointError: an undamaged line is of another format.
    """
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        record = unsealed(line)
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
