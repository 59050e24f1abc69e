"""Several runs beside each other: rankings of those with one protocol, speed, settings that differ.

As all scores: numbers of different protocols are not put together. A ranking has runs of one protocol only,
and of the same labels: these have the same pixels of each class, whatever a run made of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product

import numpy as np

from segmenter.base.errors import counted
from segmenter.base.invocation import invocation
from segmenter.config.reading import flat_settings
from segmenter.evaluation.scores import FIGURES, Protocol, Scores, score_of, title_of
from segmenter.pages.layout import Data, axis, layout, percent_axis
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    Block,
    Chart,
    Charts,
    Head,
    Paragraph,
    Section,
    Table,
    number,
    percent,
    plain,
)
from segmenter.runs.report.curves import kept, line, losses, steps_axis, thinned
from segmenter.runs.report.run_record import Story
from segmenter.runs.report.settings import shown
from segmenter.runs.report.speed import duration

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f")
_DASHES = ("solid", "dash", "dot", "dashdot")
_IDENTITY = {"name"}
"""Settings that differ between runs of one kind."""


@dataclass(frozen=True)
class Group:
    """Runs whose scores may be compared, the best first.

    Attributes:
        title: the protocol, and the score of the ranking.
        members: numbers of the runs.
    """

    title: str
    members: Sequence[int]
    ranking: Table
    classes: Table


@dataclass(frozen=True)
class Compared:
    """Runs beside each other.

    Attributes:
        names: of the runs, each unlike the others.
        apart: why runs are not in one ranking, a line each.
        unscored: runs without scores.
    """

    stories: Sequence[Story]
    names: Sequence[str]
    groups: Sequence[Group]
    apart: Sequence[str]
    unscored: Table
    speed: Table
    settings: Table


def comparison(stories: Sequence[Story]) -> Compared:
    """The tables of a comparison."""
    names = _names(stories)
    with_scores = [(i, story.best.scores) for i, story in enumerate(stories) if story.best is not None]
    groups: list[list[tuple[int, Scores]]] = []
    for one in with_scores:
        alike = (g for g in groups if not _differences(one[1], g[0][1]))
        group = next(alike, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    groups.sort(key=len, reverse=True)  # the largest first
    without = [i for i, story in enumerate(stories) if story.best is None]
    return Compared(
        stories,
        names,
        [_group(stories, names, group) for group in groups],
        _apart(names, groups),
        Table("Without scores", ["Run", "Why"], [[names[i], _why_none(stories[i])] for i in without]),
        _speed(stories, names),
        _settings(stories, names),
    )


def _names(stories: Sequence[Story]) -> list[str]:
    """The last parts of the runs' paths, as many as it takes to tell them apart."""
    paths = [story.run.path.absolute().parts for story in stories]
    for count in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-count:]).replace("//", "/") for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [str(story.run.path) for story in stories]


def _why_none(story: Story) -> str:
    return "no validation was done" if not story.validations else "the file of its best scores is not there"


def _apart(names: Sequence[str], groups: Sequence[Sequence[tuple[int, Scores]]]) -> list[str]:
    """Why each group is not with the first."""
    if len(groups) < 2:
        return []
    first = groups[0][0]
    lines = []
    for other in groups[1:]:
        differences = _differences(first[1], other[0][1])
        lines.append(f"{names[first[0]]} and {names[other[0][0]]}: {'; '.join(map(_short, differences))}")
    return lines


def _differences(one: Scores, other: Scores) -> list[str]:
    """Why two scores are not put together."""
    found = one.protocol.differences(other.protocol)
    if found or np.array_equal(one.truth_pixels, other.truth_pixels):
        return found
    differing = int(np.flatnonzero(one.truth_pixels != other.truth_pixels)[0])
    name, pixels = one.protocol.classes[differing], [s.truth_pixels[differing] for s in (one, other)]
    return [f"labels that differ: {pixels[0]:,} and {pixels[1]:,} pixels of {plain(name)}"]


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:70]} … {text[-48:]}"


