"""Learning curves of one run or several: loss, scores and learning rate over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from segmenter.base.errors import counted
from segmenter.grid.labels import LandCoverClass
from segmenter.pages.layout import GREY, Data, axis, layout, percent_axis
from segmenter.pages.parts import Chart, Table, colour, label, number, percent, plain, short
from segmenter.runs.report.run_record import Line, Story, Validation

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


def line(points: Points, name: str, text: str, **look: object) -> Data:
    """Return a curve; hovering shows its name, the step and `text`, a template of Plotly's with %{y}.

    What is None is a gap.
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
    """Return vertical lines: the best validation, and where the run was made longer."""
    found = [(each.step, "extended") for each in story.run.extensions]
    if story.best is not None:
        found.append((story.best.step, "best"))
    style = {"color": GREY, "width": 1.2, "dash": "dot"}
    ends = {"y0": 0, "y1": 1, "yref": "paper"}
    font = {"size": 12, "color": GREY}
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": font}
    return {
        "shapes": [{"type": "line", "x0": x, "x1": x, **ends, "line": style} for x, _ in found],
        "annotations": [{"x": x, "text": text, **place} for x, text in found],
    }


def thinned(points: Points, most: int = MOST_POINTS) -> Points:
    """Return at most `most` points: means of neighbours, at the last one's step."""
    size = math.ceil(len(points) / most) if points else 1
    if size == 1:
        return points
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], _mean([y for _, y in group])) for group in groups]


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


# ------------------------------------------------------------------------------------------ loss


def losses(lines: Sequence[Line]) -> Points:
    return [(each.step, each.loss) for each in lines]


def loss_chart(story: Story) -> Chart:
    """Draw every logged loss, pale, and its running mean over a twentieth of the curve."""
    points = losses(story.lines)
    shown = thinned(points)
    span = len(shown) // _SMOOTHED
    faint = line(shown, "loss", "%{y:.4g}", line={"color": LOSS, "width": 1})
    data = [faint | {"marker": {"color": LOSS, "size": 4}}]
    if span >= 2:
        values = [y for _, y in shown]
        places = range(span - 1, len(shown))
        mean: Points = [(shown[i][0], _mean(values[i + 1 - span : i + 1])) for i in places]
        look = {"mode": "lines", "line": {"color": MEAN, "width": 2}}
        data.append(line(mean, "running mean", "%{y:.4g}", **look))
    frame = layout(320, steps_axis(), axis("loss", rangemode="tozero"), **marks(story))
    frame["margin"]["t"] = 26
    ends = [y for _, y in points if y is not None]
    title = "The loss is not known"
    if ends:
        first, last = ends[0], _mean(ends[-max(1, span) :])
        title = f"The loss goes from {first:.3g} to {last:.3g}"
    note = "Pale: each line of the log, a mean over its steps"
    note += "; dark: the mean of a twentieth of the curve." if span >= 2 else "."
    note += _gaps(points)
    rows = [[number(x), "–" if y is None else f"{y:.4g}"] for x, y in thinned(points, 40)]
    table = Table("Loss", ["Step", "Loss"], rows)
    return Chart("loss", title, note, {"": {"data": data, "layout": frame}}, table)


def _gaps(points: Points) -> str:
    missing = sum(y is None for _, y in points)
    return f" {counted(missing, 'line has', 'lines have')} no finite loss." if missing else ""


# ---------------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class _Look:
    """Colour of a class, and whether it is too pale to be seen on white."""

    colour: str

    @property
    def pale(self) -> bool:
        red, green, blue = (int(self.colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue > _PALE


def kept(
    validations: Sequence[Validation], best: int | None, most: int = _MOST_VALIDATIONS
) -> list[Validation]:
    """Return every n-th validation, the best and the last: hardly more than `most`."""
    size = math.ceil(len(validations) / most) if validations else 1
    last = len(validations) - 1
    return [v for i, v in enumerate(validations) if not i % size or i == last or v.step == best]


def scores_chart(story: Story) -> Chart | None:
    """Draw mIoU and the IoU of each class over the validations; None without any."""
    best = None if story.best is None else story.best.step
    found = kept(story.validations, best)
    if not found:
        return None
    data: list[Data] = []
    text = "%{y:.2f} %"
    classes = story.run.classes.classes
    for one in _lowest(story):
        look = _Look(colour("#{:02x}{:02x}{:02x}".format(*one.colour)))
        points = [(v.step, _hundred(v.iou.get(one.name))) for v in found]
        if look.pale:
            under = {"mode": "lines", "line": {"color": GREY, "width": 4}, "showlegend": False}
            data.append(line(points, one.name, text, **under) | {"hoverinfo": "skip", "hovertemplate": ""})
        dots = {"color": look.colour, "size": 7, "line": {"color": GREY, "width": 1}}
        data.append(line(points, one.name, text, line={"color": look.colour, "width": 2}, marker=dots))
    mean = [(v.step, _hundred(v.miou)) for v in found]
    thick = {"color": "#000000", "width": 3, "dash": "dash"}
    data.append(line(mean, "mIoU", text, line=thick, marker={"color": "#000000", "size": 7}))
    named = len(classes) <= _MOST_IN_LEGEND
    frame = layout(430, steps_axis(), percent_axis("IoU"), **marks(story), showlegend=named)
    frame["margin"]["t"] = 26
    # Below the axis: above the plot are the marks.
    frame["legend"] |= {"y": -0.2, "yanchor": "top"}
    note = "Dashed and black: mIoU, the mean over the classes that occur; the classes in their own colours."
    note += "" if named else " Hover over a line for its class; the classes are listed below."
    if len(classes) > _MOST_CLASSES:
        note += f" Of {len(classes)} classes, the {_MOST_CLASSES} with the lowest IoU."
    table = _scores_table(story, kept(story.validations, best, _MOST_IN_TABLE))
    return Chart("scores", _scores_title(story), note, {"": {"data": data, "layout": frame}}, table)


def _lowest(story: Story) -> list[LandCoverClass]:
    """Return the classes that are drawn, by their ids: of many, those with the lowest IoU at the end."""
    classes, last = story.run.classes.classes, story.validations[-1].iou
    values = {one.name: last.get(one.name) for one in classes}
    lowest = sorted(classes, key=lambda one: 2.0 if values[one.name] is None else values[one.name] or 0.0)
    names = {one.name for one in lowest[:_MOST_CLASSES]}
    return [one for one in classes if one.name in names]


def _hundred(value: float | None) -> float | None:
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
    data = [line(thinned(points), "learning rate", "%{y:.4g}", line={"color": MEAN, "width": 2})]
    look = layout(220, steps_axis(), axis("learning rate", rangemode="tozero", exponentformat="power"))
    training = story.run.recipe.training
    peak = max(y for _, y in points if y is not None)
    title = f"Learning rate: {training.schedule}, at most {peak:.3g} in the log"
    rows = [[number(x), "–" if y is None else f"{y:.4g}"] for x, y in thinned(points, 40)]
    table = Table("Learning rate", ["Step", "Learning rate"], rows)
    note = "Of the peak, before the factors of parts of the model (training.rates)."
    return Chart("rate", title, note, {"": {"data": data, "layout": look}}, table)
