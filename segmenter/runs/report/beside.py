"""Several runs side by side: how far each is, their curves, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segmenter.evaluation.scores import percent as table_percent
from segmenter.evaluation.scores import score_of, title_of
from segmenter.pages.parts import (
    Block,
    Chart,
    Data,
    PageSection,
    Paragraph,
    Table,
    TermList,
    axis,
    layout,
    number,
    percent_axis,
    plain,
    side_by_side,
)
from segmenter.runs.compare import differing_settings, score_differences
from segmenter.runs.report.charts import Points, line, losses, steps_axis, thin_points
from segmenter.runs.report.run_record import Story

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("solid", "dash", "dot")


def beside_sections(
    stories: Sequence[Story], names: Sequence[str], states: Sequence[str]
) -> list[PageSection]:
    """Return the sections of a page about several runs.

    Args:
        names: a short name of each run.
        states: how far each is, a sentence.
    """
    header = ["Run", "Best", "Best epoch", "Steps", "Images/s"]
    rows = [_row(*each) for each in zip(stories, names, strict=True)]
    blocks: list[Block] = [
        TermList(list(zip(names, states, strict=True))),
        Table("Best scores and speed", header, rows, words=True),
    ]
    scored = [(name, story.best.scores) for name, story in zip(names, stories, strict=True) if story.best]
    for name, scores in scored[1:]:
        if differences := score_differences(scores, scored[0][1]):
            text = f"{name} and {scored[0][0]} are not to be compared: {'; '.join(differences)}."
            blocks.append(Paragraph(plain(text), "notice"))
    blocks += side_by_side(_loss(stories, names), _scores(stories, names))
    settings = differing_settings(stories)
    different: Block = Paragraph("Their recipes have the same settings.")
    if settings:
        different = Table("Settings in which they differ", ["Setting", *names], settings, words=True)
    return [
        PageSection("runs", "How far are they?", blocks),
        PageSection("settings", "In which settings do they differ?", [different]),
    ]


def _row(story: Story, name: str) -> list[str]:
    best, by = story.best, story.run.recipe.training.best_by
    rate = story.speeds[-1].rate if story.speeds else None
    score = "–"
    if best is not None:
        try:
            score = f"{title_of(by)} {table_percent(score_of(best.scores, by))}"
        except (ValueError, AttributeError):  # scores of other classes than the recipe speaks of
            score = f"mIoU {table_percent(best.scores.miou)}"
    return [
        name,
        score,
        "–" if best is None else str(best.epoch),
        number(story.steps),
        number(rate, 1),
    ]


def _curves(
    stories: Sequence[Story], names: Sequence[str], of: Callable[[Story], Points], text: str
) -> list[Data]:
    data = []
    for place, (story, name) in enumerate(zip(stories, names, strict=True)):
        dash = _DASHES[place // len(_COLOURS) % len(_DASHES)]
        look = {"color": _COLOURS[place % len(_COLOURS)], "width": 2, "dash": dash}
        data.append(line(thin_points(of(story)), name, text, line=look))
    return data


def _loss(stories: Sequence[Story], names: Sequence[str]) -> Chart:
    data = _curves(stories, names, lambda story: thin_points(losses(story.lines), 60), "%{y:.4g}")
    look = layout(360, steps_axis(), axis("loss", rangemode="tozero"), showlegend=True)
    ends = [
        (name, [y for _, y in losses(story.lines) if y is not None])
        for name, story in zip(names, stories, strict=True)
    ]
    rows = [[name, *(f"{ys[i]:.4g}" if ys else "–" for i in (0, -1))] for name, ys in ends]
    table = Table("Loss", ["Run", "First", "Last"], rows)
    note = "Means of neighbouring lines of the logs."
    return Chart("losses", "Loss by step", note, {"": {"data": data, "layout": look}}, table)


def _scores(stories: Sequence[Story], names: Sequence[str]) -> Chart | None:
    if not any(story.validations for story in stories):
        return None

    def of(story: Story) -> Points:
        return [(each.step, None if each.miou is None else 100 * each.miou) for each in story.validations]

    data = _curves(stories, names, of, "%{y:.2f} %")
    look = layout(360, steps_axis(), percent_axis("mIoU"), showlegend=True)
    rows = []
    for name, story in zip(names, stories, strict=True):
        values = [each.miou for each in story.validations if each.miou is not None]
        rows.append(
            [
                name,
                *(
                    f"{100 * value:.2f}" if values else "–"
                    for value in (max(values, default=0), values[-1] if values else 0)
                ),
            ]
        )
    table = Table("mIoU in percent", ["Run", "Highest", "Last"], rows)
    note = "Of each validation, over the classes that occur."
    return Chart("mious", "mIoU by step", note, {"": {"data": data, "layout": look}}, table)
