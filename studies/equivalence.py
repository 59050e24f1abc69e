"""Equivalence of R replicas and one device: the matrix of law 2, in float64 on logical CPUs.

Prints one JSON line a row: the largest difference of loss, gradients, weights and BatchNorm statistics over
R = 2 and 4, and that of the naive variant that the row guards against. `--page` writes them as a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.page import renew
from tests.helpers.laboratory import KINDS, LIMIT
from segmenter.devices.strategy import load_tensorflow
from tests.helpers.naive import NAIVE, ROWS, SEEN, NaiveLaboratory

REPLICAS = (2, 4)
_MARK = "<!-- table: python -m studies.equivalence --page -->"


def main() -> int:
    """The exit code is 1 if a row is not exact, or does not see its naive variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the table in this page")
    arguments = parser.parse_args()
    four_devices()
    lines = []
    laboratory = NaiveLaboratory(ROWS)
    for name in ROWS:
        lines.append(_line(laboratory, name))
        print(json.dumps(lines[-1]), flush=True)
    if arguments.page:
        renew(arguments.page, _MARK, _table(lines))
    return int(not all(line["exact"] and line["seen"] for line in lines))


def four_devices() -> None:
    """Start TensorFlow with four logical CPU devices."""
    load_tensorflow(4)
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)


def _line(laboratory: NaiveLaboratory, name: str) -> dict[str, Any]:
    exact = [laboratory.differences(name, replicas) for replicas in REPLICAS]
    naive = [laboratory.naive(name, replicas) for replicas in REPLICAS]
    worst = _by_kind(max, exact)
    return {
        "benchmark": "equivalence",
        "row": name,
        **worst,
        "exact": all(value <= LIMIT for value in worst.values()),
        "naive": NAIVE[ROWS[name].naive],
        **{f"naive_{kind}": value for kind, value in _by_kind(min, naive).items()},
        "seen": all(max(values.values()) > SEEN for values in naive),
    }


def _by_kind(choose: Callable[[Iterable[float]], float], found: list[dict[str, float]]) -> dict[str, float]:
    """Of the differences over the numbers of replicas, the largest or the smallest, kind by kind."""
    return {kind: float(f"{choose(values[kind] for values in found):.1e}") for kind in KINDS}


def _table(lines: list[dict[str, Any]]) -> list[str]:
    head = f"| row | ignored | {' | '.join(KINDS)} | naive variant | its {' | its '.join(KINDS)} |"
    table = [head, "| --- | --- |" + " ---: |" * 4 + " --- |" + " ---: |" * 4]
    for line in lines:
        exact, naive = ([f"{line[p + kind]:.0e}" for kind in KINDS] for p in ("", "naive_"))
        ignored = "lopsided" if ROWS[line["row"]].lopsided else "none"
        table.append(f"| {' | '.join([line['row'], ignored, *exact, line['naive'], *naive])} |")
    return table


if __name__ == "__main__":
    sys.exit(main())
