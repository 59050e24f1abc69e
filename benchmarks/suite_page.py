"""Table and plots of all benchmarks, from what their calls printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.page import table
from benchmarks.suite import LEFT_OUT, Call, Entry

PLOTS = "cost.png"
HEAD = ("benchmark", "case", "figure", "median", "from … to", "calls", "clock, s", "processor, s")


def lines(head: Mapping[str, str], calls: Sequence[tuple[Entry, Call]], plots: str | None) -> Iterator[str]:
    """The page.

    Args:
        plots: name of the picture, where there is one.
    """
    yield "# Benchmarks"
    yield ""
    yield "; ".join(f"{key}: {value}" for key, value in head.items())
    yield ""
    yield "A `ratio` is to the baseline that a benchmark runs by turns with what it measures. Clock and"
    yield "processor are of a whole call, with imports and data; other work disturbs the latter least."
    yield ""
    yield from table(HEAD, rows(calls), words=3)
    if plots is not None:
        yield ""
        yield f"![cost against work]({plots})"
        yield ""
        yield from (f"- {text}" for text in growths(calls))
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
        for line in _worst(entry, call) if entry.worst else call.lines:
            case = _case(entry, call, line)
            for name in entry.shown or _numbers(line):
                if name in line:
                    found.setdefault((case, name), []).append(line[name])
    yield from ((case, name, values) for (case, name), values in found.items())


def _worst(entry: Entry, call: Call) -> list[dict[str, Any]]:
    worst = {name: max((line[name] for line in call.lines), default=math.nan) for name in entry.shown}
    return [worst | {"benchmark": entry.name}]


def _case(entry: Entry, call: Call, line: Mapping[str, Any]) -> str:
    if entry.worst:
        return f"worst of {len(call.lines)}"
    if call.value is not None and entry.sweep is not None:
        return f"{entry.sweep.option.removeprefix('--')} {call.value:,}"
    return ", ".join(str(line[key]) for key in entry.case if key in line)


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


# ------------------------------------------------------------------------------------------ plots


Points = dict[float, list[float]]
"""Work → the cost in each call."""


def points(entry: Entry, calls: Iterable[Call], *, baseline: bool = False) -> Points:
    """Of a sweep."""
    assert entry.sweep is not None
    of = entry.sweep.baseline if baseline else entry.sweep.cost
    found: Points = {}
    for call in calls:
        for line in call.lines:
            # A figure may be missing, as where the baseline is not installed.
            with suppress(KeyError):
                if of is None or call.value is None:
                    continue
                work, cost = entry.sweep.work(call.value, line), of(call.value, line)
                found.setdefault(work, []).append(cost)
    return dict(sorted(found.items()))


def exponent(found: Points) -> float:
    """p of cost ∝ work^p, by least squares on the logarithms of the smallest: 1 is linear."""
    xs, ys = ([math.log(v) for v in values] for values in (found, map(min, found.values())))
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


def swept(calls: Sequence[tuple[Entry, Call]]) -> list[tuple[Entry, list[Call]]]:
    """Entries with a sweep of at least two points that did not fail."""
    found = [(e, own) for e, own in _by_entry(calls) if e.sweep is not None and not any(c.fault for c in own)]
    return [(entry, own) for entry, own in found if len(points(entry, own)) > 1]


def growths(calls: Sequence[tuple[Entry, Call]]) -> Iterator[str]:
    """How each cost grows, in words."""
    for entry, own in swept(calls):
        assert entry.sweep is not None
        found = points(entry, own)
        work = list(found)
        cost = entry.sweep.unit.partition(",")[0]
        yield (
            f"{entry.sweep.title}: {cost} ∝ {entry.sweep.of}^{exponent(found):.2f} "
            f"from {work[0]:,.4g} to {work[-1]:,.4g} {entry.sweep.of}"
        )


def draw(calls: Sequence[tuple[Entry, Call]], path: Path) -> None:
    """Cost against work, a panel for each sweep: smallest and largest of the calls, a line through 0.

    The smallest is what other work on the machine has disturbed least.
    """
    there = swept(calls)
    if not there:
        return
    from matplotlib.figure import Figure as Drawing

    columns = min(2, len(there))
    down = -(-len(there) // columns)
    drawing = Drawing(figsize=(5.2 * columns, 3.6 * down), layout="constrained")
    axes = drawing.subplots(down, columns, squeeze=False).flatten()
    for axis, (entry, own) in zip(axes, there, strict=False):
        _panel(axis, entry, own)
    for axis in axes[len(there) :]:
        axis.set_axis_off()
    drawing.savefig(path, dpi=110)


def _panel(axis: Any, entry: Entry, calls: Sequence[Call]) -> None:
    assert entry.sweep is not None
    for label, colour, baseline in (("measured", "#1f5fa8", False), ("baseline", "#8a8a8a", True)):
        found = points(entry, calls, baseline=baseline)
        if not found:
            continue
        work, cost = list(found), [min(values) for values in found.values()]
        above = [max(values) - c for c, values in zip(cost, found.values(), strict=True)]
        axis.errorbar(work, cost, ([0.0] * len(cost), above), fmt="o", color=colour, capsize=3, label=label)
        slope = cost[-1] / work[-1]
        axis.plot(
            [0, work[-1]], [0, cost[-1]], color=colour, linewidth=1, alpha=0.6, label=f"{slope:.3g} each"
        )
    axis.set_title(entry.sweep.title, fontsize=10)
    axis.set_xlabel(entry.sweep.of)
    axis.set_ylabel(entry.sweep.unit)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False)
