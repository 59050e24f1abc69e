"""Table of all benchmarks, from what their calls printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.page import table
from benchmarks.suite import LEFT_OUT, Call, Entry

HEAD = ("benchmark", "case", "figure", "median", "from … to", "calls", "clock, s", "processor, s")


def lines(head: Mapping[str, str], calls: Sequence[tuple[Entry, Call]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Benchmarks"
    yield ""
    yield "; ".join(f"{key}: {value}" for key, value in head.items())
    yield ""
    yield "A `ratio` is to the baseline that a benchmark runs by turns with what it measures. Clock and"
    yield "processor are of a whole call, with imports and data; other work disturbs the latter least."
    yield ""
    yield from table(HEAD, rows(calls), words=3)
    yield ""
    yield (
        "Not part of it: "
        + "; ".join(f"`python -m benchmarks.{n}` ({why})" for n, why in LEFT_OUT.items())
        + "."
    )
    yield ""


def rows(calls: Sequence[tuple[Entry, Call]]) -> Iterator[list[str]]:
    """A row for each figure of each case; of a benchmark that failed, its error."""
    for entry, own in _by_entry(calls):
        spent = [f"{median(getattr(call, kind) for call in own):.1f}" for kind in ("seconds", "processor")]
        if faults := [call.fault for call in own if call.fault]:
            yield [entry.name, "", "**failed**", _cell(faults[0]), "", str(len(own)), *spent]
            continue
        for position, (case, name, values) in enumerate(_figures(entry, own)):
            found = _spread(values)
            yield [entry.name, case, name, *found, str(len(values)), *(spent if not position else ["", ""])]


def _by_entry(calls: Sequence[tuple[Entry, Call]]) -> Iterator[tuple[Entry, list[Call]]]:
    seen: dict[int, tuple[Entry, list[Call]]] = {}
    for entry, call in calls:
        seen.setdefault(id(entry), (entry, []))[1].append(call)
    yield from seen.values()


def _figures(entry: Entry, calls: Sequence[Call]) -> Iterator[tuple[str, str, list[Any]]]:
    """(case, figure, its values over the calls)."""
    found: dict[tuple[str, str], list[Any]] = {}
    for call in calls:
        for line in call.lines:
            case = ", ".join(str(line[key]) for key in entry.case if key in line)
            for name in entry.shown or _numbers(line):
                if name in line:
                    found.setdefault((case, name), []).append(line[name])
    yield from ((case, name, values) for (case, name), values in found.items())


def _numbers(line: Mapping[str, Any]) -> list[str]:
    """Of a benchmark without a choice of its own: the first numbers."""
    return [k for k, v in line.items() if isinstance(v, (int, float)) and not isinstance(v, bool)][:6]


def _spread(values: Sequence[Any]) -> tuple[str, str]:
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return _cell(str(values[-1])), ""
    between = f"{min(values):.4g} … {max(values):.4g}" if len(values) > 1 else ""
    return f"{median(values):.4g}", between


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
