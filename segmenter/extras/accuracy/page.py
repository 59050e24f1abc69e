"""Page of the estimates: areas with intervals, accuracies, error matrix, strata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import counted
from segmenter.base.files import check_writable, write_whole
from segmenter.base.invocation import invocation
from segmenter.extras.accuracy.account import COLUMNS, class_rows, head, remarks, sentences
from segmenter.extras.accuracy.estimators import Estimates, Figure
from segmenter.extras.accuracy.units import Shown, in_percent, unit_for, with_interval
from segmenter.pages.layout import (
    FILLER,
    GREY,
    HOVER,
    PLAN,
    ROW,
    Data,
    axis,
    layout,
    names_axis,
    percent_axis,
    square,
)
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    Block,
    Chart,
    Head,
    Paragraph,
    Section,
    Table,
    lines,
    number,
    percent,
    plain,
    side_by_side,
)

_AXIS = 90  # pixels of an axis with its title and legend


def write_page(estimates: Estimates, unit: str, points: Path, path: Path) -> None:
    """Write the page, completely or not at all.

    Raises:
        SegmenterError: the file cannot be written, or a package of the extra `report` is not installed.
    """
    check_writable(path)
    write_whole(path, _page(estimates, unit, points).encode())


def _page(estimates: Estimates, unit: str, points: Path) -> str:
    sample = estimates.sample
    shown = unit_for(unit, sample.total)
    facts = {
        "Points": number(int(sample.points_H.sum())),
        "Strata": number(len(sample.strata)),
        "Classes": number(len(sample.classes)),
        "Area": f"{sample.total * shown.factor:,.4g}{shown.sign}",
        "Overall accuracy": f"{in_percent(estimates.overall)} %",
    }
    weak: list[Block] = [Paragraph(f"{text[0].upper()}{text[1:]}.", "notice") for text in remarks(estimates)]
    said = [Paragraph("; ".join(sentences(estimates, unit)) + ".")]
    table = Table("Estimates of each class", ["Class", *_titles(shown)], list(class_rows(estimates, shown)))
    sections = [
        Section("areas", "Areas", [*weak, *said, *side_by_side(_areas(estimates, shown)), table]),
        Section("accuracy", "Accuracy", side_by_side(_accuracies(estimates), _matrix(estimates))),
        Section("strata", "Strata", [_strata(estimates, shown)]),
    ]
    lead = f"{head(estimates)[0].upper()}{head(estimates)[1:]}."
    title = f"Areas and accuracy from {plain(points.name)}"
    return html_page(Head(title, lead, facts, f"{invocation('accuracy')} estimate"), sections)


def _titles(shown: Shown) -> list[str]:
    sign = f",{shown.sign}" if shown.sign else ""
    return [
        f"{text.capitalize()}{sign}" if text in ("mapped", "area ± 95 %") else text.capitalize()
        for text in COLUMNS
    ]


def _marks(figures: Sequence[Figure], hovers: Sequence[str], colour: str, name: str, shift: float) -> Data:
    """Return points with the error bars of their intervals, one row a class."""
    values = [None if math.isnan(each.value) else each.value for each in figures]
    halves = [0.0 if math.isnan(each.half) else each.half for each in figures]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": values,
        "y": [row + shift for row in range(len(values))],
        "error_x": {"type": "data", "array": halves, "color": colour, "thickness": 2, "width": 5},
        "marker": {"color": colour, "size": 10},
        "customdata": list(hovers),
        "hovertemplate": HOVER,
    }


def _areas(estimates: Estimates, shown: Shown) -> Chart:
    """Draw mapped areas as bars, and estimated ones with their intervals."""
    sample, areas = estimates.sample, estimates.areas(shown.factor)
    mapped = [None if math.isnan(area) else float(area) * shown.factor for area in sample.mapped_area_K]
    hovers = [
        lines(n, f"{with_interval(a, shown.sign)} (95 %)") for n, a in zip(sample.classes, areas, strict=True)
    ]
    bars = {
        "type": "bar",
        "orientation": "h",
        "name": "on the map",
        "x": mapped,
        "y": list(range(len(mapped))),
        "marker": {"color": "#c9ced4"},
        "customdata": [
            lines(name, f"on the map {number(area, 2)}{shown.sign}")
            for name, area in zip(sample.classes, mapped, strict=True)
        ],
        "hovertemplate": HOVER,
    }
    top = max([area.value + area.half for area in areas] + [area or 0.0 for area in mapped])
    x = axis(f"area{',' if shown.sign else ''}{shown.sign}", range=[0, 1.05 * top])
    look = layout(ROW * len(areas) + _AXIS, x, names_axis(sample.classes), showlegend=True)
    marks = _marks(areas, hovers, PLAN, "estimate, 95 %", 0.0)
    off = [
        name
        for name, area, on_map in zip(sample.classes, areas, mapped, strict=True)
        if on_map is not None and abs(area.value - on_map) > area.half
    ]
    title = "Mapped and estimated areas agree within their intervals"
    if off:
        title = f"The map shows another area than the points for {counted(len(off), 'class', 'classes')}"
    rows = [
        [
            name,
            number(on_map, 2),
            number(area.value, 2),
            number(area.value - area.half, 2),
            number(area.value + area.half, 2),
        ]
        for name, area, on_map in zip(sample.classes, areas, mapped, strict=True)
    ]
    table = Table("Areas of each class", ["Class", "Mapped", "Estimate", "from", "to"], rows)
    note = "Bars: pixels of the map. Points: the area corrected for the map's errors, with its 95 % interval."
    return Chart("areas-chart", title, note, {"": {"data": [bars, marks], "layout": look}}, table)


def _accuracies(estimates: Estimates) -> Chart:
    """Draw user's and producer's accuracy of each class with intervals."""
    names = estimates.sample.classes
    data = []
    for what, figures, colour, shift in (
        ("user's", estimates.users, PLAN, -0.15),
        ("producer's", estimates.producers, FILLER, 0.15),
    ):
        hovers = [
            lines(name, f"{what} accuracy {in_percent(f)} %") for name, f in zip(names, figures, strict=True)
        ]
        data.append(_marks([each.times(100) for each in figures], hovers, colour, what, shift))
    overall = {"type": "line", "x0": 100 * estimates.overall.value, "x1": 100 * estimates.overall.value}
    overall |= {"y0": 0, "y1": 1, "yref": "paper", "line": {"color": GREY, "dash": "dot", "width": 1.5}}
    look = layout(
        ROW * 2 * len(names) + _AXIS,
        percent_axis("accuracy", 102),
        names_axis(names),
        showlegend=True,
        shapes=[overall],
    )
    rows = [
        [name, in_percent(u), in_percent(p)]
        for name, u, p in zip(names, estimates.users, estimates.producers, strict=True)
    ]
    table = Table("Accuracy of each class, % ± 95 %", ["Class", "User's", "Producer's"], rows)
    note = (
        "User's: how much of what is mapped so is so. Producer's: how much of what is so is mapped so. "
        "Dotted: overall accuracy."
    )
    title = f"Overall accuracy is {in_percent(estimates.overall)} %"
    return Chart("accuracies", title, note, {"": {"data": data, "layout": look}}, table)


def _matrix(estimates: Estimates) -> Chart:
    """Draw the error matrix by shares of the area, each row in percent of its mapped class."""
    names, matrix, counts = estimates.sample.classes, estimates.matrix_KK, estimates.counts_KK
    ids = range(len(names))
    share = [[float(cell / row.sum()) if row.sum() else None for cell in row] for row in matrix]
    hovers = [
        [
            lines(
                f"{names[i]} on the map, {names[j]} in truth:",
                f"{percent(float(matrix[i, j]))} of the area, {counted(int(counts[i, j]), 'point')}",
            )
            for j in ids
        ]
        for i in ids
    ]
    figure, width = square(list(names), share, hovers, "in truth (%)")
    rows = [
        [
            name,
            *(
                f"{percent(float(cell))} ({count:,})"
                for cell, count in zip(matrix[i], counts[i], strict=True)
            ),
        ]
        for i, name in enumerate(names)
    ]
    table = Table("Share of the area (points) by mapped class and class in truth", ["Mapped", *names], rows)
    note = "Read along a row: of the area mapped so, how much is the class of the column."
    return Chart("matrix", "Where the map errs", note, {"": figure}, table, width=width)


def _strata(estimates: Estimates, shown: Shown) -> Table:
    sample = estimates.sample
    pixels = [None] * len(sample.strata) if sample.pixels_H is None else sample.pixels_H.tolist()
    rows = [
        [
            name,
            f"{area * shown.factor:,.4g}",
            percent(float(area) / sample.total),
            number(count),
            number(int(points)),
        ]
        for name, area, count, points in zip(
            sample.strata, sample.area_H, pixels, sample.points_H, strict=True
        )
    ]
    sign = f"Area,{shown.sign}" if shown.sign else "Area"
    return Table("Strata", ["Stratum", sign, "of all", "Pixels", "Labelled points"], rows)
