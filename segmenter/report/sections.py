"""The coverage diagnosis as one HTML page that needs no network: charts, tables, sentences that sum them up.

The page works from disk, on a phone and on paper, and without seeing: every chart has a heading that says
what it shows, a text on how to read it, and its numbers as a table.
"""

from __future__ import annotations

import segmenter.report.charts as report_charts
import segmenter.report.plans as report_plans
import segmenter.report.run as report_run
from segmenter.report.html import (
    Chart,
    Html,
    counted,
    drawn,
    escaped,
    figure,
    listed,
    number,
    page,
    paragraph,
    percent,
    plain,
    section,
    table,
)
from segmenter.report.layout import Data, names, order
from segmenter.report.maps import map_data, map_section

VERSION = 1  # of the diagnosis' schema
_USUAL_BATCH = 64
_LEVERS = {
    "batch": "Batch size",
    "min_pixels": "Pixels that hold a class",
    "label": "Labels",
    "tile_size": "Tile size",
}


def html_report(diagnosis: Data) -> str:
    """The report as one self-contained HTML page, UTF-8.

    Args:
        diagnosis: as `segmenter.diagnosis.diagnose` gives it. Names in it may be any text.

    Raises:
        SegmenterError: where the package plotly is not installed.
        ValueError: where the diagnosis has another version.
    """
    if diagnosis["version"] != VERSION:
        raise ValueError(f"the diagnosis has version {diagnosis['version']}, the report reads {VERSION}")
    charts: list[Chart] = []
    parts = [
        _classes(diagnosis, charts),
        _together(diagnosis, charts),
        _forecast(diagnosis, charts),
        _plans(diagnosis, charts),
        _limits(diagnosis),
        map_section(diagnosis),
        _run(diagnosis, charts),
    ]
    shown = [(name, title, part) for name, title, part in parts if part]
    links = "".join(f'<li><a href="#{name}">{escaped(title)}</a></li>' for name, title, _ in shown)
    title = f"Class coverage of {plain(diagnosis['dataset'])}, {plain(diagnosis['split'])}"
    body = Html(
        f'<a class="skip" href="#main">To the charts</a><header><h1>{escaped(title)}</h1>'
        f"{paragraph(headline(diagnosis), 'lead')}{_facts(diagnosis)}"
        f'<nav aria-label="Parts of this page"><ul>{links}</ul></nav></header>'
        "<noscript><p>The charts need JavaScript. The tables below them have the same numbers.</p></noscript>"
        f'<main id="main">{"".join(section(*part) for part in shown)}</main>'
        "<footer><p>Made by <code>python -m datasets coverage</code>. "
        "This page loads nothing from the network and can be passed on as it is.</p></footer>"
    )
    return page(title, body, {"charts": drawn(charts), "maps": map_data(diagnosis)})


# ------------------------------------------------------------------------------------------ sentences


def main_batch(diagnosis: Data) -> int:
    """The batch size that the page speaks of first: the recipe's, else 64, else the largest with a plan."""
    made = [p["batch"] for p in report_plans.made(diagnosis)]
    sizes = made or [p["batch"] for p in diagnosis["plans"]]
    wanted = (diagnosis.get("global_batch"), _USUAL_BATCH)
    found = [size for size in wanted if size is not None and size in sizes]
    return int(found[0] if found else max(sizes, default=0))


def headline(diagnosis: Data) -> str:
    """What a random batch and the plan hold, in one or two sentences."""
    plans = {p["batch"]: p for p in diagnosis["plans"]}
    if not plans or not order(diagnosis):
        return "There is nothing to plan: no tile holds a class."
    plan = plans[main_batch(diagnosis)]
    every = _everything(diagnosis)
    if plan["refused"]:
        return f"No batch of {plan['batch']:,} tiles can hold {every}: {plain(plan['refused'])}"
    said = {i["batch"]: i["probability"] for i in diagnosis["forecast"]["batches"]}
    random = said.get(plan["batch"], plan["shuffle"]["complete_steps"])
    repeats = counted(plan["coverage_repeats"], "repeat") if plan["coverage_repeats"] else "no repeats"
    text = (
        f"A random batch of {plan['batch']:,} holds {every} in {_spoken(random)} of the steps; the plan in "
        f"{_spoken(plan['plan']['complete_steps'])}, with {repeats} in {counted(plan['steps'], 'step')}."
    )
    rare = [names(diagnosis)[c] for c in plan["best_effort"]]
    if not rare:
        return text
    held = min((plan["plan"]["held_share"][c] for c in plan["promised"]), default=1.0)
    text += f" {listed(rare)} {'is' if len(rare) == 1 else 'are'} too rare to be promised"
    if plan["promised"]:
        text += f"; the other {counted(len(plan['promised']), 'class is', 'classes are')} "
        text += "in every planned step" if held >= 1 else f"in at least {percent(held)} of the planned steps"
    return text + "."


def _spoken(share: float) -> str:
    return percent(share).replace(">", "more than").replace("<", "less than")


def _everything(diagnosis: Data) -> str:
    """`all 8 classes`; `all 6 classes that occur` where the class map has more."""
    ids = order(diagnosis)
    every = f"all {len(ids)} classes" if len(ids) > 1 else "the only class"
    return every + (" that occur" if len(ids) > 1 and len(ids) < len(diagnosis["classes"]) else "")


