"""A line of log.jsonl that is torn or damaged counts as none, whatever it looks like."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from segmenter.base.errors import OutputError
from segmenter.base.sealed import sealed
from segmenter.evaluation.learning_curves import learning_curves
from segmenter.runs.log import RunLog, log_line, log_records
from tests.helpers.made_runs import flipped
from tests.helpers.refusals import refused

RECORDS: list[dict[str, Any]] = [
    {"step": 20, "loss": 1.5, "learning_rate": 1e-3, "held_steps": [20, 3]},
    {"step": 30, "epoch": 1, "miou": 0.5, "iou": {"a": 0.25, "wäld": None}, "protocol": "p"},
    {"step": 50, "loss": math.inf},
]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("".join(map(log_line, RECORDS)))
    assert list(log_records(file)) == RECORDS
    for line, record in zip(file.read_text().splitlines(), RECORDS, strict=True):
        assert json.loads(line).items() >= record.items()


def test_each_flipped_bit_costs_at_most_its_line(tmp_path: Path) -> None:
    file, taken = tmp_path / "log.jsonl", 0
    first, middle, last = (log_line(record).encode() for record in RECORDS)
    for line in flipped(middle[:-1], 5):
        file.write_bytes(first + line + b"\n" + last)
        found = list(log_records(file))
        assert found in (RECORDS, RECORDS[::2])
        taken += len(found) == 3
    assert taken < 0.02 * 8 * len(middle) / 5


LINES = [
    *(b"[1]", b"3", b"{}", b'{"step": null}', b'{"step": "7"}', b'{"step": true}', b'{"step": -1}'),
    *(b'{"step": 1e400}', b'{"step": 1' + b"0" * 400 + b"}", b"\xff\x00{", b"[" * 10**5),
    *(b'{"step": 1, "loss": "high"}', b'{"step": 1, "iou": {"a": "b"}}', b'{"step": 1, "miou": [1]}'),
    *(b'{"step": 1, "loss": 1' + b"0" * 400 + b"}", b'{"step": 1, "loss"'),
    b'{"step": 4, "loss": 2.0}',  # a record but for its checksum
]


def test_what_is_no_record_is_none_with_and_without_a_checksum(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    first, second = (log_line(record).encode() for record in RECORDS[:2])
    for line in LINES:
        lines = [line]
        if line.startswith(b"{") and line.endswith(b"}") and len(line) > 2 and line is not LINES[-1]:
            lines.append(sealed('{"format": 2, ' + line[1:].decode()).encode())
        for each in lines:
            file.write_bytes(first + each + b"\n" + second + each)
            assert list(log_records(file)) == RECORDS[:2], each[:80]
    learning_curves(log_records(file), tmp_path / "curves.png")


def test_a_log_with_such_lines_is_rewound(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join([*LINES, *(log_line(record).strip().encode() for record in RECORDS)]))
    log = RunLog(tmp_path)
    assert RunLog(tmp_path / "none").records() == []
    log.rewind(30, validated=False)
    assert file.read_text() == log_line(RECORDS[0])
    log.append({"step": 40, "loss": 1.0})
    assert [record["step"] for record in log.records()] == [20, 40]


def test_a_run_whose_folder_is_removed_says_so(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run")
    with refused(OutputError, where="run", fault="folder"):
        log.append({"step": 1})
