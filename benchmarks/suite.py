"""Table of benchmarks: the arguments of each, in full and quickly, and the figures that are shown.

Each prints JSON lines, its baseline in the same run and in turns with it. Short ones are called several
times, all of them in each round, so that what else the machine does in some minutes falls on none alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEFT_OUT = {
    "export_table": "a table of studies/measured.md: an hour or two",
    "model_table": "the tables of studies/models.md and docs/models.md",
    "gpu": "on a GPU server",
    "mutants": "hours: `make mutants`",
}
"""Not part of the suite, but run by hand: `python -m benchmarks.NAME`."""
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A benchmark.

    Attributes:
        name: of its module, after `benchmarks.`.
        shown: figures of its lines that the table shows; all others are in bench.json.
        full, quick: arguments; None: not part of that.
        rounds: calls of a short benchmark; 1 for a long one.
        case: keys that tell its lines apart.
    """

    name: str
    shown: tuple[str, ...]
    full: tuple[str, ...] | None = ()
    quick: tuple[str, ...] | None = None
    rounds: int = 1
    case: tuple[str, ...] = ()

    def arguments(self, *, quick: bool) -> tuple[str, ...] | None:
        """Return its arguments; None if it is not part of that."""
        return self.quick if quick else self.full


_MAPPED = ("free_model_over_rasterio", "free_model_Mpixel_s", "unet_over_compiled_model")

ENTRIES = (
    Entry(
        "collectives",
        ("collectives_before", "collectives_after", "time_after_of_before"),
        quick=("--steps", "0"),  # counted only
    ),
    Entry(
        "planning",
        ("seconds", "ratio", "peak_bytes_per_tile"),
        quick=("--repeats", "1", "--tiles", "100000"),
        case=("tiles", "classes"),
    ),
    Entry("counting", ("counting_seconds", "ratio"), quick=("--rounds", "3"), rounds=2),
    Entry("pipeline", ("tiles_per_second", "ratio"), quick=("--tiles", "32", "--batch", "16"), rounds=2),
    Entry("reading_tiles", ("files", "large"), quick=("--tiles", "64", "--side", "2048", "--rounds", "2")),
    Entry("prediction", (*_MAPPED, "unet_Mpixel_s"), quick=("--unet-side", "600", "--repeat", "1"), rounds=2),
    Entry("exported", (), quick=("--width", "8", "--side", "256", "--repeat", "1")),
    Entry("overhead", ("ratio",), quick=("--steps", "8", "--rounds", "3"), rounds=2),
    Entry("augmentation", ()),
    Entry("memory", ("measured_MiB_per_image", "formula_MiB_per_image", "ratio"), quick=()),
    # 20,000 pixels wide and 100,000 high in full: python -m benchmarks.prediction_memory
    Entry("prediction_memory", (), ("--width", "4000", "--heights", "4000", "20000")),
    Entry("seams", ()),
)


@dataclass
class Call:
    """One call of a benchmark.

    Attributes:
        seconds, processor: of the whole process with its children, by the clock and of processors.
        fault: its last line on stderr, if it failed.
    """

    name: str
    arguments: tuple[str, ...]
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    processor: float = 0.0
    fault: str = ""


def chosen(only: Sequence[str], *, quick: bool) -> list[Entry]:
    """Return the entries that are part of it, in order."""
    return [e for e in ENTRIES if e.arguments(quick=quick) is not None and (not only or e.name in only)]


def run(entries: Sequence[Entry], rounds: int | None, *, quick: bool) -> Iterator[tuple[Entry, Call]]:
    """Yield every call, round by round; a benchmark that failed is not called again.

    Args:
        rounds: of short benchmarks; None: their own.
    """
    failed: set[str] = set()
    most = max((_rounds(entry, rounds) for entry in entries), default=0)
    for number in range(most):
        for entry in entries:
            if number < _rounds(entry, rounds) and entry.name not in failed:
                call = _called(entry.name, entry.arguments(quick=quick) or ())
                if call.fault:
                    failed.add(entry.name)
                yield entry, call


def _rounds(entry: Entry, asked: int | None) -> int:
    return asked if asked is not None and entry.rounds > 1 else entry.rounds


def _called(name: str, arguments: tuple[str, ...]) -> Call:
    call = Call(name, arguments)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command(name, arguments), stdout=out, stderr=errors)
        try:
            _, status, used = os.wait4(process.pid, 0)  # with the children that it waited for
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        call.seconds, call.processor = time.perf_counter() - started, used.ru_utime + used.ru_stime
        out.seek(0)
        errors.seek(0)
        call.lines = [json.loads(line) for line in out if line.startswith("{")]
        if process.returncode:
            said = [line.strip() for line in errors if line.strip()] or ["it said nothing"]
            call.fault = f"exit code {process.returncode}: {said[-1]}"
    return call


def command(name: str, arguments: Sequence[str]) -> list[str]:
    """The call of a benchmark, from the root of the repository."""
    return [sys.executable, "-m", f"benchmarks.{name}", *arguments]
