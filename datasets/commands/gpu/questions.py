"""Questions of `segmenter gpu` in order of value, and the process that answers each, with a bound in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal

from segmenter.base.errors import SegmenterError

from .bench import Bench, Place
from .figures import Figure, QuestionAnswer, line_of, read_line

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("Same bits", "Speed", "Training", "Maps", "Several cards")
"""Lines of the verdict."""


@dataclass(frozen=True)
class Question:
    """A question about the machine.

    Attributes:
        asks: it, for a person.
        part: line of the verdict that it belongs to; empty: none.
        where: module, of this package if it begins with a dot, whose `figures` answers it.
        seconds: bound in ten minutes.
        devices: `one`, `all` of several, or `parts` of the only GPU.
        options: further arguments of `figures`.
        on_card: True if a CPU cannot answer it.
    """

    name: str
    asks: str
    part: str
    where: str
    seconds: float
    devices: Literal["one", "all", "parts"] = "one"
    options: Mapping[str, Any] = field(default_factory=dict)
    on_card: bool = False


QUESTIONS = (
    Question("machine", "What is this machine?", "", ".facts", 20),
    Question(
        "repeat", "Does one card repeat a training, and resume it, bit for bit?", PARTS[0], ".repeat", 200
    ),
    Question(
        "chance", "Can that test fail: does it without determinism?", PARTS[0], ".repeat", 90,
        options={"deterministic": False},
    ),
    Question("start", "What would segmenter start write here?", PARTS[1], ".planned", 40),
    Question("step", "How fast is its step, and how large?", PARTS[1], ".step", 60),
    Question("xla", "And compiled by XLA?", PARTS[1], ".step", 70, options={"xla": True}),
    Question("train", "How fast is a real training with its input?", PARTS[2], ".training", 90),
    Question("map", "How fast is a map, file to file?", PARTS[3], ".prediction", 60),
    Question("window", "Is a window's map that of the whole?", PARTS[3], ".windows", 40),
    Question(
        "repeat-unet", "Does it repeat a U-Net's training, which has max pooling?", PARTS[0], ".repeat", 100,
        options={"unet": True},
    ),
    Question("sums", "How fast do cards sum?", PARTS[4], ".collectives", 40, "all"),
    Question("cards", "How much of one is each of all cards?", PARTS[4], ".step", 80, "all"),
    Question("law-2", "Do all cards compute what one does?", PARTS[4], ".gradient", 80, "all"),
    Question(
        "xla-cards", "All cards compiled by XLA?", PARTS[4], ".step", 80, "all", {"xla": True}, on_card=True
    ),
    Question(
        "repeat-cards", "Do all cards repeat a training, and resume it, bit for bit?", PARTS[4], ".repeat",
        120, "all",
    ),
    Question(
        "law-2-parts", "Do parts of the card compute what it does? (information)", PARTS[4], ".gradient", 60,
        "parts", on_card=True,
    ),
    Question(
        "repeat-parts", "Do parts of the card repeat a training? (information)", PARTS[4], ".repeat", 90,
        "parts", on_card=True,
    ),
)  # fmt: skip
"""In order of value."""


def questions_for(names: tuple[str, ...], cards: int) -> list[Question]:
    """Return the questions that a machine with so many devices is asked."""
    fits = {"one": True, "all": cards > 1, "parts": cards == 1}
    return [each for each in QUESTIONS if fits[each.devices] and (not names or each.name in names)]


def beyond(question: Question, bench: Bench) -> bool:
    """Return True if these devices cannot answer a question."""
    return question.on_card and bench.place == "logical"


def limit_of(question: Question, later: list[Question], minutes: float, left: float) -> float:
    """Return the bound of a question: its own, or more where `left` seconds give all later ones theirs."""
    share = question.seconds / sum(each.seconds for each in (question, *later))
    return min(left, max(question.seconds * minutes / 10, left * share))


def answer(question: Question, bench: Bench, limit: float, told: Callable[[Figure], None]) -> QuestionAnswer:
    """Answer a question in a separate process, killed at its limit with all that it started, or with this.

    Args:
        told: called with each figure as soon as it is known.
    """
    found = QuestionAnswer(question.name, limit)
    if beyond(question, bench):
        found.fault = "it needs a GPU"
        return found
    place: Place = "parts" if question.devices == "parts" else bench.place
    own = replace(bench, place=place, several=question.devices != "one")
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command(question, own), cwd=ROOT, env=os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        reader = threading.Thread(target=_read, args=(process.stdout, found, told), daemon=True)
        reader.start()
        try:
            code = process.wait(limit)
            reader.join(1)
            if code:
                how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
                found.fault = f"its process ended with {how}: {_last_line(errors)}"
        except subprocess.TimeoutExpired:
            found.fault = f"not done within {limit:.0f} s"
        finally:
            kill(process)
        reader.join(10)
    found.seconds = time.monotonic() - started
    return found


def _read(output: IO[str] | None, found: QuestionAnswer, told: Callable[[Figure], None]) -> None:
    assert output is not None
    with output:
        for line in output:
            if (figure := read_line(line)) is not None:
                found.figures.append(figure)
                told(figure)


def command(question: Question, bench: Bench) -> list[str]:
    """Return the command line of a question's process (`main`)."""
    code = f"import sys; from {__name__} import main; sys.exit(main())"
    given = {"where": question.where, "options": dict(question.options), "bench": bench.as_json()}
    return [sys.executable, "-c", code, json.dumps(given)]


def main() -> str | None:
    """Answer a question in this process, a figure a line; return the reason of an early end."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    given = json.loads(sys.argv[1])
    module = import_module(given["where"], __package__)
    found: Iterator[Figure] = module.figures(Bench.from_json(given["bench"]), **given["options"])
    try:
        for figure in found:
            print(line_of(figure), flush=True)
    except SegmenterError as error:
        return str(error)
    return None


def _end_with_parent() -> None:
    """Kill this process's session when the command is gone, however it was killed: its pipe ends then."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process with all its children, which are in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1] if lines else "it said nothing"
