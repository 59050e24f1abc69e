"""Sections of the coverage report: charts, tables, and summary sentences.

The page works from disk, on a phone, on paper and with a screen reader: every chart has a heading with its
message, a reading guide, and its numbers as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import segmenter.diagnosis.report.charts as report_charts
from segmenter.base.errors import counted
from segmenter.base.invocation import invocation
from segmenter.diagnosis.data import Diagnosis, GsdFacts, PlanFacts, SceneMap
from segmenter.diagnosis.text import quota_header, quota_rows
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    ROW,
    Block,
    Chart,
    Charts,
    ClassCell,
    Head,
    KeyFigure,
    PageSection,
    Paragraph,
    ShareMaps,
    Table,
    TermList,
    colour,
    heat,
    label,
    layout,
    lines,
    list_names,
    names_axis,
    number,
    percent,
    plain,
    side_by_side,
)
from segmenter.runs.report.coverage import run_held, run_history, run_text

_FEW_MAPS = 4  # up to so many are drawn large
_MOST_VALUES = 300_000
"""Shares of all maps of a page: more would make it larger than 1.5 MB."""


def drawn_maps(diagnosis: Diagnosis) -> list[SceneMap]:
    """Return the maps that a page has room for, those with most tiles first; at least one."""
    ends = accumulate(len(diagnosis.classes) * each.rows * each.cols for each in diagnosis.maps)
    return list(diagnosis.maps[: max(1, sum(end <= _MOST_VALUES for end in ends))])


def map_section(diagnosis: Diagnosis) -> PageSection:
    """Return a small map for each scene or group; a reader chooses the class, the rarest comes first."""
    title, maps = "Where does a class lie?", drawn_maps(diagnosis)
    if not maps:
        return PageSection("maps", title, [Paragraph("There is no scene to draw a map of.")])
    if not diagnosis.rarest_first:
        return PageSection("maps", title, [Paragraph("")])
    left = diagnosis.maps_left_out + len(diagnosis.maps) - len(maps)
    note = "Each cell is a part of a scene; north is up where the scene has a place on the ground. "
    note += f"{counted(left, 'more map is', 'more maps are')} not shown." if left else ""
    block = ShareMaps(
        maps=[(one.name, _map_text(one)) for one in maps],
        choices=["All classes: the largest of each cell", *diagnosis.names],
        chosen=diagnosis.rarest_first[0] + 1,
        legend=[ClassCell(c.name, c.colour) for c in diagnosis.classes],
        few=len(maps) <= _FEW_MAPS,
        note=note,
        table=_map_table(diagnosis),
    )
    return PageSection("maps", title, [block])


def _map_text(one: SceneMap) -> str:
    text = counted(one.scenes, "scene")
    return f"{text}, {one.crs}" if one.georeferenced and one.crs else f"{text}, no place on the ground"


def _cells(one: SceneMap, c: int) -> list[float]:
    """Return the shares of class c in cells with data."""
    return [share for row in one.share[c] for share in row if share is not None]


def _map_table(diagnosis: Diagnosis) -> Table:
    """Return a table of each map's share of cells that show each class."""
    rows = []
    for one in diagnosis.maps:
        cells = [_cells(one, c.id) for c in diagnosis.classes]
        shares = [sum(s > 0 for s in of_class) / len(of_class) if of_class else None for of_class in cells]
        rows.append([one.name, *map(percent, shares)])
    return Table("Cells that show any of the class", ["Map", *diagnosis.names], rows)


