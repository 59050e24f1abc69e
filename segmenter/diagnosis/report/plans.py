"""Charts that compare the plan with a plain shuffle, by batch size.

Shuffle and plan differ in colour and in pattern or symbol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from segmenter.base.errors import counted
from segmenter.diagnosis.data import Diagnosis, PlanFacts, Side
from segmenter.pages.layout import (
    FILLER,
    GREY,
    HOVER,
    PLAN,
    ROW,
    SHUFFLE,
    Data,
    axis,
    bars,
    layout,
    names_axis,
    percent_axis,
)
from segmenter.pages.parts import Chart, Figure, Table, lines, number, percent, plain

_SIDES = (("shuffle", "plain shuffle", SHUFFLE, "/"), ("plan", "plan", PLAN, ""))
_COSTS = (
    ("coverage_repeats", "repeats for coverage", PLAN, ""),
    ("repeats_bound", "no plan does with fewer", GREY, "x"),
    ("fillers", "fillers of the last batch", FILLER, "/"),
)
_READABLE = {"minsize": 9, "mode": "hide"}
_NUMBERED = 6  # with more batch sizes the bars are too thin for numbers


def made(diagnosis: Diagnosis) -> list[PlanFacts]:
    """Return the plans that were not refused."""
    return [plan for plan in diagnosis.plans if not plan.refused]


# ---------------------------------------------------------------------------------- bars by batch size


def _trace(
    plans: Sequence[PlanFacts], kind: Sequence[str], values: Sequence[float], texts: Sequence[str]
) -> Data:
    """Return one bar for each plan; `texts` are the numbers at their ends."""
    _, name, colour, pattern = kind
    hovers = [lines(f"{p.batch:,} tiles, {name}", text) for p, text in zip(plans, texts, strict=True)]
    stripes = {"shape": pattern, "bgcolor": colour, "fgcolor": "#ffffff", "solidity": 0.25}
    look = {"name": name, "marker": {"color": colour, "pattern": stripes}, "textangle": 0}
    labels = texts if len(plans) <= _NUMBERED else [""] * len(plans)
    return bars(values, labels, hovers, x=list(range(len(plans))), y=list(values), **look)


def _figure(plans: Sequence[PlanFacts], traces: Sequence[Data], yaxis: Data) -> Figure:
    ticks = {"tickvals": list(range(len(plans))), "ticktext": [f"{p.batch:,}" for p in plans]}
    x = axis("tiles in the batch", tickmode="array", showgrid=False, **ticks)
    look = layout(330, x, yaxis, showlegend=True, barmode="group", bargap=0.25, uniformtext=_READABLE)
    return {"data": list(traces), "layout": look}


def _beside(
    plans: Sequence[PlanFacts], value: Callable[[Side], float], text: Callable[[Side], str], yaxis: Data
) -> Figure:
    """Draw a bar of the shuffle and one of the plan for each batch size."""
    traces = [
        _trace(plans, kind, [value(p.side(kind[0])) for p in plans], [text(p.side(kind[0])) for p in plans])
        for kind in _SIDES
    ]
    return _figure(plans, traces, yaxis)


def _beside_table(plans: Sequence[PlanFacts], caption: str, text: Callable[[Side], str]) -> Table:
    rows = [[number(p.batch), text(p.shuffle), text(p.planned)] for p in plans]
    return Table(caption, ["Tiles in the batch", "shuffle", "plan"], rows)


def complete_steps(diagnosis: Diagnosis) -> Chart:
    """Draw the share of steps that hold all classes, by batch size."""
    plans = made(diagnosis)
    yaxis = percent_axis("steps that hold all classes", 115, dtick=25)
    figure = _beside(plans, lambda s: 100 * s.complete_steps, _complete, yaxis)
    worst = min(plans, key=lambda p: float(p.shuffle.complete_steps))
    title = (
        f"At {counted(worst.batch, 'tile')}, a shuffle has all classes in {_complete(worst.shuffle)} "
        f"of the steps, the plan in {_complete(worst.planned)}"
    )
    numbers = _beside_table(plans, "Steps that hold all classes", _complete)
    note = "Counted over one planned epoch, and over one epoch of a plain shuffle of the same tiles."
    return Chart("complete-steps", title, note, {"": figure}, numbers)


def _complete(side: Side) -> str:
    return percent(side.complete_steps)


def per_replica(diagnosis: Diagnosis, batch: int) -> Chart:
    """Draw the number of classes in each replica's share of a batch."""
    plans, most = made(diagnosis), len(diagnosis.forecast.classes)
    yaxis = axis("classes on each replica", range=[0, 1.15 * most], nticks=6)
    figure = _beside(plans, lambda s: float(s.classes_per_replica), _on_replica, yaxis)
    main = next(p for p in plans if p.batch == batch)
    title = (
        f"Of {batch:,} planned tiles, each of {counted(main.replicas, 'replica')} sees "
        f"{_on_replica(main.planned)} of {counted(most, 'class', 'classes')}"
    )
    numbers = _beside_table(plans, "Classes on each replica, on average", _on_replica)
    note = (
        "On average over an epoch. The promise is for the whole batch; within it, tiles are ordered so that "
        "each replica sees as many classes as they allow."
    )
    return Chart("per-replica", title, note, {"": figure}, numbers)


