"""Charts of a run: loss, scores and learning rate by step; classes and confusions of the best model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import counted
from segmenter.evaluation.drawing import hex_colour
from segmenter.evaluation.scores import FIGURES, Scores
from segmenter.evaluation.scores import percent as table_percent
from segmenter.grid.labels import LandCoverClass
from segmenter.pages.parts import (
    GREY,
    INK,
    ROW,
    Block,
    Chart,
    ClassCell,
    Data,
    Paragraph,
    Table,
    axis,
    bars,
    class_marker,
    colour,
    label,
    layout,
    lines,
    list_names,
    names_axis,
    number,
    percent,
    percent_axis,
    plain,
    short,
    square,
)
from segmenter.runs.report.run_record import LogLine, Story, Validation, finite

MOST_POINTS = 600
"""Points of a curve at most: of a longer one neighbours are averaged."""
_MOST_VALIDATIONS = 150
_MOST_IN_TABLE = 40
_MOST_IN_LEGEND = 12
_MOST_CLASSES = 40
"""In the chart of scores: those with the lowest."""
_PALE = 0.7
_SMOOTHED = 20
LOSS, MEAN = "#7fb2dc", "#0072b2"
Points = list[tuple[int, float | None]]
_MOST_CONFUSED = 40
"""Classes in the chart of confusions: those with the most pixels."""
_WORST = 20
_AXIS = 70


def line(points: Points, name: str, text: str, **look: object) -> Data:
    """Return a curve; hovering shows its name, the step and `text`, a Plotly template with %{y}.

    None values leave a gap.
    """
    return {
        "type": "scatter",
        "x": [x for x, _ in points],
        "y": [None if y is None else float(f"{y:.5g}") for _, y in points],
        "mode": "lines+markers" if len(points) < 40 else "lines",
        "name": short(name),
        "hovertemplate": f"{label(name)}<br>step %{{x:,}}: {text}<extra></extra>",
        "connectgaps": False,
        **look,
    }


def steps_axis() -> Data:
    return axis("step", rangemode="tozero", tickformat=",", nticks=6)


def marks(story: Story) -> Data:
    """Return vertical lines at the best validation and at extensions of the run."""
    steps = [(each.step, "extended") for each in story.run.extensions]
    if story.best is not None:
        steps.append((story.best.step, "best"))
    style = {"color": GREY, "width": 1.2, "dash": "dot"}
    ends = {"y0": 0, "y1": 1, "yref": "paper"}
    font = {"size": 12, "color": GREY}
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": font}
    return {
        "shapes": [{"type": "line", "x0": x, "x1": x, **ends, "line": style} for x, _ in steps],
        "annotations": [{"x": x, "text": text, **place} for x, text in steps],
    }


def thin_points(points: Points, most: int = MOST_POINTS) -> Points:
    """Return at most `most` points: means of neighbours, placed at the last one's step."""
    size = math.ceil(len(points) / most) if points else 1
    if size == 1:
        return points
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], _mean([y for _, y in group])) for group in groups]


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


# ------------------------------------------------------------------------------------------ loss


def losses(lines: Sequence[LogLine]) -> Points:
    return [(each.step, each.loss) for each in lines]


def loss_chart(story: Story) -> Chart:
    """Draw every logged loss in a pale colour, and its running mean over a twentieth of the curve."""
    points = losses(story.lines)
    drawn = thin_points(points)
    span = len(drawn) // _SMOOTHED
    faint = line(drawn, "loss", "%{y:.4g}", line={"color": LOSS, "width": 1})
    data = [faint | {"marker": {"color": LOSS, "size": 4}}]
    if span >= 2:
        values = [y for _, y in drawn]
        places = range(span - 1, len(drawn))
        mean: Points = [(drawn[i][0], _mean(values[i + 1 - span : i + 1])) for i in places]
        look = {"mode": "lines", "line": {"color": MEAN, "width": 2}}
        data.append(line(mean, "running mean", "%{y:.4g}", **look))
    frame = layout(320, steps_axis(), axis("loss", rangemode="tozero"), **marks(story))
    frame["margin"]["t"] = 26
    ends = [y for _, y in points if y is not None]
    title = "The loss is not known"
    if ends:
        first, last = ends[0], _mean(ends[-max(1, span) :])
        title = (
            f"The loss goes from {first:.3g} to {last:.3g}" if len(ends) > 1 else f"The loss is {first:.3g}"
        )
    note = "Pale: each line of the log, a mean over its steps"
    note += "; dark: the mean of a twentieth of the curve." if span >= 2 else "."
    note += _gaps(points)
    rows = [[number(x), "–" if y is None else f"{y:.4g}"] for x, y in thin_points(points, 40)]
    table = Table("Loss", ["Step", "Loss"], rows)
    return Chart("loss", title, note, {"": {"data": data, "layout": frame}}, table)