def _facts(diagnosis: Data) -> Html:
    facts = {
        "Scenes": number(diagnosis["scenes"]),
        "Tiles": number(diagnosis["tiles"]),
        "Tile size": f"{diagnosis['tile_px']} px, overlap {diagnosis['overlap_px']} px",
        "Holds a class from": counted(diagnosis["min_pixels"], "pixel"),
        "Classes that occur": f"{len(order(diagnosis))} of {len(diagnosis['classes'])}",
    }
    if diagnosis["left_out"]:
        facts["Left out"] = counted(diagnosis["left_out"], "tile")
    pairs = (f"<div><dt>{escaped(key)}</dt><dd>{escaped(value)}</dd></div>" for key, value in facts.items())
    return Html(f'<dl class="facts">{"".join(pairs)}</dl>')


def _add(charts: list[Chart], *more: Chart | None) -> Html:
    """Their places on the page; a pair stands side by side where there is room."""
    found = [chart for chart in more if chart]
    charts += found
    places = "".join(map(figure, found))
    return Html(f'<div class="pair">{places}</div>' if len(found) > 1 else places)


# ------------------------------------------------------------------------------------------- sections

Part = tuple[str, str, Html]


def _classes(diagnosis: Data, charts: list[Chart]) -> Part:
    absent = [c["name"] for c in diagnosis["classes"] if not c["tiles"]]
    text = Html("")
    if absent:
        text = paragraph(
            f"No tile holds {listed(absent)}: nothing can be planned or learnt for that.", "notice"
        )
    pair = _add(charts, report_charts.class_tiles(diagnosis), report_charts.class_pixels(diagnosis))
    tiles = _add(charts, report_charts.classes_per_tile(diagnosis))
    return "classes", "Which classes are rare?", Html(text + pair + tiles)


def _together(diagnosis: Data, charts: list[Chart]) -> Part:
    return "together", "Which classes come together?", _add(charts, report_charts.together(diagnosis))


def _forecast(diagnosis: Data, charts: list[Chart]) -> Part:
    if not order(diagnosis):
        return "forecast", "What does a random batch hold?", Html("")
    needed = diagnosis["forecast"]["needed"]
    rows = [
        [f"{mark} %", counted(n, "tile") if n else "not even with all tiles"] for mark, n in needed.items()
    ]
    header = ["Share of random batches with all classes", "Tiles in the batch"]
    chart = _add(charts, report_charts.forecast(diagnosis))
    numbers = table("How large a random batch has to be", header, rows)
    return "forecast", "What does a random batch hold?", Html(chart + numbers)


def _plans(diagnosis: Data, charts: list[Chart]) -> Part:
    title = "What does the plan change?"
    refused = [
        paragraph(f"{counted(p['batch'], 'tile')}: no plan. {plain(p['refused'])}", "notice")
        for p in diagnosis["plans"]
        if p["refused"]
    ]
    if not report_plans.made(diagnosis):
        return "plan", title, Html("".join(refused))
    first = _add(charts, report_plans.complete_steps(diagnosis))
    batch = main_batch(diagnosis)
    gaps = _add(charts, report_plans.gaps(diagnosis, batch))
    pair = _add(charts, report_plans.repeats(diagnosis), report_plans.per_replica(diagnosis, batch))
    parts = [*refused, first, report_plans.plan_table(diagnosis), gaps, pair]
    return "plan", title, Html("".join(parts))


def _limits(diagnosis: Data) -> Part:
    limit = diagnosis["limit"]
    pairs = [(_LEVERS.get(one["lever"], one["lever"]), one["text"]) for one in limit["levers"]]
    levers = "".join(f"<li><strong>{escaped(a)}:</strong> {escaped(b)}</li>" for a, b in pairs)
    text = paragraph(limit["why"]) + _best_effort(diagnosis) + (f"<ul>{levers}</ul>" if levers else "")
    return "limits", "What limits it, and what would help?", Html(text)


def _best_effort(diagnosis: Data) -> Html:
    """What becomes of the classes that are too rare for a promise."""
    name = names(diagnosis)
    rows = [
        [name[c], number(p["batch"]), *(percent(p[side]["held_share"][c]) for side in ("shuffle", "plan"))]
        for p in report_plans.made(diagnosis)
        for c in p["best_effort"]
    ]
    if not rows:
        return paragraph("The plan promises every class that occurs, at every batch size that has a plan.")
    header = ["Class", "Tiles in the batch", "Shuffle: steps that hold it", "Plan: steps that hold it"]
    text = (
        "These classes are in so few tiles that a promise would show the same tiles again and again. The "
        "plan spreads them as far as the limit of repeats allows, and promises nothing:"
    )
    return Html(paragraph(text) + table("Classes at best effort", header, rows))


def _run(diagnosis: Data, charts: list[Chart]) -> Part:
    run = diagnosis["run"]
    title = "After the run: what was promised, and what was there"
    if run is None:
        return "run", title, Html("")
    short = run["short_steps"]
    drawn_tiles = counted(run["tiles_drawn"], "tile")
    text = f"{plain(run['path'])}: {counted(run['steps'], 'step')}, {drawn_tiles} drawn. "
    text += "No step was short of a promised class. " if not short and run["promised"] else ""
    text += (
        f"The augmentation of {percent(run['redrawn'])} of these tiles was drawn again, because it had lost "
        f"the tile's class; that of {percent(run['replaced'])} was replaced by one that cannot lose it."
    )
    warning = Html("")
    if short:
        note = f"{counted(short, 'step')} of {run['steps']:,} lacked a class that was promised."
        warning = paragraph(note, "notice")
    history = report_run.run_history(diagnosis)
    held = _add(charts, report_run.run_held(diagnosis), history)
    return "run", title, Html(warning + paragraph(text) + held)
