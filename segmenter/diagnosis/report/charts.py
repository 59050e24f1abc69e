"""Charts of the data: classes, tiles, co-occurrence of classes, the forecast.

Each chart has a title, a reading guide and a table besides Plotly's drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from segmenter.base.errors import counted
from segmenter.diagnosis.data import ClassFacts, Diagnosis, ForecastFacts
from segmenter.pages.layout import (
    GREY,
    HOVER,
    NUMBERED,
    ROW,
    SHUFFLE,
    Data,
    axis,
    bars,
    layout,
    names_axis,
    percent_axis,
    square,
)
from segmenter.pages.parts import Chart, Figure, Named, Table, lines, number, percent, plain
from segmenter.sampling.forecast import Outlook

_AXIS = 70  # pixels of an axis with its title


def _rows(
    diagnosis: Diagnosis, value: Callable[[ClassFacts], float], text: Callable[[ClassFacts], str], title: str
) -> Figure:
    """Draw horizontal bars, one row a class, in percent; absent classes come last."""
    by_id = diagnosis.classes
    ids = [by_id[c] for c in diagnosis.rarest_first] + [c for c in by_id if not c.tiles]
    values = [100 * value(c) for c in ids]
    hovers = [lines(c.name, text(c)) for c in ids]
    trace = bars(values, [percent(value(c)) for c in ids], hovers, orientation="h", x=values)
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
    rows: list[list[str | Named]] = [
        [
            Named(c.name, c.colour),
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
    trace = bars(values, texts, hovers, x=list(range(len(counts))), y=values, textangle=0)
    x = axis("classes that a tile holds", showgrid=False, tick0=0, dtick=1 if len(counts) <= 16 else 5)
    figure = {"data": [trace], "layout": layout(300, x, percent_axis("tiles", 1.15 * max(values), nticks=6))}
    rows = [[str(i), number(n), percent(n / tiles)] for i, n in enumerate(counts)]
    numbers = Table("Tiles by the number of classes they hold", ["Classes", "Tiles", "of all tiles"], rows)
    note = "The fewer classes a tile holds, the more tiles a batch needs to see them all."
    return Chart("classes-per-tile", title, note, {"": figure}, numbers)


def together(diagnosis: Diagnosis) -> Chart | None:
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
    data = [*band, *([_extended(curve[-1], beyond)] if beyond else []), line, dots]
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


def _extended(last: Outlook, beyond: Sequence[tuple[int, float]]) -> Data:
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
