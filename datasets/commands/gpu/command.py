"""Questions to these GPUs, in order of value, within ten minutes: same bits, speed, training, maps.

Each question is a process with a bound in time. Each answer is printed and kept as soon as it is known: the
same command goes on with what is not answered. Exit code 0: all is shown; 1: a law does not hold; 3:
something is not shown, by name.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segmenter.base.errors import ConfigError, DeviceError, OutputError, SegmenterError, plain
from segmenter.base.files import write_whole
from segmenter.base.invocation import ParagraphFormatter, ToolParser, invocation
from segmenter.base.options import add_options, option, parse_options
from segmenter.base.terminal import stdout_for_json, warn
from segmenter.devices.setup import cards_listed, load_tensorflow, overlooked_gpus

from . import figures, questions
from .bench import Bench
from .figures import Figure, QuestionAnswer
from .page import PAGE, Pair, broken, missing, page, verdict

EXIT_BROKEN, EXIT_NOT_SHOWN = 1, 3
_LEAST_SECONDS = 5.0
"""With less left, a question is not asked."""
_NOT_ASKED, _INTERRUPTED = "no time was left", "it was interrupted"


@dataclass(frozen=True, kw_only=True)
class _Options:
    minutes: float = option(10.0, "time limit in minutes for all questions together (default: 10)")
    output: Path = option(
        Path("build/gpu"),
        f"folder for {PAGE} and {figures.JSON}, whose answers are kept (default: build/gpu)",
        "DIR",
    )
    only: tuple[str, ...] = option(
        (), "questions to ask (default: all): " + ", ".join(each.name for each in questions.QUESTIONS),
        "QUESTION", several=True,
        among=[each.name for each in questions.QUESTIONS],
    )  # fmt: skip
    tiny: bool = option(False, "use tiny models on CPU devices, to try the command itself without a GPU")
    logical_devices: int | None = option(
        None,
        "number of CPU devices to ask in place of GPUs (default: none; with --tiny 2): the laws are "
        "tested, speeds mean nothing, and it takes long",
        "N",
        among=range(1, 65),
    )
    json: bool = option(False, "print the answers as JSON on stdout, all other text on stderr")

    def __post_init__(self) -> None:
        if not 0 < self.minutes < 24 * 60:
            raise ConfigError(
                "--minutes", expected="more than 0 and less than a day", got=f"{self.minutes:g}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask what is not answered yet; return the exit code."""
    end = time.monotonic()
    given = parse_options(_parser(), _Options, arguments)
    end += 60 * given.minutes
    with stdout_for_json(given.json) as answer:
        logical = given.logical_devices or (2 if given.tiny else 0)
        cards = logical or _cards()
        try:
            given.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                "--output", expected="a folder that can be made", got=f"{given.output} ({error})"
            ) from None
        head = {
            "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
            "machine": platform.node(),
            "devices": f"{cards} logical CPU devices" if logical else f"{cards} GPUs",
            "tiny": given.tiny,
        }
        found = {each.question: each for each in figures.kept_answers(given.output, head)}
        session = _Session(given, head, cards, end, found)
        with tempfile.TemporaryDirectory(prefix="segmenter-gpu-", ignore_cleanup_errors=True) as folder:
            size = "tiny" if given.tiny else "processor" if logical else "card"
            session.ask(Bench("logical" if logical else "cards", cards, size, Path(folder)))
        code = session.print_verdict()
        if given.json:
            print(
                json.dumps({**session.content(), "exit": code}, ensure_ascii=False), file=answer, flush=True
            )
    return code


