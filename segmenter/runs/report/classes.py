"""Scores of each class at the best validation, and what they are confused with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.scores import FIGURES, Scores
from segmenter.pages.layout import INK, ROW, bars, layout, names_axis, percent_axis, square
from segmenter.pages.parts import Block, Chart, Named, Paragraph, Table, lines, listed, number, percent, plain
from segmenter.runs.report.run_record import Story, finite

_MOST_CONFUSED = 40
"""Classes in the chart of confusions: those with the most pixels."""
_WORST = 20
_AXIS = 70


def class_scores(story: Story, scores: Scores) -> Chart:
    """Draw the IoU of each class at the best validation, and the highest that it ever had."""
    names = scores.protocol.classes
    ious = [finite(value) for value in scores.iou.tolist()]
    places = sorted(range(len(names)), key=lambda c: (ious[c] is None, -(ious[c] or 0)))
    own = [_own_best(story, name) for name in names]
    values = [100 * (ious[c] or 0) for c in places]
    texts = ["no score" if ious[c] is None else percent(ious[c]) for c in places]
    hovers = [
        lines(names[c], f"IoU {text} at the best validation", own[c][1])
        for c, text in zip(places, texts, strict=True)
    ]
    rows = list(range(len(places)))
    data = [bars(values, texts, hovers, orientation="h", x=values, y=rows, textposition="auto")]
    marked = [(row, own[c][0]) for row, c in enumerate(places) if own[c][0] is not None]
    ring = {"symbol": "line-ns-open", "size": 16, "color": INK, "line": {"width": 2}}
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [100 * (value or 0) for _, value in marked],
            "y": [row for row, _ in marked],
            "marker": ring,
            "hoverinfo": "skip",
            "cliponaxis": False,
        }
    )
    rest = names_axis([names[c] for c in places])
    look = layout(ROW * len(names) + _AXIS, percent_axis("IoU", 103, dtick=50), rest)
    title = _title(names, ious)
    note = (
        "Bars: the validation whose model is kept. Marks: the highest that the class had in any validation."
    )
    table = _table(story, scores, own)
    return Chart("classes-iou", title, note, {"": {"data": data, "layout": look}}, table)


def _own_best(story: Story, name: str) -> tuple[float | None, str]:
    """Return the highest IoU that a class had, and a line on when."""
    found = [(v.iou.get(name), v) for v in story.validations]
    there = [(value, v) for value, v in found if value is not None]
    if not there:
        return None, "no validation has a score of it"
    value, when = max(there, key=lambda pair: pair[0])
    return value, f"at most {percent(value)}, after epoch {when.epoch}"


def _title(names: Sequence[str], ious: Sequence[float | None]) -> str:
    there = [(value, name) for value, name in zip(ious, names, strict=True) if value is not None]
    if not there:
        return "No class has a score"
    (low, worst), (high, best) = min(there), max(there)
    if len(there) == 1:
        return f"{plain(best)} has an IoU of {percent(high)}"
    return f"{plain(best)} has the highest IoU, {percent(high)}; {plain(worst)} the lowest, {percent(low)}"


def _table(story: Story, scores: Scores, own: Sequence[tuple[float | None, str]]) -> Table:
    colours = {c.name: "#{:02x}{:02x}{:02x}".format(*c.colour) for c in story.run.classes.classes}
    total = max(1, scores.pixels)
    columns = (scores.iou, scores.f1, scores.precision, scores.recall)
    rows: list[list[str | Named]] = []
    for c, name in enumerate(scores.protocol.classes):
        cells = [_two(float(column[c])) for column in columns]
        share = percent(float(scores.truth_pixels[c]) / total)
        highest = own[c][0]
        shown = "–" if highest is None else f"{100 * highest:.2f}"
        rows.append(
            [Named(name, colours.get(name, "")), *cells, share, number(int(scores.truth_pixels[c])), shown]
        )
    header = ["Class", "IoU", "F1", "Precision", "Recall", "Share of truth", "Pixels", "Highest IoU ever"]
    return Table("Scores of each class at the best validation, in percent", header, rows)


def _two(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.2f}"


def means_text(scores: Scores) -> list[Block]:
    """Return sentences on the scores over all classes, and on the classes that have none."""
    means = [f"{title} {_two(getattr(scores, key))}" for key, title in FIGURES.items()]
    text = (
        f"{', '.join(means)} (in percent). Protocol: {plain(str(scores.protocol))}; {scores.pixels:,} pixels."
    )
    if scores.without_data:
        text += f" {scores.without_data:,} more are labelled, but without image data: not counted."
    blocks: list[Block] = [Paragraph(text)]
    absent = [n for n, value in zip(scores.protocol.classes, scores.iou, strict=True) if math.isnan(value)]
    if absent:
        text = f"In neither truth nor prediction, and in no mean: {listed(absent)}."
        blocks.append(Paragraph(text, "notice"))
    return blocks


# --------------------------------------------------------------------------------------- confusion


def confusion_chart(scores: Scores) -> Chart | None:
    """Draw the shares of each true class by what was predicted; None for one class."""
    names, truth_K = scores.protocol.classes, scores.truth_pixels
    if len(names) < 2:
        return None
    order = np.argsort(-truth_K, kind="stable")[:_MOST_CONFUSED]
    ids = sorted(int(c) for c in order)
    share_KK = shares(scores)
    share = [[finite(share_KK[i, j]) for j in ids] for i in ids]
    hovers = [
        [
            lines(
                f"Of {names[i]},",
                f"{percent(value)} ({int(scores.matrix[i, j]):,} pixels)",
                f"is taken for {names[j]}",
            )
            for j, value in zip(ids, row, strict=True)
        ]
        for i, row in zip(ids, share, strict=True)
    ]
    figure, width = square([names[c] for c in ids], share, hovers, "taken for … (%)")
    note = "Read along a row: what the pixels of that true class were taken for, in percent of them. An "
    note += "empty row does not occur."
    if len(ids) < len(names):
        note += f" Of {len(names)} classes, the {len(ids)} with the most pixels."
    largest = _largest(scores, share_KK)
    title = "No class is taken for another"
    if largest:
        i, j = largest[0]
        title = f"{percent(float(share_KK[i, j]))} of {plain(names[i])} is taken for {plain(names[j])}"
    return Chart("confusion", title, note, {"": figure}, _confusions(scores, share_KK, largest), width=width)


def shares(scores: Scores) -> NDArray[np.float64]:
    """Return (K, K) shares of each true class' pixels; NaN in the rows of those that do not occur."""
    truth_K1 = scores.truth_pixels[:, None].astype(np.float64)
    matrix = scores.matrix.astype(np.float64)
    return np.divide(matrix, truth_K1, out=np.full(matrix.shape, np.nan), where=truth_K1 > 0)


def _largest(scores: Scores, share_KK: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return pairs of a true class and the one it is most taken for, the largest share first."""
    off = np.nan_to_num(share_KK)
    np.fill_diagonal(off, 0)
    places = np.argsort(-off, axis=None, kind="stable")[:_WORST]
    pairs = [(int(place) // off.shape[1], int(place) % off.shape[1]) for place in places]
    return [(i, j) for i, j in pairs if off[i, j] > 0]


def _confusions(scores: Scores, share_KK: NDArray[np.float64], pairs: Sequence[tuple[int, int]]) -> Table:
    names = scores.protocol.classes
    rows = [
        [names[i], names[j], percent(float(share_KK[i, j])), number(int(scores.matrix[i, j]))]
        for i, j in pairs
    ]
    return Table("The largest confusions", ["True class", "Taken for", "of the true class", "Pixels"], rows)