def _gaps(points: Points) -> str:
    missing = sum(y is None for _, y in points)
    return f" {counted(missing, 'line has', 'lines have')} no finite loss." if missing else ""


# ---------------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class _Look:
    """Colour of a class, and whether it is too pale to be visible on white."""

    colour: str

    @property
    def pale(self) -> bool:
        red, green, blue = (int(self.colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue > _PALE


def thin_validations(
    validations: Sequence[Validation], best: int | None, most: int = _MOST_VALIDATIONS
) -> list[Validation]:
    """Return every n-th validation, the best and the last: about `most` in all."""
    size = math.ceil(len(validations) / most) if validations else 1
    last = len(validations) - 1
    return [v for i, v in enumerate(validations) if not i % size or i == last or v.step == best]


def scores_chart(story: Story) -> Chart | None:
    """Draw mIoU and the IoU of each class over the validations; None if there are none."""
    best = None if story.best is None else story.best.step
    validations = thin_validations(story.validations, best)
    if not validations:
        return None
    data: list[Data] = []
    text = "%{y:.2f} %"
    classes = story.run.classes.classes
    for one in _lowest(story):
        look = _Look(colour(hex_colour(one.colour)))
        points = [(v.step, _percent(v.iou.get(one.name))) for v in validations]
        if look.pale:
            under = {"mode": "lines", "line": {"color": GREY, "width": 4}, "showlegend": False}
            data.append(line(points, one.name, text, **under) | {"hoverinfo": "skip", "hovertemplate": ""})
        dots = {"color": look.colour, "size": 7, "line": {"color": GREY, "width": 1}}
        data.append(line(points, one.name, text, line={"color": look.colour, "width": 2}, marker=dots))
    mean = [(v.step, _percent(v.miou)) for v in validations]
    thick = {"color": INK, "width": 3, "dash": "dash"}
    data.append(line(mean, "mIoU", text, line=thick, marker={"color": INK, "size": 7}))
    named = len(classes) <= _MOST_IN_LEGEND
    frame = layout(430, steps_axis(), percent_axis("IoU"), **marks(story), showlegend=named)
    frame["margin"]["t"] = 26
    # Below the axis: above the plot are the marks.
    frame["legend"] |= {"y": -0.2, "yanchor": "top"}
    note = "Dashed: mIoU, the mean over the classes that occur; the classes in their own colours."
    note += "" if named else " Hover over a line for its class; the classes are listed below."
    if len(classes) > _MOST_CLASSES:
        note += f" Of {len(classes)} classes, the {_MOST_CLASSES} with the lowest IoU."
    table = _scores_table(story, thin_validations(story.validations, best, _MOST_IN_TABLE))
    return Chart("scores", _scores_title(story), note, {"": {"data": data, "layout": frame}}, table)


def _lowest(story: Story) -> list[LandCoverClass]:
    """Return the classes to draw, by id; if there are many, those with the lowest final IoU."""
    classes, last = story.run.classes.classes, story.validations[-1].iou
    values = {one.name: last.get(one.name) for one in classes}
    lowest = sorted(classes, key=lambda one: 2.0 if values[one.name] is None else values[one.name] or 0.0)
    names = {one.name for one in lowest[:_MOST_CLASSES]}
    return [one for one in classes if one.name in names]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _scores_title(story: Story) -> str:
    scores = [v.miou for v in story.validations if v.miou is not None]
    if not scores:
        return "No validation has an mIoU"
    if len(scores) == 1:
        return f"The only validation has an mIoU of {percent(scores[0])}"
    top = max(scores)
    if scores[-1] == top:
        return f"mIoU rises to {percent(top)}, and the last validation is the highest"
    return f"mIoU is at most {percent(top)}; at the end it is {percent(scores[-1])}"


def _scores_table(story: Story, found: Sequence[Validation]) -> Table:
    names = story.run.classes.names
    rows = [
        [f"{v.epoch}", number(v.step), _two(v.miou), *(_two(v.iou.get(name)) for name in names)]
        for v in found
    ]
    return Table("IoU of each validation, in percent", ["Epoch", "Step", "mIoU", *map(plain, names)], rows)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


# ----------------------------------------------------------------------------------- learning rate


def rate_chart(story: Story) -> Chart | None:
    """Draw the learning rate; None if the log has none."""
    points = [(each.step, each.learning_rate) for each in story.lines]
    if not any(y is not None for _, y in points):
        return None
    data = [line(thin_points(points), "learning rate", "%{y:.4g}", line={"color": MEAN, "width": 2})]
    look = layout(220, steps_axis(), axis("learning rate", rangemode="tozero", exponentformat="power"))
    training = story.run.recipe.training
    peak = max(y for _, y in points if y is not None)
    title = f"Learning rate: {training.schedule}, at most {peak:.3g} in the log"
    rows = [[number(x), "–" if y is None else f"{y:.4g}"] for x, y in thin_points(points, 40)]
    table = Table("Learning rate", ["Step", "Learning rate"], rows)
    note = "Of the peak, before the factors of parts of the model (training.rates)."
    return Chart("rate", title, note, {"": {"data": data, "layout": look}}, table)


# ---------------------------------------------------------------------------------------------------- classes


def class_scores(story: Story, scores: Scores) -> Chart:
    """Draw the IoU of each class at the best validation, and its highest IoU in any validation."""
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
    known = {c.name: hex_colour(c.colour) for c in story.run.classes.classes}
    look = class_marker([known.get(names[c], "") for c in places])
    data = [bars(texts, hovers, orientation="h", x=values, y=rows, textposition="auto", marker=look)]
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
    title = _class_title(names, ious)
    note = (
        "Bars: the validation whose model is kept. Marks: the highest that the class had in any validation."
    )
    table = _class_table(story, scores, own)
    return Chart("classes-iou", title, note, {"": {"data": data, "layout": look}}, table)


def _own_best(story: Story, name: str) -> tuple[float | None, str]:
    """Return the highest IoU of a class, and a line on the validation that reached it."""
    values = [(v.iou.get(name), v) for v in story.validations]
    defined = [(value, v) for value, v in values if value is not None]
    if not defined:
        return None, "no validation has a score of it"
    value, when = max(defined, key=lambda pair: pair[0])
    return value, f"at most {percent(value)}, after epoch {when.epoch}"


def _class_title(names: Sequence[str], ious: Sequence[float | None]) -> str:
    defined = [(value, name) for value, name in zip(ious, names, strict=True) if value is not None]
    if not defined:
        return "No class has a score"
    (low, worst), (high, best) = min(defined), max(defined)
    if len(defined) == 1:
        return f"{plain(best)} has an IoU of {percent(high)}"
    return f"{plain(best)} has the highest IoU, {percent(high)}; {plain(worst)} the lowest, {percent(low)}"


def _class_table(story: Story, scores: Scores, own: Sequence[tuple[float | None, str]]) -> Table:
    colours = {c.name: hex_colour(c.colour) for c in story.run.classes.classes}
    total = max(1, scores.pixels)
    columns = (scores.iou, scores.f1, scores.precision, scores.recall)
    rows: list[list[str | ClassCell]] = []
    for c, name in enumerate(scores.protocol.classes):
        cells = [table_percent(float(column[c])) for column in columns]
        share = percent(float(scores.truth_pixels[c]) / total)
        highest = own[c][0]
        top = "–" if highest is None else f"{100 * highest:.2f}"
        rows.append(
            [ClassCell(name, colours.get(name, "")), *cells, share, number(int(scores.truth_pixels[c])), top]
        )
    header = ["Class", "IoU", "F1", "Precision", "Recall", "Share of truth", "Pixels", "Highest IoU ever"]
    return Table("Scores of each class at the best validation, in percent", header, rows)


def means_text(scores: Scores) -> list[Block]:
    """Return sentences on the mean scores, and on the classes without a score."""
    means = [f"{title} {table_percent(getattr(scores, key))}" for key, title in FIGURES.items()]
    text = (
        f"{', '.join(means)} (in percent). Protocol: {plain(str(scores.protocol))}; {scores.pixels:,} pixels."
    )
    if scores.without_data:
        text += f" {scores.without_data:,} more are labelled, but without image data: not counted."
    blocks: list[Block] = [Paragraph(text)]
    absent = [n for n, value in zip(scores.protocol.classes, scores.iou, strict=True) if math.isnan(value)]
    if absent:
        text = f"In neither truth nor prediction, and in no mean: {list_names(absent)}."
        blocks.append(Paragraph(text, "notice"))
    return blocks


# --------------------------------------------------------------------------------------- confusion


def confusion_chart(scores: Scores) -> Chart | None:
    """Draw each true class's pixels as shares of predicted classes; None for a single class."""
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
    largest = _largest(share_KK)
    title = "No class is taken for another"
    if largest:
        i, j = largest[0]
        title = f"{percent(float(share_KK[i, j]))} of {plain(names[i])} is taken for {plain(names[j])}"
    return Chart("confusion", title, note, {"": figure}, _confusions(scores, share_KK, largest), width=width)


def shares(scores: Scores) -> NDArray[np.float64]:
    """Return (K, K) shares of each true class's pixels; NaN in rows of absent classes."""
    truth_K1 = scores.truth_pixels[:, None].astype(np.float64)
    matrix = scores.matrix.astype(np.float64)
    return np.divide(matrix, truth_K1, out=np.full(matrix.shape, np.nan), where=truth_K1 > 0)


def _largest(share_KK: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return (true class, wrongly predicted class) pairs with the largest shares, largest first."""
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
