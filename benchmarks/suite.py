"""All benchmarks as a table: what each is called with, in full and quickly, and what of its lines is shown.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = "{data}"
"""In an argument: the folder of made Potsdam-like scenes."""
LEFT_OUT = {
    "export_table": "the table of docs/export.md: an hour or two",
    "encoder_equivalence": "every pair of encoder and decoder: an hour",
    "model_table": "the tables of studies/models.md and docs/models.md",
    "gpu": "on a GPU server",
    "mutants": "hours: `make mutants`",
}
"""Not part of the suite, but run by hand: `python -m benchmarks.NAME`."""
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """One option of a benchmark with several values: work that grows.

    Attributes:
        of, unit: names of the work and of its cost.
        work, cost: of a value and the line that the benchmark printed for it.
        baseline: the same cost of the baseline, where the line has it.
    """

    option: str
    values: tuple[int, ...]
    title: str
    of: str
    unit: str
    work: Callable[[int, Line], float]
    cost: Callable[[int, Line], float]
    baseline: Callable[[int, Line], float] | None = None


@dataclass(frozen=True)
class Entry:
    """A benchmark.

    Attributes:
        name: of its module, after `benchmarks.`.
        shown: figures of its lines that the table shows; all others are in bench.json.
        full, quick: arguments; None: not part of that.
        rounds: calls of a short benchmark; 1 for a long one.
        case: keys that tell its lines apart.
        worst: one row for all its lines: of each figure the largest.
    """

    name: str
    shown: tuple[str, ...]
    full: tuple[str, ...] | None = ()
    quick: tuple[str, ...] | None = None
    rounds: int = 1
    case: tuple[str, ...] = ()
    sweep: Sweep | None = None
    worst: bool = False

    def calls(self, *, quick: bool) -> list[tuple[str, ...]]:
        """The arguments of each call of a round; none if it is not part of it."""
        given = self.quick if quick else self.full
        if given is None:
            return []
        if self.sweep is None:
            return [given]
        return [(*given, self.sweep.option, str(value)) for value in self.sweep.values]


PLANNING = Sweep(
    "--tiles", (10_000, 100_000, 1_000_000), "Planning an epoch, 8 classes", "tiles", "time, s",
    lambda tiles, _: tiles, lambda _, line: line["seconds"], lambda _, line: line["baseline_seconds"],
)  # fmt: skip
COUNTING = Sweep(
    "--classes", (2, 8, 32), "Counting the classes of a batch", "classes", "time, s",
    lambda classes, _: classes, lambda _, line: line["counting_seconds"],
)  # fmt: skip
PREDICTION = Sweep(
    "--side", (1024, 2048, 4096), "Mapping a file, model that costs nothing", "megapixels", "time, s",
    lambda side, _: side**2 / 1e6, lambda side, line: side**2 / 1e6 / line["free_model_Mpixel_s"],
    lambda side, line: side**2 / 1e6 / line["free_model_Mpixel_s"] / line["free_model_over_rasterio"],
)  # fmt: skip
FED = 32
"""Tiles of an epoch of the input's sweep."""
INPUT = Sweep(
    "--epochs", (8, 16, 32), "Reading and augmenting tiles", "tiles", "time, s",
    lambda epochs, _: epochs * FED, lambda epochs, line: epochs * FED / line["tiles_per_second"],
    lambda epochs, line: epochs * FED / line["plain_reads_per_second"],
)  # fmt: skip
_TILES = ("--tiles", str(FED), "--batch", "16", "--rounds", "1")
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
        quick=("--repeats", "1"),
        rounds=3,
        sweep=PLANNING,
    ),
    Entry("counting", ("counting_seconds", "ratio"), quick=("--rounds", "3"), rounds=2, sweep=COUNTING),
    Entry("pipeline", ("tiles_per_second", "ratio"), _TILES, _TILES, rounds=2, sweep=INPUT),
    Entry("reading_tiles", ("files", "large"), quick=("--tiles", "64", "--side", "2048", "--rounds", "2")),
    Entry("remote_reading", ("files", "large"), quick=("--files", "16", "--side", "1024", "--tiles", "64")),
    Entry(
        "prediction",
        _MAPPED,
        ("--repeat", "3"),
        ("--unet-side", "600", "--repeat", "1"),
        rounds=2,
        sweep=PREDICTION,
    ),
    Entry("exported", (), quick=("--width", "8", "--side", "256", "--repeat", "1")),
    Entry("overhead", ("ratio",), quick=("--steps", "8", "--rounds", "3"), rounds=2),
    Entry("augmentation", ()),
    Entry("memory", ("measured_MiB_per_image", "formula_MiB_per_image", "ratio"), quick=()),
    Entry("equivalence", ("loss", "gradients", "weights", "statistics"), worst=True),
    Entry("scaling", ("measured",), quick=()),
    Entry("planning", ("seconds", "ratio", "peak_bytes_per_tile"), case=("tiles", "classes")),
    Entry("prediction", (*_MAPPED, "unet_Mpixel_s")),
    # 20,000 pixels wide and 100,000 high in full: python -m benchmarks.prediction_memory
    Entry("prediction_memory", (), ("--width", "4000", "--heights", "4000", "20000")),
    Entry("seams", ()),
)


@dataclass
class Call:
    """One call of a benchmark.

    Attributes:
        value: of the swept option.
        seconds, processor: of the whole process with its children, by the clock and of processors.
        fault: its last line on stderr, if it failed.
    """

    name: str
    arguments: tuple[str, ...]
    value: int | None
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    processor: float = 0.0
    fault: str = ""


def chosen(only: Sequence[str], *, quick: bool) -> list[Entry]:
    """Entries that are part of it, in order."""
    return [e for e in ENTRIES if e.calls(quick=quick) and (not only or e.name in only)]


def run(entries: Sequence[Entry], rounds: int | None, *, quick: bool) -> Iterator[tuple[Entry, Call]]:
    """Every call, round by round; a benchmark that failed is not called again.

    Args:
        rounds: of short benchmarks; None: their own.
    """
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        data = Path(folder) / "potsdam"
        failed: set[int] = set()
        most = max((_rounds(entry, rounds) for entry in entries), default=0)
        for number in range(most):
            for place, entry in enumerate(entries):
                for position, arguments in enumerate(entry.calls(quick=quick)):
                    if number >= _rounds(entry, rounds) or place in failed:
                        continue
                    value = entry.sweep.values[position] if entry.sweep is not None else None
                    call = _called(entry.name, arguments, value, data)
                    if call.fault:
                        failed.add(place)
                    yield entry, call


def _rounds(entry: Entry, asked: int | None) -> int:
    return asked if asked is not None and entry.rounds > 1 else entry.rounds


def _called(name: str, arguments: tuple[str, ...], value: int | None, data: Path) -> Call:
    call = Call(name, arguments, value)
    given = [word.replace(DATA, str(data)) for word in arguments]
    if list(arguments) != given and not data.exists():
        make = ["datasets", "make", "potsdam", str(data), "--scenes", "6", "--seed", "1", "--size", "1024"]
        subprocess.run([sys.executable, "-m", *make], check=True, capture_output=True)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command(name, given), stdout=out, stderr=errors)
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
