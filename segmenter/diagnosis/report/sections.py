"""Sections of the coverage report: charts, tables, and summary sentences.

The page works from disk, on a phone, on paper and with a screen reader: every chart has a heading with its
message, a reading guide, and its numbers as a table.
"""

from __future__ import annotations

import segmenter.diagnosis.report.charts as report_charts
import segmenter.diagnosis.report.plans as report_plans
from segmenter.base.errors import counted
from segmenter.base.invocation import invocation
from segmenter.diagnosis.data import Diagnosis
from segmenter.diagnosis.report.gsd import gsd_section
from segmenter.diagnosis.report.maps import map_data, map_section
from segmenter.diagnosis.text import quota_header, quota_rows
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    Block,
    Head,
    Paragraph,
    Points,
    Section,
    Table,
    listed,
    number,
    percent,
    plain,
    side_by_side,
)
from segmenter.runs.report.coverage import run_held, run_history, run_text

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

    Raises:
        SegmenterError: a package of the extra `report` is not installed.
    """
    sections = [
        _classes(diagnosis),
        _together(diagnosis),
        gsd_section(diagnosis),
        _forecast(diagnosis),
        _plans(diagnosis),
        _quotas(diagnosis),
        _limits(diagnosis),
        map_section(diagnosis),
        _run(diagnosis),
    ]
    title = f"Class coverage of {plain(diagnosis.dataset)}, {plain(diagnosis.split)}"
    head = Head(title, headline(diagnosis), _facts(diagnosis), f"{invocation('datasets')} coverage")
    return html_page(head, sections, map_data(diagnosis))


# ------------------------------------------------------------------------------------------ sentences


def main_batch(diagnosis: Diagnosis) -> int:
    """Return the page's main batch size: the recipe's, else 64, else the largest with a plan."""
    made = [p.batch for p in report_plans.made(diagnosis)]
    sizes = made or [p.batch for p in diagnosis.plans]
    wanted = (diagnosis.global_batch, _USUAL_BATCH)
    choices = [size for size in wanted if size is not None and size in sizes]
    return int(choices[0] if choices else max(sizes, default=0))


def headline(diagnosis: Diagnosis) -> str:
    """Return a summary of random batches and the plan in one or two sentences."""
    plans = {p.batch: p for p in diagnosis.plans}
    if not plans or not diagnosis.rarest_first:
        return "There is nothing to plan: no tile holds a class."
    plan = plans[main_batch(diagnosis)]
    every = _everything(diagnosis)
    if plan.refused:
        return f"No batch of {plan.batch:,} tiles can hold {every}: {plain(plan.refused)}"
    probability = {i.batch: i.probability for i in diagnosis.forecast.batches}
    random = probability.get(plan.batch, plan.shuffle.complete_steps)
    repeats = counted(plan.coverage_repeats, "repeat") if plan.coverage_repeats else "no repeats"
    text = (
        f"A random batch of {plan.batch:,} holds {every} in {_spoken(random)} of the steps; the plan in "
        f"{_spoken(plan.planned.complete_steps)}, with {repeats} in {counted(plan.steps, 'step')}."
    )
    rare = [diagnosis.names[c] for c in plan.best_effort]
    if not rare:
        return text
    held = min((plan.planned.held_share[c] for c in plan.promised), default=1.0)
    text += f" {listed(rare)} {'is' if len(rare) == 1 else 'are'} too rare to be promised"
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


def _classes(diagnosis: Diagnosis) -> Section:
    blocks: list[Block] = []
    if absent := [c.name for c in diagnosis.classes if not c.tiles]:
        text = f"No tile holds {listed(absent)}: nothing can be planned or learnt for that."
        blocks.append(Paragraph(text, "notice"))
    blocks += side_by_side(report_charts.class_tiles(diagnosis), report_charts.class_pixels(diagnosis))
    blocks += side_by_side(report_charts.classes_per_tile(diagnosis))
    return Section("classes", "Which classes are rare?", blocks)


def _together(diagnosis: Diagnosis) -> Section:
    return Section(
        "together", "Which classes come together?", side_by_side(report_charts.together(diagnosis))
    )


def _forecast(diagnosis: Diagnosis) -> Section:
    title = "What does a random batch hold?"
    if not diagnosis.rarest_first:
        return Section("forecast", title, [])
    rows = [
        [f"{mark} %", counted(n, "tile") if n else "not even with all tiles"]
        for mark, n in diagnosis.forecast.needed.items()
    ]
    header = ["Share of random batches with all classes", "Tiles in the batch"]
    numbers = Table("How large a random batch has to be", header, rows)
    return Section("forecast", title, [*side_by_side(report_charts.forecast(diagnosis)), numbers])


def _plans(diagnosis: Diagnosis) -> Section:
    blocks: list[Block] = [
        Paragraph(f"{counted(p.batch, 'tile')}: no plan. {plain(p.refused)}", "notice")
        for p in diagnosis.plans
        if p.refused
    ]
    if report_plans.made(diagnosis):
        batch = main_batch(diagnosis)
        blocks += side_by_side(report_plans.complete_steps(diagnosis))
        blocks += [report_plans.plan_table(diagnosis)]
        blocks += side_by_side(report_plans.gaps(diagnosis, batch))
        blocks += side_by_side(report_plans.repeats(diagnosis), report_plans.per_replica(diagnosis, batch))
    return Section("plan", "What does the plan change?", blocks)


def _quotas(diagnosis: Diagnosis) -> Section:
    title = "What do quotas change?"
    if not diagnosis.quotas:
        return Section("quotas", title, [])
    text = (
        "sampling.quota: presence puts each promised class into at least one tile of a step. quota: rarity "
        "asks for more tiles of a class the rarer its pixels are; sampling.lift limits how often the tiles "
        "of such a class are used for its sake. Each cell has the mean number of tiles that a step is "
        "promised and, in brackets, how often the tiles with that class are used in an epoch."
    )
    caption = f"Tiles of each class in a step of {number(diagnosis.global_batch or 0)}, and uses of its tiles"
    table = Table(caption, quota_header(diagnosis), quota_rows(diagnosis))
    return Section("quotas", title, [Paragraph(text), table])


def _limits(diagnosis: Diagnosis) -> Section:
    limit = diagnosis.limit
    blocks: list[Block] = [Paragraph(limit.why), *_best_effort(diagnosis)]
    if limit.levers:
        blocks.append(Points([(_LEVERS.get(one.lever, one.lever), one.text) for one in limit.levers]))
    return Section("limits", "What limits it, and what would help?", blocks)


def _best_effort(diagnosis: Diagnosis) -> list[Block]:
    """Return the blocks on classes that are too rare for a promise."""
    name = diagnosis.names
    rows = [
        [name[c], number(p.batch), *(percent(p.side(side).held_share[c]) for side in ("shuffle", "plan"))]
        for p in report_plans.made(diagnosis)
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
    rows = [[name, number(p.batch)] for p in report_plans.made(diagnosis) for name in p.rare_at_scale]
    return [Table("Best effort at their scale", ["Class", "Tiles in the batch"], rows)] if rows else []


def _run(diagnosis: Diagnosis) -> Section:
    run, blocks = diagnosis.run, list[Block]()
    title = "After the run: what was promised, and what was there"
    if run is None:
        return Section("run", title, [])
    blocks += run_text(run)
    name, ids = diagnosis.names, diagnosis.rarest_first
    blocks += side_by_side(run_held(name, ids, run), run_history(name, ids, run))
    return Section("run", title, blocks)