# ---------------------------------------------------------------------------------------- rankings


def _group(stories: Sequence[Story], names: Sequence[str], group: Sequence[tuple[int, Scores]]) -> Group:
    name = _ranked_by([stories[i] for i, _ in group], group[0][1].protocol)
    ranked = sorted(group, key=lambda one: _down(score_of(one[1], name)))
    columns = list(dict.fromkeys([name, *FIGURES]))
    header = ["Run", *map(title_of, columns), "best epoch", "of", "steps"]
    rows = []
    for i, scores in ranked:
        story = stories[i]
        best = story.best
        cells = [_two(score_of(scores, column)) for column in columns]
        epochs = str(story.run.recipe.training.epochs)
        rows.append([names[i], *cells, "–" if best is None else str(best.epoch), epochs, number(story.steps)])
    title = f"{plain(str(group[0][1].protocol))}; by {title_of(name)}, in percent"
    return Group(title, [i for i, _ in ranked], Table(title, header, rows), _class_table(names, ranked))


def _ranked_by(stories: Sequence[Story], protocol: Protocol) -> str:
    """The score that all choose their best by, or mIoU."""
    chosen = {story.run.recipe.training.best_by for story in stories}
    name = next(iter(chosen)) if len(chosen) == 1 else "miou"
    of = name.partition(":")[2]
    return name if not of or of in protocol.classes else "miou"


def _class_table(names: Sequence[str], ranked: Sequence[tuple[int, Scores]]) -> Table:
    rows = []
    for name in ranked[0][1].protocol.classes:
        values = [float(s.iou[s.protocol.classes.index(name)]) for _, s in ranked]
        there = [value for value in values if not math.isnan(value)]
        top = max(there, default=math.inf)
        several = len(there) > 1
        rows.append([name, *(("*" if several and v == top else "") + _two(v) for v in values)])
    header = ["Class", *(names[i] for i, _ in ranked)]
    return Table("IoU of each class at the best validation, in percent; *: the highest", header, rows)


def _down(value: float) -> float:
    return math.inf if math.isnan(value) else -value


def _two(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.2f}"


# ------------------------------------------------------------------------------- speed and settings


def _speed(stories: Sequence[Story], names: Sequence[str]) -> Table:
    rows = []
    for story, name in zip(stories, names, strict=True):
        speeds = story.speeds
        rate = f"{sorted(s.rate for s in speeds)[len(speeds) // 2]:,.1f}" if speeds else "–"
        times = [s.seconds for s in speeds if s.seconds is not None]
        time = duration(sum(times)) if times else "–"
        devices = "–" if story.facts is None else str(story.facts.replicas)
        rows.append([name, rate, percent(story.waiting), time, devices, story.status])
    header = ["Run", "images/s", "waiting", "time of steps", "devices", "how far"]
    return Table("Speed; waiting: for data, share of the time", header, rows)


def _settings(stories: Sequence[Story], names: Sequence[str]) -> Table:
    known = [flat_settings(story.run.recipe) for story in stories]
    keys = dict.fromkeys(key for settings in known for key in settings)
    rows = []
    for key in keys:
        values = [shown(settings[key]) if key in settings else "–" for settings in known]
        if len({repr(settings.get(key)) for settings in known}) > 1 and key not in _IDENTITY:
            rows.append([key, *values])
    return Table("Settings in which they differ", ["Setting", *names], rows, True)


# -------------------------------------------------------------------------------------------- page


def compare_page(compared: Compared) -> str:
    """The comparison as one HTML page.

    Raises:
        SegmenterError: a package of the extra `report` is not installed.
    """
    sections = [_group_section(compared, number, group) for number, group in enumerate(compared.groups)]
    if compared.apart:
        lines = [Paragraph(plain(text), "notice") for text in compared.apart]
        text = "Their scores have different protocols, and would say nothing beside each other."
        sections.append(Section("apart", "Why are they not in one ranking?", [Paragraph(text), *lines]))
    if compared.unscored.rows:
        sections.append(Section("unscored", "Which have no scores?", [compared.unscored]))
    sections.append(Section("losses", "How did the loss fall?", _losses(compared)))
    sections.append(Section("speeds", "How fast were they?", [compared.speed]))
    same = Paragraph("Their recipes have the same settings.")
    settings: list[Block] = [compared.settings] if compared.settings.rows else [same]
    sections.append(Section("settings", "In which settings do they differ?", settings))
    facts = {"Runs": str(len(compared.stories)), "Rankings": str(len(compared.groups))}
    head = Head("Trainings compared", _lead(compared), facts, f"{invocation('runs')} compare")
    return html_page(head, sections)


