"""Lines of log.jsonl: JSON objects with a checksum; a torn or damaged line counts as none.

Lines with neither format nor checksum are of an older program: they count where they have the shape of a
record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from segmenter.sealed import json_object, sealed, unsealed

_NUMBERS = ("loss", "learning_rate", "miou")
_MOST_STEPS = 1 << 53
_FORMAT = 2
_FRAME = ("format", "crc")


def log_line(record: Mapping[str, Any]) -> str:
    """The line of a record; it has a `step`."""
    return sealed(json.dumps({"format": _FORMAT, **record})) + "\n"


def log_records(file: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a log, in its order.

    Raises:
        OSError: it cannot be read.
    """
    for line in file.read_bytes().splitlines():
        record = _record(line)
        if record is not None and _is_record(record):
            yield record


def _record(line: bytes) -> dict[str, Any] | None:
    record = unsealed(line)
    if record is not None:
        return record if record.pop("format", None) == _FORMAT else None
    older = json_object(line)
    return older if older is not None and not any(key in older for key in _FRAME) else None


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether those who draw and rewind a log can take a record as it is."""
    step, iou = record.get("step"), record.get("iou") or {}
    return (
        type(step) is int
        and 0 <= step < _MOST_STEPS
        and isinstance(iou, dict)
        and all(_is_number(value) for value in (*iou.values(), *map(record.get, _NUMBERS)))
    )


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, float) or (type(value) is int and abs(value) < _MOST_STEPS)
