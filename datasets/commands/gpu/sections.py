"""Sections of `segmenter gpu`: their shares of the time, and their processes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO

from segmenter.base.errors import SegmenterError

from .bench import TINY, Bench, Place, Sizes
from .figures import Figure, Section, Value, line_of, read_line

ROOT = Path(__file__).resolve().parents[3]
_LAW_LIMIT = 600.0


@dataclass(frozen=True)
class Entry:
    """A section of the command.

    Attributes:
        module: module of this package, whose `figures` yields the results.
        share: share of the time, in seconds of ten minutes.
        is_law: True if it checks laws of the program, without a time share.
    """

    module: str
    share: float
    is_law: bool = False

    def limit(self, minutes: float, whole: float) -> float:
        """Return the section's time limit in seconds, for `minutes` in all; `whole`: sum of all shares."""
        return _LAW_LIMIT if self.is_law else 60 * minutes * self.share / whole


SECTIONS = {
    "facts": Entry("facts", 30),
    "collectives": Entry("collectives", 45),
    "equivalence": Entry("equivalence", 120, is_law=True),
    "memory": Entry("memory", 60),
    "step": Entry("step", 180),
    "input": Entry("feed", 45),
    "prediction": Entry("prediction", 50),
    "resume": Entry("resume", 70, is_law=True),
}
"""In running order: the input is compared with the step's need."""


@dataclass(frozen=True)
class Task:
    """A section, its place, and its time limit in seconds."""

    name: str
    place: Place
    cards: int
    limit: float


def figures_of(name: str, bench: Bench) -> Iterator[Figure]:
    """Yield the figures of a section."""
    figures: Callable[[Bench], Iterator[Figure]] = import_module(
        f".{SECTIONS[name].module}", __package__
    ).figures
    return figures(bench)


def run(task: Task, known: Mapping[str, Value]) -> Section:
    """Run a section in a separate process; at its limit, kill it with all its child processes."""
    section = Section(task.name, task.limit, is_law=SECTIONS[task.name].is_law)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="segmenter-gpu-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        environment = os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1"}
        process = subprocess.Popen(
            command(task, Path(folder), known), cwd=ROOT, env=environment, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            if code := process.wait(task.limit):
                how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
                section.fault = f"its process ended with {how}: {_last_line(errors)}"
        except subprocess.TimeoutExpired:
            section.cut_off, section.fault = True, f"not done within {task.limit:.0f} s"
        finally:
            kill(process)
        output.seek(0)
        section.figures = [figure for line in output if (figure := read_line(line)) is not None]
    section.seconds = time.monotonic() - started
    return section


def run_here(task: Task, known: Mapping[str, Value]) -> Section:
    """Run a section with tiny sizes in this process, so that TensorFlow is imported only once."""
    section = Section(task.name, task.limit, is_law=SECTIONS[task.name].is_law)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="segmenter-gpu-", ignore_cleanup_errors=True) as folder:
        try:
            section.figures += figures_of(task.name, Bench(task.place, task.cards, TINY, Path(folder), known))
        except SegmenterError as error:
            section.fault = str(error)
    section.seconds = time.monotonic() - started
    return section


def command(task: Task, folder: Path, known: Mapping[str, Value]) -> list[str]:
    """Return the command line of a section's process (`main`)."""
    code = f"import sys; from {__package__}.sections import main; sys.exit(main())"
    call = [sys.executable, "-c", code, task.name, "--place", task.place, "--cards", str(task.cards)]
    return [*call, "--folder", str(folder), "--known", json.dumps(known)]


def main() -> str | None:
    """Run a section in this process and print its figures, a line each; return the reason of an early end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("--place", choices=["cards", "parts", "logical"])
    parser.add_argument("--cards", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--known", type=json.loads)
    given = parser.parse_args()
    try:
        for figure in figures_of(
            given.name, Bench(given.place, given.cards, Sizes(), given.folder, given.known)
        ):
            print(line_of(figure), flush=True)
    except SegmenterError as error:
        return str(error)
    return None


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all its children, which are in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1] if lines else "it said nothing"
