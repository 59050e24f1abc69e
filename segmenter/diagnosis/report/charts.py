"""Charts of the data: classes, tiles, co-occurrence of classes, the forecast.

Each chart has a title, a reading guide and a table besides its drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from segmenter.base.errors import counted
from segmenter.diagnosis.data import ClassFacts, Diagnosis, ForecastFacts, PlanFacts, Side
from segmenter.pages.parts import (
    FILLER,
    GREY,
    HOVER,
    NUMBERED,
    PLAN,
    ROW,
    SHUFFLE,
    Chart,
    ClassCell,
    Data,
    Figure,
    Table,
    axis,
    bars,
    class_marker,
    layout,
    lines,
    names_axis,
    number,
    percent,
    percent_axis,
    plain,
    square,
)
from segmenter.sampling.forecast import Outlook

_SIDES = (("shuffle", "plain shuffle", SHUFFLE, "/"), ("plan", "plan", PLAN, ""))
_COSTS = (
    ("coverage_repeats", "repeats", PLAN, ""),
    ("repeats_bound", "no plan does with fewer", GREY, "x"),
    ("fillers", "fillers of the last batch", FILLER, "/"),
)
_READABLE = {"minsize": 9, "mode": "hide"}
_NUMBERED = 6  # with more batch sizes the bars are too thin for numbers


def granted_plans(diagnosis: Diagnosis) -> list[PlanFacts]:
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
    return bars(labels, hovers, x=list(range(len(plans))), y=list(values), **look)


def _figure(plans: Sequence[PlanFacts], traces: Sequence[Data], yaxis: Data) -> Figure:
    ticks = {"tickvals": list(range(len(plans))), "ticktext": [f"{p.batch:,}" for p in plans]}
    x = axis("tiles in the batch", tickmode="array", showgrid=False, **ticks)
    look = layout(330, x, yaxis, showlegend=True, barmode="group", bargap=0.25, uniformtext=_READABLE)
    return {"data": list(traces), "layout": look}


def _paired_bars(
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
    plans = granted_plans(diagnosis)
    yaxis = percent_axis("steps that hold all classes", 115, dtick=25)
    figure = _paired_bars(plans, lambda s: 100 * s.complete_steps, _complete, yaxis)
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
    plans, most = granted_plans(diagnosis), len(diagnosis.forecast.classes)
    yaxis = axis("classes on each replica", range=[0, 1.15 * most], nticks=6)
    figure = _paired_bars(plans, lambda s: float(s.classes_per_replica), _on_replica, yaxis)
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
    plans = granted_plans(diagnosis)
    values = {kind: [getattr(p, kind[0]) for p in plans] for kind in _COSTS}
    traces = [_trace(plans, kind, of_kind, [number(v) for v in of_kind]) for kind, of_kind in values.items()]
    top = max(1, *(max(of_kind) for of_kind in values.values()))
    figure = _figure(plans, traces, axis("tiles", range=[0, 1.15 * top], nticks=6, tickformat=",d"))
    costliest = max(plans, key=lambda p: int(p.coverage_repeats))
    title = "The plan repeats no tile"
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
    plans, ids, name = granted_plans(diagnosis), diagnosis.rarest_first, diagnosis.names
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


_AXIS = 70  # pixels of an axis with its title


def _rows(
    diagnosis: Diagnosis, value: Callable[[ClassFacts], float], text: Callable[[ClassFacts], str], title: str
) -> Figure:
    """Draw horizontal bars, one row a class, in percent; absent classes come last."""
    by_id = diagnosis.classes
    ids = [by_id[c] for c in diagnosis.rarest_first] + [c for c in by_id if not c.tiles]
    values = [100 * value(c) for c in ids]
    hovers = [lines(c.name, text(c)) for c in ids]
    look = class_marker([c.colour for c in ids])
    trace = bars([percent(value(c)) for c in ids], hovers, orientation="h", x=values, marker=look)
    trace["y"] = list(range(len(ids)))
    top = min(135.0, 1.3 * max([*values, 0.001]))  # room for the number behind the longest bar
    x = percent_axis(title, top, **({"dtick": 50} if top > 100 else {"nticks": 4}))
    rows = names_axis([c.name for c in ids])
    return {"data": [trace], "layout": layout(ROW * len(ids) + _AXIS, x, rows)}


# ----------------------------------------------------------------------------------------- classes


def class_tiles(diagnosis: Diagnosis) -> Chart:
    """Draw the number of tiles that hold each class."""
    tiles = max(1, diagnosis.tiles)
    classes = [diagnosis.classes[c] for c in diagnosis.rarest_first]
    title = "No tile holds any class"
    if classes:
        title = f"{plain(classes[0].name)} is held by {percent(classes[0].tiles / tiles)} of the tiles"
        alone = len(classes) > 1 and classes[0].tiles < classes[1].tiles
        title += ", fewer than any other class" if alone else ""
    figure = _rows(
        diagnosis,
        lambda c: float(c.tiles) / tiles,
        lambda c: f"{counted(c.tiles, 'tile')} of {tiles:,} ({percent(c.tiles / tiles)})",
        "tiles with the class",
    )
    note = f"A tile holds a class when it shows at least {counted(diagnosis.min_pixels, 'pixel')} of it."
    return Chart("class-tiles", title, note, {"": figure}, class_table(diagnosis))


def class_pixels(diagnosis: Diagnosis) -> Chart:
    """Draw the share of each class in the labelled pixels."""
    most = max(diagnosis.classes, key=lambda c: float(c.share))
    title = f"{plain(most.name)} covers {percent(most.share)} of the labelled ground"
    figure = _rows(
        diagnosis,
        lambda c: float(c.share),
        lambda c: f"{counted(c.pixels, 'pixel')} ({percent(c.share)})",
        "pixels of the class",
    )
    note = "Pixels that are ignored or without data count nowhere. The order is that of the chart of tiles."
    return Chart("class-pixels", title, note, {"": figure}, class_table(diagnosis))


def class_table(diagnosis: Diagnosis) -> Table:
    """Return a table of all counts of each class."""
    tiles = max(1, diagnosis.tiles)
    rows: list[list[str | ClassCell]] = [
        [
            ClassCell(c.name, c.colour),
            number(c.tiles),
            percent(c.tiles / tiles),
            number(c.pixels),
            percent(c.share),
            number(c.scenes),
        ]
        for c in diagnosis.classes
    ]
    header = [
        "Class",
        "Tiles that hold it",
        "of all tiles",
        "Pixels",
        "of all labelled pixels",
        "Scenes with it",
    ]
    return Table("Tiles, pixels and scenes of each class", header, rows)


def classes_per_tile(diagnosis: Diagnosis) -> Chart:
    """Draw the distribution of the number of classes in a tile."""
    counts, tiles = diagnosis.tiles_by_classes, max(1, diagnosis.tiles)
    poor = sum(counts[: len(counts) // 2])
    common = max(range(len(counts)), key=lambda i: counts[i])
    title = f"Most often a tile holds {counted(common, 'class', 'classes')} of {len(counts) - 1}"
    if len(counts) > 3:
        title += f"; {percent(poor / tiles)} hold fewer than half"
    hovers = [
        lines(f"{counted(n, 'tile')} ({percent(n / tiles)})", f"with {counted(i, 'class', 'classes')}")
        for i, n in enumerate(counts)
    ]
    values = [100 * n / tiles for n in counts]
    texts = [percent(n / tiles) if n and len(counts) <= NUMBERED + 1 else "" for n in counts]
    trace = bars(texts, hovers, x=list(range(len(counts))), y=values, textangle=0)
    x = axis("classes that a tile holds", showgrid=False, tick0=0, dtick=1 if len(counts) <= 16 else 5)
    figure = {"data": [trace], "layout": layout(300, x, percent_axis("tiles", 1.15 * max(values), nticks=6))}
    rows = [[str(i), number(n), percent(n / tiles)] for i, n in enumerate(counts)]
    numbers = Table("Tiles by the number of classes they hold", ["Classes", "Tiles", "of all tiles"], rows)
    note = "The fewer classes a tile holds, the more tiles a batch needs to see them all."
    return Chart("classes-per-tile", title, note, {"": figure}, numbers)


def co_occurrence_chart(diagnosis: Diagnosis) -> Chart | None:
    """Draw co-occurrence of classes in tiles; None for fewer than two classes."""
    ids, counts, name = diagnosis.rarest_first, diagnosis.together, diagnosis.names
    if len(ids) < 2:
        return None
    share = [[counts[a][b] / counts[a][a] if a != b else None for b in ids] for a in ids]
    hovers = [
        [
            lines(
                f"Of the {counted(counts[a][a], 'tile')} with {name[a]},",
                f"{percent(s)} ({counts[a][b]:,}) also hold {name[b]}",
            )
            for b, s in zip(ids, row, strict=True)
        ]
        for a, row in zip(ids, share, strict=True)
    ]
    figure, width = square([name[c] for c in ids], share, hovers, "also hold … (%)")
    note = (
        "Read along a row: of the tiles with that class, how many also hold the class of the column. Dark: "
        "nearly all; pale: nearly none. Classes that come together can share a tile of the batch."
    )
    title = _partner(ids, name, share[0])
    return Chart("pairs", title, note, {"": figure}, _together_table(diagnosis), width=width)


def _partner(ids: Sequence[int], name: Sequence[str], share: Sequence[float | None]) -> str:
    """Return text on the class that occurs most often together with the rarest one."""
    best = max(range(1, len(ids)), key=lambda i: share[i] or 0)
    return (
        f"Of the tiles with {plain(name[ids[0]])}, {percent(share[best])} also hold {plain(name[ids[best]])}"
    )


def _together_table(diagnosis: Diagnosis) -> Table:
    ids, counts, name = diagnosis.rarest_first, diagnosis.together, diagnosis.names
    cells = [[name[a], *(number(counts[a][b]) for b in ids)] for a in ids]
    return Table("Tiles that hold both classes", ["Class", *(name[c] for c in ids)], cells)


# ---------------------------------------------------------------------------------------- forecast


def forecast(diagnosis: Diagnosis) -> Chart:
    """Draw the probability that a random batch of N tiles holds all classes, over N."""
    said = diagnosis.forecast
    curve, asked, needed = said.curve, said.batches, said.needed
    marks = [(mark, n) for mark, n in needed.items() if n]
    reach = max([i.batch for i in [*curve, *asked]] + [n for _, n in marks] + [2])
    line = _points(said, curve, mode="lines", line={"color": SHUFFLE, "width": 2.5})
    dot = {"color": SHUFFLE, "size": 11, "line": {"color": "#ffffff", "width": 1.5}}
    dots = _points(said, asked, mode="markers", marker=dot)
    powers = [2**i for i in range(int(math.log2(reach)) + 1)]
    ticks = {"tickvals": powers, "ticktext": [f"{p:,}" for p in powers]}
    x = axis("tiles in the batch", type="log", range=[0, math.log10(reach) * 1.03], **ticks)
    look = layout(
        400,
        x,
        percent_axis(f"random batches with {every(said)}", 101),
        shapes=[_needed_line(mark, n) for mark, n in marks],
        annotations=[_needed_note(mark, n, reach, row) for row, (mark, n) in enumerate(marks)],
    )
    look["margin"]["t"] = 16 + 18 * len(marks)
    beyond = [(n, float(mark)) for mark, n in marks if curve and n > curve[-1].batch]
    band = [_error_band(curve)] if any(i.error for i in curve) else []
    title = f"How often a random batch holds {every(said)}"
    if at := needed.get("99"):
        title = f"It takes {counted(at, 'random tile')} to hold {every(said)} in 99 % of the batches"
    note = (
        "Computed exactly, by inclusion and exclusion over the classes, for tiles drawn without replacement."
        if said.method == "exact"
        else "Simulated: the classes are too many to compute it exactly. The band is the 95 % interval."
    )
    note += " Dots are the batch sizes asked for."
    data = [*band, *([_extend_curve(curve[-1], beyond)] if beyond else []), line, dots]
    figure = {"data": data, "layout": look}
    return Chart("forecast-curve", title, note, {"": figure}, _forecast_table(said))


def every(said: ForecastFacts) -> str:
    """Return text such as `all 8 classes` for a forecast."""
    return f"all {len(said.classes)} classes" if len(said.classes) > 1 else "the only class"


def _points(said: ForecastFacts, items: Sequence[Outlook], **look: Any) -> Data:
    """Return a trace of the forecast's items."""
    hovers = [
        lines(
            counted(i.batch, "random tile"),
            f"{percent(i.probability)}{_plus_minus(i)} of such batches hold {every(said)}",
            f"{i.expected_classes:.2f} classes on average",
        )
        for i in items
    ]
    xy = {"x": [i.batch for i in items], "y": [100 * i.probability for i in items]}
    return {
        "type": "scatter",
        "customdata": hovers,
        "hovertemplate": HOVER,
        "cliponaxis": False,
        **xy,
        **look,
    }


