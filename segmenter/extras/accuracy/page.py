"""Page of the estimates: areas with intervals, accuracies, error matrix, strata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import counted
from segmenter.base.files import check_writable, write_whole
from segmenter.base.invocation import invocation
from segmenter.extras.accuracy.estimators import (
    Estimate,
    Estimates,
    Shown,
    basis,
    class_rows,
    in_percent,
    remarks,
    sentences,
    titles,
    unit_for,
    whole_area,
    with_interval,
)
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    FILLER,
    HOVER,
    PLAN,
    ROW,
    Block,
    Chart,
    Data,
    Head,
    KeyFigure,
    PageSection,
    Paragraph,
    Table,
    axis,
    layout,
    lines,
    names_axis,
    number,
    percent,
    percent_axis,
    plain,
    side_by_side,
    square,
)

_AXIS = 90  # pixels of an axis with its title and the legend


def write_page(estimates: Estimates, unit: str, points: Path, path: Path) -> None:
    """Write the page, completely or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    check_writable(path)
    sample, shown = estimates.sample, unit_for(unit, estimates.sample.total)
    facts = {
        "Points": number(int(sample.points_H.sum())),
        "Strata": number(len(sample.strata)),
        "Area": f"{whole_area(sample.total * shown.factor)}{shown.sign}",
    }
    table = Table("Estimates of each class", titles(shown), list(class_rows(estimates, shown)))
    of_areas: list[Block] = [Paragraph(f"{text}.", "notice") for text in remarks(estimates)]
    of_areas.append(Paragraph("; ".join(sentences(estimates, unit)) + "."))
    of_areas += side_by_side(_areas(estimates, shown, table))
    charts = side_by_side(_accuracies(estimates, table), _matrix(estimates))
    sections = [
        PageSection("areas", "Areas", of_areas),
        PageSection("accuracy", "Accuracy", charts),
        PageSection("strata", "Strata", [_strata(estimates, shown)]),
    ]
    title = f"Areas and accuracy from {plain(points.name)}"
    value, _, spread = in_percent(estimates.overall).partition(" ")
    figure = KeyFigure(f"{value} %", "overall accuracy", f"{spread} % (95 %)" if spread else "")
    lead = f"From {basis(estimates)}."
    page = html_page(Head(title, lead, facts, f"{invocation('accuracy')} estimate", figure), sections)
    write_whole(path, page.encode())


def _marks(figures: Sequence[Estimate], texts: Sequence[str], colour: str, name: str, shift: float) -> Data:
    """Return points with the error bars of their intervals, one row a class."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [None if math.isnan(each.value) else each.value for each in figures],
        "y": [row + shift for row in range(len(figures))],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_length(each.high - each.value) for each in figures],
            "arrayminus": [_length(each.value - each.low) for each in figures],
            "color": colour,
        },
        "marker": {"color": colour, "size": 10},
        "customdata": list(texts),
        "hovertemplate": HOVER,
    }


def _length(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _areas(estimates: Estimates, shown: Shown, table: Table) -> Chart:
    """Draw mapped areas as bars, and estimated ones with their intervals."""
    sample, areas = estimates.sample, estimates.areas(shown.factor)
    mapped = [None if math.isnan(area) else area for area in (sample.mapped_area_K * shown.factor).tolist()]
    names, rows = sample.classes, list(range(len(mapped)))
    bars: Data = {
        "type": "bar",
        "orientation": "h",
        "name": "on the map",
        "x": mapped,
        "y": rows,
        "hoverinfo": "skip",
    }
    bars["marker"] = {"color": "#c9ced4"}
    texts = [lines(name, with_interval(area, shown.sign)) for name, area in zip(names, areas, strict=True)]
    marks = _marks(areas, texts, PLAN, "estimate, 95 %", 0.0)
    top = max([area.high for area in areas] + [area or 0.0 for area in mapped])
    x = axis(f"area{',' * bool(shown.sign)}{shown.sign}", range=[0, 1.05 * top])
    look = layout(ROW * len(areas) + _AXIS, x, names_axis(names), showlegend=True)
    pairs = zip(areas, mapped, strict=True)
    off = sum(on_map is not None and not area.low <= on_map <= area.high for area, on_map in pairs)
    title = "The mapped areas lie in the intervals"
    if off:
        title = f"The mapped area of {counted(off, 'class lies', 'classes lie')} outside the interval"
    note = "Bars: pixels of the map. Points: the area corrected for the map's errors, with its 95 % interval."
    return Chart("areas-chart", title, note, {"": {"data": [bars, marks], "layout": look}}, table)


def _accuracies(estimates: Estimates, table: Table) -> Chart:
    """Draw user's and producer's accuracy of each class with intervals."""
    names = estimates.sample.classes
    data = [
        _marks(
            [each.times(100) for each in figures],
            [lines(name, f"{what} {in_percent(each)} %") for name, each in zip(names, figures, strict=True)],
            *(colour, what, shift),
        )
        for what, figures, colour, shift in (
            ("user's accuracy", estimates.users, PLAN, -0.15),
            ("producer's accuracy", estimates.producers, FILLER, 0.15),
        )
    ]
    x = percent_axis("accuracy", 102)
    look = layout(2 * ROW * len(names) + _AXIS, x, names_axis(names), showlegend=True)
    title = f"Overall accuracy is {in_percent(estimates.overall)} %"
    note = "User's: how much of what is mapped so is so. Producer's: how much of what is so is mapped so."
    return Chart("accuracies", title, note, {"": {"data": data, "layout": look}}, table)


def _matrix(estimates: Estimates) -> Chart:
    """Draw the error matrix by shares of the area, each row in percent of its mapped class."""
    names, matrix, counts = (
        estimates.sample.classes,
        estimates.matrix_KK.tolist(),
        estimates.counts_KK.tolist(),
    )
    texts = [
        [f"{percent(cell)} ({count:,})" for cell, count in zip(*row, strict=True)]
        for row in zip(matrix, counts, strict=True)
    ]
    share = [[cell / sum(row) if sum(row) else None for cell in row] for row in matrix]
    hovers = [
        [lines(f"{name} on the map, {other} in truth:", text) for other, text in zip(names, row, strict=True)]
        for name, row in zip(names, texts, strict=True)
    ]
    figure, width = square(names, share, hovers, "in truth (%)")
    rows = [[name, *row] for name, row in zip(names, texts, strict=True)]
    table = Table("Share of the area (points) by mapped class and class in truth", ["Mapped", *names], rows)
    note = "Read along a row: of the area mapped so, how much is the class of the column."
    return Chart("matrix", "Where the map errs", note, {"": figure}, table, width=width)


def _strata(estimates: Estimates, shown: Shown) -> Table:
    sample = estimates.sample
    rows = [
        [name, whole_area(area * shown.factor), percent(area / sample.total), f"{points:,}"]
        for name, area, points in zip(
            sample.strata, sample.area_H.tolist(), sample.points_H.tolist(), strict=True
        )
    ]
    return Table(
        "Strata",
        ["Stratum", f"Area,{shown.sign}" if shown.sign else "Area", "of all", "Labelled points"],
        rows,
    )
