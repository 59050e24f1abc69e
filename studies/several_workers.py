"""Several training processes on this machine beside one device: law 2 over process borders.

Prints one JSON line a row: the largest difference of weights with BatchNorm's statistics, of the moments and
of the averaged weights after five steps, with 2 and 4 processes of one CPU device each. `--page` writes them
as a table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import renew
from tests.helpers.laboratory import LIMIT
from segmenter.devices.strategy import load_tensorflow
from tests.helpers.child_worker import ROWS, done
from tests.helpers.several_workers import workers
from tests.helpers.small_training import difference

COUNTS = (2, 4)
_MARK = "<!-- table: python -m studies.several_workers --page -->"
_KINDS = ("weights", "moments", "ema")


def main() -> int:
    """The exit code is 1 if a row in float64 is not exact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the table in this page")
    arguments = parser.parse_args()
    load_tensorflow(1)
    lines: list[dict[str, Any]] = [{"benchmark": "several_workers", "row": name} for name in ROWS]
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            for line, found in zip(lines, _differences(Path(folder), count), strict=True):
                line |= {f"{kind}_{count}": value for kind, value in found.items()}
    for line in lines:
        print(json.dumps(line), flush=True)
    if arguments.page:
        renew(arguments.page, _MARK, _table(lines))
    exact = [value for line in lines for key, value in line.items() if _of_float64(line, key)]
    return int(not all(value <= LIMIT for value in exact))


def _of_float64(line: dict[str, Any], key: str) -> bool:
    return key not in ("benchmark", "row") and not ROWS[line["row"]].mixed


def _differences(folder: Path, count: int) -> list[dict[str, float]]:
    """Of each row: kind → largest difference of any worker from one device, relative to the largest value."""
    with workers(folder, count, list(ROWS)) as running:
        codes = [worker.wait() for worker in running]
    if any(codes):
        raise RuntimeError(f"workers ended with {codes}")
    found = []
    for number, row in enumerate(ROWS.values()):
        one = done(row.made(), row.stack())
        others = [dict(np.load(folder / f"{i}-{number}.npz")) for i in range(count)]
        found.append({kind: max(_apart(one, other, kind) for other in others) for kind in _KINDS})
    return found


def _apart(one: dict[str, Any], other: dict[str, Any], kind: str) -> float:
    names = [name for name in one if name.startswith(kind)]
    if not names:
        return 0.0
    return float(f"{difference([other[n] for n in names], [one[n] for n in names]):.1e}")


def _table(lines: list[dict[str, Any]]) -> list[str]:
    keys = [f"{kind}_{count}" for count in COUNTS for kind in _KINDS]
    heads = [f"{kind}, {count} processes" for count in COUNTS for kind in _KINDS]
    table = [f"| row | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    return [*table, *(f"| {line['row']} | {' | '.join(f'{line[k]:.0e}' for k in keys)} |" for line in lines)]


if __name__ == "__main__":
    sys.exit(main())