def _plus_minus(item: Outlook) -> str:
    return f" ± {percent(1.96 * item.error)}" if item.error else ""


def _error_band(curve: Sequence[Outlook]) -> Data:
    """Return the 95 % interval of a simulated curve, as one closed shape."""
    upper = [min(100.0, 100 * (i.probability + 1.96 * i.error)) for i in curve]
    lower = [max(0.0, 100 * (i.probability - 1.96 * i.error)) for i in curve]
    x = [i.batch for i in curve]
    fill = {"mode": "lines", "fill": "toself", "fillcolor": "rgba(213,94,0,0.2)", "line": {"width": 0}}
    return {"type": "scatter", "x": x + x[::-1], "y": upper + lower[::-1], "hoverinfo": "skip", **fill}


def _extend_curve(last: Outlook, beyond: Sequence[tuple[int, float]]) -> Data:
    """Return the dashed extension of the curve to larger marked sizes: known there, interpolated between."""
    x, y = zip((last.batch, 100 * last.probability), *sorted(beyond), strict=True)
    dashed = {"mode": "lines", "line": {"color": SHUFFLE, "width": 2, "dash": "dash"}, "hoverinfo": "skip"}
    return {"type": "scatter", "x": list(x), "y": list(y), **dashed}


def _needed_line(mark: str, batch: int) -> Data:
    ends = {"x0": batch, "x1": batch, "y0": 0, "y1": float(mark)}
    return {"type": "line", **ends, "line": {"color": GREY, "width": 1.2, "dash": "dot"}, "layer": "below"}


def _needed_note(mark: str, batch: int, reach: int, row: int) -> Data:
    """Return a note such as `90 %: 87 tiles` above the plot; rows keep neighbouring notes apart."""
    side = "right" if batch > reach**0.5 else "left"
    text = {"text": f"{mark} %: {batch:,} tiles", "font": {"size": 12, "color": GREY}, "showarrow": False}
    place = {"x": math.log10(batch), "xanchor": side, "y": 1, "yref": "paper", "yanchor": "bottom"}
    return {**text, **place, "yshift": 4 + 18 * row}


def _forecast_table(said: ForecastFacts) -> Table:
    """Return the forecast at the requested sizes and at powers of two."""
    items = {i.batch: i for i in [*said.curve, *said.batches]}
    asked = {i.batch for i in said.batches}
    rows = [
        [
            number(b),
            percent(i.probability),
            _plus_minus(i).strip() or "exact",
            f"{i.expected_classes:.2f}",
        ]
        for b, i in sorted(items.items())
        if b in asked or b & (b - 1) == 0
    ]
    header = ["Tiles in the batch", "hold all classes", "95 % interval", "classes on average"]
    return Table("How often a random batch holds all classes", header, rows)