def _on_replica(side: Side) -> str:
    return f"{side.classes_per_replica:.2f}"


def repeats(diagnosis: Diagnosis) -> Chart:
    """Draw the cost of the plan: repeated tiles."""
    plans = made(diagnosis)
    values = {kind: [getattr(p, kind[0]) for p in plans] for kind in _COSTS}
    traces = [_trace(plans, kind, of_kind, [number(v) for v in of_kind]) for kind, of_kind in values.items()]
    top = max(1, *(max(of_kind) for of_kind in values.values()))
    figure = _figure(plans, traces, axis("tiles", range=[0, 1.15 * top], nticks=6, tickformat=",d"))
    costliest = max(plans, key=lambda p: int(p.coverage_repeats))
    title = "The plan repeats no tile for coverage"
    if costliest.coverage_repeats:
        title = (
            f"At {counted(costliest.batch, 'tile')}, the plan shows "
            f"{counted(costliest.coverage_repeats, 'tile')} again; "
            f"no plan does with fewer than {number(costliest.repeats_bound)}"
        )
    costs = zip(*values.values(), strict=True)
    rows = [[number(p.batch), number(p.steps), *map(number, of)] for p, of in zip(plans, costs, strict=True)]
    header = ["Tiles in the batch", "Steps", *(name for _, name, *_ in _COSTS)]
    numbers = Table("Tiles shown again in an epoch", header, rows)
    note = (
        "Every tile is used once in an epoch. A class in fewer tiles than there are steps needs some of them "
        "again; fillers complete the last batch, whatever the classes."
    )
    return Chart("repeats", title, note, {"": figure}, numbers)


# ------------------------------------------------------------------------------- gaps between sightings


def gaps(diagnosis: Diagnosis, batch: int) -> Chart:
    """Draw the longest absence of each class in steps; a reader chooses the batch size."""
    plans, ids, name = made(diagnosis), diagnosis.rarest_first, diagnosis.names
    figures = {f"{p.batch:,} tiles": _gap_figure(p, ids, name) for p in plans}
    titles = {f"{p.batch:,} tiles": _gap_title(p, ids, name) for p in plans}
    chosen = f"{batch:,} tiles"
    header = ["Class", *(f"{p.batch} tiles, {side}" for p in plans for side in ("shuffle", "plan"))]
    rows = [
        [name[c], *(_gap_cell(p.side(side), c) for p in plans for side in ("shuffle", "plan"))] for c in ids
    ]
    numbers = Table("Steps between two sightings of a class: mean (longest)", header, rows)
    note = (
        "Steps from one sighting of the class to the next, the longest of an epoch; 1: every step has it. "
        "A cross: not seen twice. What a network does not see for long, it forgets."
    )
    return Chart("gaps", titles[chosen], note, figures, numbers, titles, chosen, "Batch size")


def _longest(side: Side, c: int) -> int | None:
    """Return the longest gap; None for a class that occurs once at most, unless the only step has it."""
    gap = side.longest_gap[c]
    return 1 if gap is None and side.held_share[c] >= 1 else gap


