"""The sections of `segmenter gpu`, their shares of the time, and the process that runs them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from segmenter.base.errors import SegmenterError

from .bench import TINY, Bench, Place, Sizes
from .figures import Figure, Value, line_of

_LAW_LIMIT = 600.0


@dataclass(frozen=True)
class Entry:
    """Attributes:
    module: in this package, whose `figures` gives what it finds.
    share: of the time, in seconds of ten minutes.
    is_law: it shows laws of the program, and takes the time that it needs: tracing is one thread of Python.
    """

    module: str
    share: float
    is_law: bool = False

    def limit(self, minutes: float, whole: float) -> float:
        """Seconds that it may take of so many minutes; `whole`: the sum of all shares."""
        return _LAW_LIMIT if self.is_law else 60 * minutes * self.share / whole

    @property
    def figures(self) -> Callable[[Bench], Iterator[Figure]]:
        """Imported once it is asked for."""
        found: Callable[[Bench], Iterator[Figure]] = import_module(f".{self.module}", __package__).figures
        return found


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
"""In the order in which they run: the input is compared with what the step takes."""


def main() -> int:
    """Run sections in this process and print what they find, line by line (`figures.line_of`)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=SECTIONS)
    parser.add_argument("--place", choices=["cards", "parts", "logical"], required=True)
    parser.add_argument("--cards", type=int, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, required=True, help="for files of the work")
    parser.add_argument("--known", type=json.loads, default={}, help="figures so far, as JSON")
    given = parser.parse_args()
    for name in given.names:
        print(line_of(name, "begun"), flush=True)
        folder = given.folder / name
        folder.mkdir()
        try:
            for figure in found(name, given.place, given.cards, given.tiny, folder, given.known):
                print(line_of(name, figure), flush=True)
        except SegmenterError as error:
            print(line_of(name, f"failed: {error}"), flush=True)
            continue
        print(line_of(name, "done"), flush=True)
    return 0


def found(
    name: str, place: Place, cards: int, tiny: bool, folder: Path, known: dict[str, Value]
) -> Iterator[Figure]:
    """What a section finds; `known` grows with it."""
    bench = Bench(place, cards, TINY if tiny else Sizes(), folder, known)
    for figure in SECTIONS[name].figures(bench):
        known[figure.name] = figure.value
        yield figure