def map_data(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Return the data from which the page's script draws the maps; shares in percent, two digits."""
    maps, ids = drawn_maps(diagnosis), range(len(diagnosis.classes))
    if not maps or not diagnosis.rarest_first:
        return None
    most = [max((s for m in maps for s in _cells(m, c)), default=0.0) for c in ids]
    shown = [sum(any(s > 0 for s in _cells(m, c)) for m in maps) for c in ids]
    titles = ["The class that covers most of each cell"]
    for name, count in zip(diagnosis.names, shown, strict=True):
        titles.append(f"{plain(name)} lies in {count} of {counted(len(maps), 'map')}")
    return {
        "maps": [
            {
                "rows": m.rows,
                "cols": m.cols,
                "aspect": _aspect(m),
                "share": [_round_shares(m.share[c]) for c in ids],
            }
            for m in maps
        ],
        "names": [label(name) for name in diagnosis.names],
        "colours": [colour(c.colour) for c in diagnosis.classes],
        "most": [_two_digits(share) for share in most],
        "mostText": [f"up to {percent(share)} of a cell" for share in most],
        "titles": titles,
    }


def _aspect(one: SceneMap) -> float:
    """Return a map's height divided by its width, limited to fit the page."""
    height, width = float(one.rows), float(one.cols)
    if one.bounds:
        left, bottom, right, top = one.bounds
        height, width = abs(top - bottom), abs(right - left)
    return float(min(1.6, max(0.3, height / width if width else 1.0)))


def _round_shares(share: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[None if s is None else _two_digits(s) for s in row] for row in share]


def _two_digits(share: float) -> float:
    """Return percent with two digits; whole numbers without a point: a page may have a million."""
    value = float(f"{100 * share:.2g}")
    return int(value) if value.is_integer() else value


def gsd_section(diagnosis: Diagnosis) -> PageSection:
    """Return the section on scales; empty if the scenes have one scale or none is known."""
    title = "Which classes are there at which scale?"
    ids, facts = diagnosis.rarest_first, diagnosis.scales
    if facts is None or not ids:
        return PageSection("scales", title, [])
    blocks: list[Block] = [Charts([_chart(diagnosis, facts, ids)]), _random(facts)]
    if not facts.planned:
        text = (
            "The plan does not tell scales apart: a step may hold a class at one scale only. With "
            "boundaries in sampling.scale_strata it holds each class at each."
        )
        blocks.append(Paragraph(text))
    return PageSection("scales", title, blocks)


def _chart(diagnosis: Diagnosis, facts: GsdFacts, ids: Sequence[int]) -> Chart:
    name, strata = diagnosis.names, range(len(facts.strata))
    share = [[facts.held[t][c] / facts.tiles[t] if facts.tiles[t] else None for t in strata] for c in ids]
    hovers = [
        [
            lines(
                f"Of the {counted(facts.tiles[t], 'tile')} at {facts.strata[t]},",
                f"{percent(row[t])} ({facts.held[t][c]:,}) hold {name[c]}",
            )
            for t in strata
        ]
        for c, row in zip(ids, share, strict=True)
    ]
    columns = names_axis(facts.strata) | {"range": [-0.5, len(facts.strata) - 0.5]}
    columns["title"] = {"text": "metres a pixel: share of the tiles (%)", "standoff": 8}
    rows = names_axis([name[c] for c in ids]) | {"range": [len(ids) - 0.5, -0.5]}
    look = layout(ROW * len(ids) + 120, columns, rows, plot_bgcolor="#c9ced4")
    figure = {"data": [heat(share, hovers, numbered=True)], "layout": look}
    note = (
        "Read down a column: of the tiles whose scenes have that scale, how many hold the class. Pale: the "
        "class is hardly there: the model sees it at other scales only."
    )
    return Chart("class-scales", _title(facts, ids, name), note, {"": figure}, _table(diagnosis, facts, ids))


def _random(facts: GsdFacts) -> Table:
    rows = [[number(one.batch), percent(one.probability)] for one in facts.random]
    header = ["Tiles in the batch", f"Random batches with all {facts.columns} classes at a scale"]
    return Table("Does a random batch hold each class at each scale?", header, rows)


def _title(facts: GsdFacts, ids: Sequence[int], name: Sequence[str]) -> str:
    """Return a title on the class held by the smallest share of tiles at any scale."""
    there = [t for t in range(len(facts.strata)) if facts.tiles[t]]
    held, c, t = min((facts.held[t][c] / facts.tiles[t], c, t) for c in ids for t in there)
    return f"{percent(held)} of the tiles at {facts.strata[t]} hold {plain(name[c])}"


def _table(diagnosis: Diagnosis, facts: GsdFacts, ids: Sequence[int]) -> Table:
    classes = diagnosis.classes
    heads = [
        f"{title} ({counted(scenes, 'scene')}, {counted(tiles, 'tile')})"
        for title, scenes, tiles in zip(facts.strata, facts.scenes, facts.tiles, strict=True)
    ]
    rows: list[list[str | ClassCell]] = [
        [ClassCell(classes[c].name, classes[c].colour), *(number(held[c]) for held in facts.held)]
        for c in ids
    ]
    return Table("Tiles that hold each class at each scale", ["Class", *heads], rows)


_USUAL_BATCH = 64
_LEVERS = {
    "batch": "Batch size",
    "min_pixels": "Pixels that hold a class",
    "label": "Labels",
    "tile_size": "Tile size",
}


def html_report(diagnosis: Diagnosis) -> str:
    """Return the report as one self-contained HTML page, UTF-8.

    Args:
        diagnosis: its names may be any text.
    """
    sections = [
        _classes(diagnosis),
        _co_occurrence_section(diagnosis),
        gsd_section(diagnosis),
        _forecast(diagnosis),
        _plans(diagnosis),
        _quotas(diagnosis),
        _limits(diagnosis),
        map_section(diagnosis),
        _run_section(diagnosis),
    ]
    title = f"Class coverage of {plain(diagnosis.dataset)}, {plain(diagnosis.split)}"
    maker, figure = invocation("coverage"), _key_figure(diagnosis)
    head = Head(title, headline(diagnosis), _facts(diagnosis), maker, figure)
    return html_page(head, sections, map_data(diagnosis))


# ------------------------------------------------------------------------------------------ sentences


def main_batch(diagnosis: Diagnosis) -> int:
    """Return the page's main batch size: the recipe's, else 64, else the largest with a plan."""
    made = [p.batch for p in report_charts.granted_plans(diagnosis)]
    sizes = made or [p.batch for p in diagnosis.plans]
    wanted = (diagnosis.global_batch, _USUAL_BATCH)
    choices = [size for size in wanted if size is not None and size in sizes]
    return int(choices[0] if choices else max(sizes, default=0))


def _by_chance(diagnosis: Diagnosis, plan: PlanFacts) -> float:
    """Return the share of random batches of a plan's size that hold all classes."""
    probability = {i.batch: i.probability for i in diagnosis.forecast.batches}
    return float(probability.get(plan.batch, plan.shuffle.complete_steps))


def _key_figure(diagnosis: Diagnosis) -> KeyFigure | None:
    """Return how often a random batch holds all classes; None without a plan."""
    plan = next((p for p in diagnosis.plans if p.batch == main_batch(diagnosis)), None)
    if plan is None or plan.refused or not diagnosis.rarest_first:
        return None
    what = f"of random batches of {counted(plan.batch, 'tile')} hold {_everything(diagnosis)}"
    planned = f"of planned ones {percent(plan.planned.complete_steps)}"
    return KeyFigure(percent(_by_chance(diagnosis, plan)), what, planned)


def headline(diagnosis: Diagnosis) -> str:
    """Return a summary of random batches and the plan in one or two sentences."""
    plans = {p.batch: p for p in diagnosis.plans}
    if not plans or not diagnosis.rarest_first:
        return "There is nothing to plan: no tile holds a class."
    plan = plans[main_batch(diagnosis)]
    every = _everything(diagnosis)
    if plan.refused:
        return f"No batch of {plan.batch:,} tiles can hold {every}: {plain(plan.refused)}"
    repeats = counted(plan.coverage_repeats, "repeat") if plan.coverage_repeats else "no repeats"
    random = _by_chance(diagnosis, plan)
    text = (
        f"A random batch of {plan.batch:,} holds {every} in {_spoken(random)} of the steps; the plan in "
        f"{_spoken(plan.planned.complete_steps)}, with {repeats} in {counted(plan.steps, 'step')}."
    )
    rare = [diagnosis.names[c] for c in plan.best_effort]
    if not rare:
        return text
    held = min((plan.planned.held_share[c] for c in plan.promised), default=1.0)
    text += f" {list_names(rare)} {'is' if len(rare) == 1 else 'are'} too rare to be promised"
    if plan.promised:
        text += f"; the other {counted(len(plan.promised), 'class is', 'classes are')} "
        text += "in every planned step" if held >= 1 else f"in at least {percent(held)} of the planned steps"
    return text + "."


def _spoken(share: float) -> str:
    return percent(share).replace(">", "more than").replace("<", "less than")


def _everything(diagnosis: Diagnosis) -> str:
    """Return text such as `all 8 classes`, or `all 6 classes that occur` if the class map has more."""
    ids = diagnosis.rarest_first
    every = f"all {len(ids)} classes" if len(ids) > 1 else "the only class"
    return every + (" that occur" if len(ids) > 1 and len(ids) < len(diagnosis.classes) else "")


def _facts(diagnosis: Diagnosis) -> dict[str, str]:
    facts = {
        "Scenes": number(diagnosis.scenes),
        "Tiles": number(diagnosis.tiles),
        "Tile size": f"{diagnosis.tile_px} px, overlap {diagnosis.overlap_px} px",
        "Holds a class from": counted(diagnosis.min_pixels, "pixel"),
        "Classes that occur": f"{len(diagnosis.rarest_first)} of {len(diagnosis.classes)}",
    }
    if diagnosis.left_out:
        facts["Left out"] = counted(diagnosis.left_out, "tile")
    return facts


# ------------------------------------------------------------------------------------------- sections


def _classes(diagnosis: Diagnosis) -> PageSection:
    blocks: list[Block] = []
    if absent := [c.name for c in diagnosis.classes if not c.tiles]:
        text = f"No tile holds {list_names(absent)}: nothing can be planned or learnt for that."
        blocks.append(Paragraph(text, "notice"))
    blocks += side_by_side(report_charts.class_tiles(diagnosis), report_charts.class_pixels(diagnosis))
    blocks += side_by_side(report_charts.classes_per_tile(diagnosis))
    return PageSection("classes", "Which classes are rare?", blocks)


def _co_occurrence_section(diagnosis: Diagnosis) -> PageSection:
    return PageSection(
        "together", "Which classes come together?", side_by_side(report_charts.co_occurrence_chart(diagnosis))
    )


def _forecast(diagnosis: Diagnosis) -> PageSection:
    title = "What does a random batch hold?"
    if not diagnosis.rarest_first:
        return PageSection("forecast", title, [])
    rows = [
        [f"{mark} %", counted(n, "tile") if n else "not even with all tiles"]
        for mark, n in diagnosis.forecast.needed.items()
    ]
    header = ["Share of random batches with all classes", "Tiles in the batch"]
    numbers = Table("How large a random batch has to be", header, rows)
    return PageSection("forecast", title, [*side_by_side(report_charts.forecast(diagnosis)), numbers])


def _plans(diagnosis: Diagnosis) -> PageSection:
    blocks: list[Block] = [
        Paragraph(f"{counted(p.batch, 'tile')}: no plan. {plain(p.refused)}", "notice")
        for p in diagnosis.plans
        if p.refused
    ]
    if report_charts.granted_plans(diagnosis) and diagnosis.rarest_first:
        batch = main_batch(diagnosis)
        blocks += side_by_side(report_charts.complete_steps(diagnosis))
        blocks += [report_charts.plan_table(diagnosis)]
        blocks += side_by_side(report_charts.gaps(diagnosis, batch))
        blocks += side_by_side(report_charts.repeats(diagnosis), report_charts.per_replica(diagnosis, batch))
    return PageSection("plan", "What does the plan change?", blocks)


def _quotas(diagnosis: Diagnosis) -> PageSection:
    title = "What do quotas change?"
    if not diagnosis.quotas:
        return PageSection("quotas", title, [])
    text = (
        "sampling.quota: presence puts each promised class into at least one tile of a step. quota: rarity "
        "asks for more tiles of a class the rarer its pixels are, and uses tiles with rare classes more "
        "often, the more so the higher sampling.lift is. The recipe's sampling.quotas hold in all columns. "
        "Each cell has the mean number of tiles that a step is promised and, in brackets, how often the "
        "tiles with that class are used in an epoch."
    )
    caption = f"Tiles of each class in a step of {number(diagnosis.global_batch or 0)}, and uses of its tiles"
    table = Table(caption, quota_header(diagnosis), quota_rows(diagnosis))
    return PageSection("quotas", title, [Paragraph(text), table])


def _limits(diagnosis: Diagnosis) -> PageSection:
    limit = diagnosis.limit
    blocks: list[Block] = [Paragraph(limit.why), *_best_effort(diagnosis)]
    if limit.levers:
        blocks.append(TermList([(_LEVERS.get(one.lever, one.lever), one.text) for one in limit.levers]))
    return PageSection("limits", "What limits it, and what would help?", blocks)


def _best_effort(diagnosis: Diagnosis) -> list[Block]:
    """Return the blocks on classes that are too rare for a promise."""
    name = diagnosis.names
    rows = [
        [name[c], number(p.batch), *(percent(p.side(side).held_share[c]) for side in ("shuffle", "plan"))]
        for p in report_charts.granted_plans(diagnosis)
        for c in p.best_effort
    ]
    if not rows:
        text = "The plan promises every class that occurs, at every batch size that has a plan."
        return [Paragraph(text), *_rare_at_gsd(diagnosis)]
    header = ["Class", "Tiles in the batch", "Shuffle: steps that hold it", "Plan: steps that hold it"]
    text = (
        "These classes are in so few tiles that a promise would show the same tiles again and again. The "
        "plan spreads them as far as the limit of repeats allows, and promises nothing:"
    )
    return [Paragraph(text), Table("Classes at best effort", header, rows), *_rare_at_gsd(diagnosis)]


def _rare_at_gsd(diagnosis: Diagnosis) -> list[Block]:
    """Return a table of classes too rare for a promise at one scale, if the recipe plans by scale."""
    rows = [
        [name, number(p.batch)] for p in report_charts.granted_plans(diagnosis) for name in p.rare_at_scale
    ]
    return [Table("Best effort at their scale", ["Class", "Tiles in the batch"], rows)] if rows else []


def _run_section(diagnosis: Diagnosis) -> PageSection:
    run, blocks = diagnosis.run, list[Block]()
    title = "After the run: what was promised, and what was there"
    if run is None:
        return PageSection("run", title, [])
    blocks += run_text(run)
    name, ids = diagnosis.names, diagnosis.rarest_first
    blocks += side_by_side(run_held(name, ids, run), run_history(name, ids, run))
    return PageSection("run", title, blocks)
