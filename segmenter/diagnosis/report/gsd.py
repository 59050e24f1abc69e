"""Chart of the report: classes by ground sampling distance."""

from __future__ import annotations

from collections.abc import Sequence

from segmenter.base.errors import counted
from segmenter.diagnosis.data import Diagnosis, GsdFacts
from segmenter.pages.layout import ROW, heat, layout, names_axis
from segmenter.pages.parts import (
    Block,
    Chart,
    Charts,
    Named,
    Paragraph,
    Section,
    Table,
    lines,
    number,
    percent,
    plain,
)


def gsd_section(diagnosis: Diagnosis) -> Section:
    """Return the section on scales; empty if the scenes have one scale or none is known."""
    title = "Which classes are there at which scale?"
    ids, facts = diagnosis.rarest_first, diagnosis.scales
    if facts is None or not ids:
        return Section("scales", title, [])
    blocks: list[Block] = [Charts([_chart(diagnosis, facts, ids)]), _random(facts)]
    if not facts.planned:
        text = (
            "The plan does not tell scales apart: a step may hold a class at one scale only. With "
            "boundaries in sampling.scale_strata it holds each class at each."
        )
        blocks.append(Paragraph(text))
    return Section("scales", title, blocks)


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
    rows: list[list[str | Named]] = [
        [Named(classes[c].name, classes[c].colour), *(number(held[c]) for held in facts.held)] for c in ids
    ]
    return Table("Tiles that hold each class at each scale", ["Class", *heads], rows)