def _lead(compared: Compared) -> str:
    ranked = [group for group in compared.groups if len(group.members) > 1]
    if not ranked:
        return "No two of these runs have scores of one protocol: they cannot be ranked."
    texts = []
    for group in ranked:
        best, column = group.ranking.rows[0], group.ranking.header[1]
        of = f"of {counted(len(group.members), 'run')} with one protocol"
        texts.append(f"{plain(str(best[0]))} has the highest {plain(column)}, {best[1]} %, {of}.")
    return " ".join(texts)


def _group_section(compared: Compared, number: int, group: Group) -> Section:
    several = f" (ranking {number + 1} of {len(compared.groups)})" if len(compared.groups) > 1 else ""
    charts = [chart for chart in (_scores_chart(compared, number, group),) if chart]
    blocks: list[Block] = [group.ranking, *([Charts(charts)] if charts else []), group.classes]
    return Section(f"ranking-{number}", f"Which is best?{several}", blocks)


def _look(i: int) -> Data:
    colour, dash = next(islice(((c, d) for d, c in cycle(product(_DASHES, _COLOURS))), i, None))
    return {"line": {"color": colour, "width": 2, "dash": dash}, "marker": {"color": colour, "size": 6}}


def _overlaid(title: str, note: str, name: str, data: list[Data], y: Data, table: Table) -> Chart:
    look = layout(400, steps_axis(), y, showlegend=True)
    look["legend"] |= {"y": -0.2, "yanchor": "top"}
    return Chart(name, title, note, {"": {"data": data, "layout": look}}, table)


def _scores_chart(compared: Compared, number_: int, group: Group) -> Chart | None:
    data, rows = [], []
    for i in group.members:
        story = compared.stories[i]
        best = None if story.best is None else story.best.step
        found = kept(story.validations, best)
        points = [(v.step, None if v.miou is None else 100 * v.miou) for v in found]
        if points:
            data.append(line(points, compared.names[i], "%{y:.2f} %", **_look(i)))
        rows += [[compared.names[i], str(v.epoch), number(v.step), percent(v.miou)] for v in found]
    if not data:
        return None
    table = Table("mIoU of each validation", ["Run", "Epoch", "Step", "mIoU"], rows)
    title = "mIoU of the validations, over the steps"
    note = "Steps of different batch sizes show the model different numbers of tiles."
    return _overlaid(title, note, f"scores-{number_}", data, percent_axis("mIoU"), table)


def _losses(compared: Compared) -> list[Block]:
    data, rows = [], []
    for i, story in enumerate(compared.stories):
        points = thinned(losses(story.lines), 200)
        if points:
            data.append(line(points, compared.names[i], "%{y:.4g}", mode="lines", **_look(i)))
            last = points[-1]
            rows.append([compared.names[i], number(last[0]), "–" if last[1] is None else f"{last[1]:.4g}"])
    if not data:
        return [Paragraph("None of the runs has logged a step.")]
    kinds = {
        repr(sorted(story.run.recipe.loss.model_dump(mode="json").items())) for story in compared.stories
    }
    note = "Means of neighbouring lines of the log."
    note += " The recipes have different losses: their values say nothing beside each other." * (
        len(kinds) > 1
    )
    table = Table("Loss at the end", ["Run", "Step", "Loss"], rows)
    title = "The losses, over the steps"
    return [Charts([_overlaid(title, note, "losses-chart", data, axis("loss", rangemode="tozero"), table)])]