@dataclass
class _Session:
    """The questions of a call, and all answers that are known."""

    given: _Options
    head: dict[str, Any]
    cards: int
    end: float
    found: dict[str, QuestionAnswer]

    def pairs(self) -> list[Pair]:
        """Return questions of this machine and their answers."""
        asked = questions.questions_for((), self.cards)
        return [(each, self.found[each.name]) for each in asked if each.name in self.found]

    def ask(self, bench: Bench) -> None:
        """Ask what was never asked, then again what is not shown; keep each figure as soon as it is known."""
        wanted = questions.questions_for(self.given.only, self.cards)
        kept = {each.name for each in wanted if each.name in self.found}
        again = [each for each in wanted if each.name in kept and self.found[each.name].fault]
        waiting = [each for each in wanted if each.name not in kept] + again
        while waiting:
            question, *waiting = waiting
            left = self.end - time.monotonic()
            if left < _LEAST_SECONDS and not questions.beyond(question, bench):
                self.found.setdefault(question.name, QuestionAnswer(question.name, fault=_NOT_ASKED))
                continue
            print(f"{question.name}: {question.asks}", flush=True)
            current = self.found[question.name] = QuestionAnswer(question.name, fault=_INTERRUPTED)
            self.keep()
            known = {f.name: f.value for each in self.found.values() for f in each.figures}

            def told(figure: Figure, current: QuestionAnswer = current) -> None:
                current.figures.append(figure)
                self.keep()
                print(f"  {plain(_line(figure))}", flush=True)

            later = [each for each in waiting if not questions.beyond(each, bench)]
            limit = questions.limit_of(question, later, self.given.minutes, left)
            answer = questions.answer(question, replace(bench, known=known), limit, told)
            self.found[question.name] = answer
            if answer.fault:
                print(f"  not shown: {plain(answer.fault)}", flush=True)
            self.keep()
            self.write_page()
        self.keep()

    def content(self) -> dict[str, Any]:
        """Return what gpu.json holds."""
        return {
            **figures.content_of(self.head, self.found.values()),
            "verdict": dict(verdict(self.pairs(), self.cards)),
            "broken": broken(self.pairs()),
            "not_shown": missing(self.pairs()),
        }

    def keep(self) -> None:
        """Write gpu.json."""
        figures.keep(self.given.output, self.content())

    def write_page(self) -> str:
        """Write gpu.html; return why it could not be: without its extra, the answers are worth the most."""
        try:
            html = page(self.head, self.pairs(), self.cards)
        except SegmenterError as error:
            return str(error)
        write_whole(self.given.output / PAGE, html.encode())
        return ""

    def print_verdict(self) -> int:
        """Print the verdict; return the exit code of the questions that were wanted."""
        names = {each.name for each in questions.questions_for(self.given.only, self.cards)}
        pairs = [(question, answer) for question, answer in self.pairs() if question.name in names]
        print()
        for part, text in verdict(self.pairs(), self.cards):
            print(plain(f"{part:<14} {text}"))
        if why := self.write_page():
            warn(f"{PAGE} is not written: {why}")
        print(plain(f"{self.given.output}: all figures, in {PAGE} and {figures.JSON}"), flush=True)
        wrong, gaps = broken(pairs), missing(pairs)
        if wrong:
            print(plain(f"a law does not hold: {', '.join(wrong)}"), file=sys.stderr)
        if gaps:
            print(plain(f"not shown: {', '.join(gaps)}"), file=sys.stderr)
        return EXIT_BROKEN if wrong else EXIT_NOT_SHOWN if gaps else 0


def _line(figure: Figure) -> str:
    notes = [f"expected {figure.expected}" if figure.expected else "", figure.note]
    word = "  DOES NOT HOLD" if figure.law and figure.holds is False else ""
    text = "; ".join(note for note in notes if note)
    return f"{figure.name}: {figure.shown}{f' ({text})' if text else ''}{word}"


_CALLS = {
    "": "ask all questions, in ten minutes",
    "--only step train --minutes 5": "ask two of them",
    "--tiny": "try the command without a GPU",
}


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=invocation("gpu"),
        description=__doc__,
        formatter_class=ParagraphFormatter,
    )
    parser.calls = _CALLS
    return add_options(parser, _Options)


def _cards() -> int:
    """Return the number of GPUs that TensorFlow finds.

    Raises:
        DeviceError: there is no GPU.
    """
    load_tensorflow()
    import tensorflow as tf

    if count := len(tf.config.list_physical_devices("GPU")):
        return count
    why = overlooked_gpus() or (
        "this machine has none" if not cards_listed() else "CUDA_VISIBLE_DEVICES hides them all"
    )
    raise DeviceError(
        invocation("gpu"),
        expected=f"an NVIDIA GPU, found none: {why}",
        remedy="--tiny tries the command on a CPU",
    )
