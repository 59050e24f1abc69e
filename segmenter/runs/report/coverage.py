"""Charts of a run: class coverage of its steps compared with the promises."""

from __future__ import annotations

import math
from collections.abc import Sequence

from segmenter.base.errors import counted
from segmenter.pages.parts import (
    COLOUR_BAR,
    HOVER,
    INK,
    PLAN,
    ROW,
    Block,
    Chart,
    Data,
    Paragraph,
    Table,
    axis,
    bars,
    layout,
    lines,
    names_axis,
    percent,
    percent_axis,
    plain,
)
from segmenter.runs.log import LoggedCoverage, LogPoint

_MOST_COLUMNS = 160  # of the chart of a run's history
_HELD = [[0.0, "#7f1d1d"], [0.5, "#e8862e"], [0.999999, "#fde9c9"], [1.0, PLAN]]


def run_text(run: LoggedCoverage) -> list[Block]:
    """Return sentences on the steps of a run and on the tiles drawn for them."""
    blocks, short = list[Block](), run.short_steps
    if short:
        note = f"{counted(short, 'step')} of {run.steps:,} lacked a class that was promised."
        blocks.append(Paragraph(note, "notice"))
    text = f"{plain(run.path)}: {counted(run.steps, 'step')}, {counted(run.tiles_drawn, 'tile')} drawn. "
    text += "No step was short of a promised class. " if not short and run.promised else ""
    text += (
        f"The augmentation of {percent(run.redrawn)} of these tiles was drawn again, because it had lost "
        f"the tile's class; that of {percent(run.replaced)} was replaced by one that cannot lose it."
    )
    return [*blocks, Paragraph(text)]


def run_held(name: Sequence[str], ids: Sequence[int], run: LoggedCoverage) -> Chart:
    """Draw the share of the run's steps that held each class, beside the promises.

    Args:
        name: name of each class, by id.
        ids: classes to show, from the top.
    """
    held, promised = run.held_share, set(run.promised)
    words = {c: "promised in every step" if c in promised else "best effort, nothing promised" for c in ids}
    steps = counted(run.steps, "step")
    hovers = [lines(name[c], f"in {percent(held[c])} of {steps}", words[c]) for c in ids]
    rows = list(range(len(ids)))
    look = {"orientation": "h", "y": rows, "name": "had", "marker": {"color": PLAN}}
    values = [100 * held[c] for c in ids]
    had = bars([percent(held[c]) for c in ids], hovers, x=values, **look)
    marked = [row for row, c in zip(rows, ids, strict=True) if c in promised]
    mark = {"symbol": "line-ns-open", "size": 18, "color": INK, "line": {"width": 3}}
    line = {"mode": "markers", "marker": mark, "hoverinfo": "skip", "cliponaxis": False, "name": "promised"}
    marks = {"type": "scatter", "x": [100] * len(marked), "y": marked, **line}
    x = percent_axis("steps with the class", 103, dtick=50)
    shape = layout(ROW * len(ids) + 110, x, names_axis([name[c] for c in ids]), showlegend=True)
    figure = {"data": [had | {"textposition": "auto"}, marks], "layout": shape}
    cells = [[name[c], "every step" if c in promised else "best effort", percent(held[c])] for c in ids]
    header = ["Class", "Promised", "Steps that held it"]
    if run.held_tiles:
        header += ["Tiles a step: promised", "Tiles a step: had"]
        for row, c in zip(cells, ids, strict=True):
            row += [f"{tiles[c]:.1f}" for tiles in (run.promised_tiles, run.held_tiles)]
    numbers = Table("Promised, and had", header, cells)
    note = "Counted on the labels as the model received them, after augmentation."
    return Chart("run-held", _held_title(name, run), note, {"": figure}, numbers)


def _held_title(name: Sequence[str], run: LoggedCoverage) -> str:
    missed = [c for c in run.promised if run.held_share[c] < 1]
    if not run.promised:
        return "The run promised no class"
    if not missed:
        return "Every promised class was in every step"
    worst = min(missed, key=lambda c: float(run.held_share[c]))
    many = counted(len(missed), "promised class", "promised classes")
    return f"{many} missed some steps; {plain(name[worst])} was in {percent(run.held_share[worst])}"


def run_history(name: Sequence[str], ids: Sequence[int], run: LoggedCoverage) -> Chart | None:
    """Draw class coverage over the course of a run; None for fewer than two log lines."""
    blocks = _blocks(run.history)
    if len(blocks) < 2:
        return None
    ends = [block[-1].step for block in blocks]
    worst = [[min(line.held_share[c] for line in block) for block in blocks] for c in ids]
    whole = min(map(min, worst)) >= 1
    heat: Data = {
        "type": "heatmap",
        "x": list(range(len(blocks))),
        "z": [[100 * share for share in row] for row in worst],
        "customdata": [_history_hovers(name[c], ends, row) for c, row in zip(ids, worst, strict=True)],
        "hovertemplate": HOVER,
        "zmin": 0,
        "zmax": 100,
        "colorscale": _HELD,
        "ygap": 2,
        "showscale": not whole,
        "colorbar": COLOUR_BAR,
    }
    ticks = sorted({round(i * (len(blocks) - 1) / 4) for i in range(5)})
    texts = [f"{ends[i]:,}" for i in ticks]
    x = axis("step of the run", tickmode="array", tickvals=ticks, ticktext=texts, showgrid=False)
    figure = {"data": [heat], "layout": layout(ROW * len(ids) + 90, x, names_axis([name[c] for c in ids]))}
    title = "From the first step to the last, every class was there"
    if not whole:
        low = min(range(len(ids)), key=lambda i: min(worst[i]))
        title = f"{plain(name[ids[low]])} was at times in only {percent(min(worst[low]))} of the steps"
    note = "Blue: in all steps of that stretch. Pale to dark red: in some to none of them."
    note += " A column shows its worst line of the log." if len(blocks) < len(run.history) else ""
    return Chart("run-history", title, note, {"": figure}, _history_table(name, ids, run))


def _history_hovers(name: str, ends: Sequence[int], shares: Sequence[float]) -> list[str]:
    pairs = zip(ends, shares, strict=True)
    return [lines(name, f"up to step {end:,}: in {percent(share)} of the steps") for end, share in pairs]


def _history_table(name: Sequence[str], ids: Sequence[int], run: LoggedCoverage) -> Table:
    """Return the lowest and the mean coverage of each class over the log's lines."""
    rows = []
    for c in ids:
        shares = [line.held_share[c] for line in run.history]
        rows.append([name[c], percent(min(shares)), percent(sum(shares) / len(shares))])
    header = ["Class", "lowest share of steps", "mean share of steps"]
    return Table("Over the lines of the log", header, rows)


def _blocks(history: Sequence[LogPoint]) -> list[list[LogPoint]]:
    """Group the log's lines into as many groups as a chart can show, at most."""
    size = max(1, math.ceil(len(history) / _MOST_COLUMNS))
    return [list(history[i : i + size]) for i in range(0, len(history), size)]
