"""Laws and speed of a GPU server, in ten minutes, after `make setup GPU=1`.

Facts, collectives, equivalence (law 2), memory, the training step, input rate, prediction and resuming (law
3). Each section is a process with a time limit; gpu.md and gpu.json are written after each. Exit code 1 if a
law does not hold, 3 if one was not shown.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segmenter.base.errors import ConfigError, DeviceError, OutputError
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.options import add_options, option, parsed
from segmenter.devices.setup import cards_listed, load_tensorflow, overlooked_gpus

from . import figures, sections
from .bench import Place
from .figures import Section, Value
from .sections import SECTIONS, Task

LOGICAL = 4


@dataclass(frozen=True, kw_only=True)
class _Options:
    minutes: float = option(10.0, "for all sections but the laws (default: 10)")
    output: Path = option(Path("build/gpu"), "for gpu.md and gpu.json (default: build/gpu)", "DIR")
    only: tuple[str, ...] = option((), ", ".join(SECTIONS), "SECTION", several=True, among=SECTIONS)
    tiny: bool = option(
        False, "tiny models on four logical CPU devices: tries the command itself", one_of="on a CPU"
    )
    logical_devices: int | None = option(
        None,
        "all sizes on N devices of the CPU: shows the laws; speeds mean nothing, and take long",
        "N",
        among=range(1, 65),
        one_of="on a CPU",
    )

    def __post_init__(self) -> None:
        if not 0 < self.minutes < 24 * 60:
            raise ConfigError(
                "--minutes", expected="more than 0 and less than a day", got=f"{self.minutes:g}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections; return 1 if a law does not hold or a section failed.

    Return 3 if no law is broken, but one was not shown within its time limit.
    """
    given = parsed(_parser(), _Options, arguments)
    logical = given.logical_devices or (LOGICAL if given.tiny else 0)
    cards = logical or _cards()
    try:
        given.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            "--output", expected="a folder that can be made", got=f"{given.output} ({error})"
        ) from None
    names = [name for name in SECTIONS if not given.only or name in given.only]
    head: dict[str, Any] = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "machine": platform.node(),
        "devices": f"{cards} logical CPU devices" if logical else f"{cards} GPUs",
        "minutes": given.minutes,
        "tiny": given.tiny,
    }
    done: list[Section] = []
    known: dict[str, Value] = {}
    run = sections.run_here if given.tiny else sections.run
    for task in tasks(names, cards, given.minutes, logical=bool(logical)):
        done.append(run(task, known))
        known |= {each.name: each.value for each in done[-1].figures}
        figures.write(given.output, head, done)
        print(figures.line(done[-1]), flush=True)
    print(f"{given.output / figures.PAGE}: all figures; in {figures.JSON} too")
    for code, text, which in (
        (1, "a law does not hold, or a section could not be run", [s for s in done if s.fails]),
        (3, "a law was not shown", [s for s in done if s.not_shown]),
    ):
        if which:
            print(f"{text}: {', '.join(section.name for section in which)}", file=sys.stderr)
            return code
    return 0


def tasks(names: Sequence[str], cards: int, minutes: float, *, logical: bool = False) -> list[Task]:
    """Return the sections to run, with the place of each.

    On one card, the laws are checked on parts of it; on two or three cards, too few for four replicas, on the
    cards and on parts of one.
    """
    whole = sum(entry.share * len(places(name, cards)) for name, entry in SECTIONS.items())
    where: dict[str, list[Place]] = {n: ["logical"] if logical else places(n, cards) for n in names}
    return [Task(n, place, cards, SECTIONS[n].limit(minutes, whole)) for n in names for place in where[n]]


def places(name: str, cards: int) -> list[Place]:
    """Return the places in which a section computes."""
    if name not in ("collectives", "equivalence", "resume") or cards >= LOGICAL:
        return ["cards"]
    if name == "collectives":
        return ["cards"]
    return ["parts"] if cards == 1 or name == "resume" else ["cards", "parts"]


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=invocation("gpu"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