def _gap_title(plan: PlanFacts, ids: Sequence[int], name: Sequence[str]) -> str:
    texts = {}
    for side in ("shuffle", "plan"):
        gap = _longest(plan.side(side), ids[0])
        texts[side] = (
            "is not seen twice" if gap is None else f"comes back only after up to {number(gap)} steps"
        )
        if plan.side(side).held_share[ids[0]] >= 1:
            texts[side] = "is in every step"
    with_plan = (
        "with the plan, too" if texts["plan"] == texts["shuffle"] else f"with the plan it {texts['plan']}"
    )
    return f"With {plan.batch:,} shuffled tiles, {plain(name[ids[0]])} {texts['shuffle']}; {with_plan}"


def _gap_cell(side: Side, c: int) -> str:
    mean, longest = side.mean_gap[c], side.longest_gap[c]
    return "–" if mean is None or longest is None else f"{mean:.1f} ({longest:,})"


def _gap_figure(plan: PlanFacts, ids: Sequence[int], name: Sequence[str]) -> Figure:
    """Return two joined dots a class: the longest gap of the shuffle and of the plan."""
    never = max(2, plan.steps)
    seen = {side: [_longest(plan.side(side), c) for c in ids] for side, *_ in _SIDES}
    places = {side: [never if gap is None else gap for gap in gaps] for side, gaps in seen.items()}
    joined = [end for pair in zip(*places.values(), strict=True) for end in (*pair, None)]
    rows = [row for i in range(len(ids)) for row in (i, i, None)]
    line = {"mode": "lines", "line": {"color": "#b8c0c8", "width": 3}, "hoverinfo": "skip"}
    traces: list[Data] = [{"type": "scatter", "x": joined, "y": rows, "showlegend": False, **line}]
    for kind, symbol in zip(_SIDES, ("circle", "diamond"), strict=True):
        symbols = ["x" if gap is None else symbol for gap in seen[kind[0]]]
        marker = {"color": kind[2], "size": 12, "symbol": symbols, "line": {"color": "#ffffff", "width": 1}}
        hovers = [_gap_hover(plan, kind, c, name[c]) for c in ids]
        dots = {"mode": "markers", "marker": marker, "customdata": hovers, "hovertemplate": HOVER}
        place = {"x": places[kind[0]], "y": list(range(len(ids))), "cliponaxis": False}
        traces.append({"type": "scatter", "name": kind[1], **place, **dots})
    look = layout(
        ROW * len(ids) + 110,
        _steps_axis(max(max(x) for x in places.values())),
        names_axis([name[c] for c in ids]),
        showlegend=True,
    )
    return {"data": traces, "layout": look}


def _steps_axis(longest: int) -> Data:
    """Return a logarithmic axis of whole steps, from 1."""
    longest = max(2, longest)
    ticks = [t for power in range(9) for t in (10**power, 2 * 10**power, 5 * 10**power) if t <= longest]
    ends = [-0.06 * math.log10(longest), 1.05 * math.log10(longest)]
    texts = [f"{t:,}" for t in ticks]
    return axis("longest wait (steps)", type="log", range=ends, tickvals=ticks, ticktext=texts)


def _gap_hover(plan: PlanFacts, kind: Sequence[str], c: int, name: str) -> str:
    side = plan.side(kind[0])
    mean, longest = side.mean_gap[c], side.longest_gap[c]
    waits = "not seen twice in the epoch"
    if mean is not None and longest is not None:
        waits = f"again after {mean:.1f} steps on average, {longest:,} at the longest"
    held = f"in {percent(side.held_share[c])} of the steps"
    return lines(name, f"{plan.batch:,} tiles, {kind[1]}:", waits, held)


def plan_table(diagnosis: Diagnosis) -> Table:
    """Return a table with one row for each batch size: the plan's coverage and cost."""
    rows = []
    for p in diagnosis.plans:
        if p.refused:
            rows.append([number(p.batch), "no plan", *["–"] * 5])
            continue
        share = (percent(p.side(side).complete_steps) for side in ("shuffle", "plan"))
        costs = (f"{p.coverage_repeats:,} ({p.repeats_bound:,})", number(p.fillers))
        rows.append([number(p.batch), number(p.steps), *share, *costs, number(len(p.best_effort))])
    header = [
        "Tiles in the batch",
        "Steps",
        "All classes: shuffle",
        "All classes: plan",
    ]
    header += ["Repeats (no plan has fewer)", "Fillers", "Best-effort classes"]
    return Table("One epoch: steps that hold all classes, and what the plan costs", header, rows)
