"""Sections in processes of their own, each with a limit: beyond it they and their children are killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .bench import Place
from .figures import Figure, Section, Value, read_line
from .sections import SECTIONS

ROOT = Path(__file__).resolve().parents[3]
_END = ""


@dataclass(frozen=True)
class Task:
    """Attributes:
    names: of the sections of one process, one after the other.
    limits: seconds that each may take.
    """

    names: Sequence[str]
    place: Place
    cards: int
    tiny: bool
    limits: Mapping[str, float]


def run(task: Task, known: dict[str, Value]) -> Iterator[Section]:
    """Each section as soon as it has ended; `known` grows with what they find.

    After a section that was killed, or that ended its process, the others get a new one.
    """
    left = list(task.names)
    while left:
        for section in _process(tuple(left), task, known):
            left.remove(section.name)
            known.update({figure.name: figure.value for figure in section.figures})
            yield section


def _process(names: Sequence[str], task: Task, known: Mapping[str, Value]) -> Iterator[Section]:
    """The sections that one process gets through, and the one that ends it."""
    with tempfile.TemporaryDirectory(prefix="segmenter-gpu-", ignore_cleanup_errors=True) as folder:
        environment = os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1"}
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                command(names, task, Path(folder), known), cwd=ROOT, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=errors, errors="replace", start_new_session=True,
            )  # fmt: skip
            try:
                yield from _sections(process, names, task, errors)
            finally:
                kill(process)


def command(names: Sequence[str], task: Task, folder: Path, known: Mapping[str, Value]) -> list[str]:
    """The call of a process of sections (`sections.main`)."""
    code = f"import sys; from {__package__}.sections import main; sys.exit(main())"
    call = [sys.executable, "-c", code, *names, "--place", task.place]
    call += ["--cards", str(task.cards), "--folder", str(folder), "--known", json.dumps(known)]
    return call + ["--tiny"] * task.tiny


def _sections(
    process: subprocess.Popen[str], names: Sequence[str], task: Task, errors: IO[str]
) -> Iterator[Section]:
    assert process.stdout is not None
    lines = _lines(process.stdout)
    for name in names:
        section = Section(name, task.limits[name], is_law=SECTIONS[name].is_law)
        started = time.monotonic()
        ended = _follow(section, lines, started)
        section.seconds = time.monotonic() - started
        if ended == "time":
            section.cut_off, section.fault = True, f"not done within {section.limit:.0f} s"
        elif ended == "process":
            code = process.wait()
            section.fault = f"its process ended with {_meaning(code)}: {_last_line(errors)}"
        yield section
        if ended != "section":
            return


def _follow(section: Section, lines: queue.Queue[str], started: float) -> str:
    """Collect what the section finds; what ended first: the section, its time or its process."""
    while True:
        rest = started + section.limit - time.monotonic()
        try:
            line = lines.get(timeout=max(rest, 0.01))
        except queue.Empty:
            return "time"
        if line == _END:
            return "process"
        found = read_line(line)
        if found is None or found[0] != section.name:
            continue
        content = found[1]
        if isinstance(content, Figure):
            section.figures.append(content)
        elif content.startswith("failed: "):
            section.fault = content.removeprefix("failed: ")
            return "section"
        elif content == "done":
            return "section"


def _lines(stream: IO[str]) -> queue.Queue[str]:
    """A process's lines as they come; an empty one at its end."""
    found: queue.Queue[str] = queue.Queue()

    def read() -> None:
        with stream:
            for line in stream:
                found.put(line)
        found.put(_END)

    threading.Thread(target=read, name="lines", daemon=True).start()
    return found


def kill(process: subprocess.Popen[str]) -> None:
    """The process and all that it has started, which are in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _meaning(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1] if lines else "it said nothing"
