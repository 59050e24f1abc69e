"""Speed of a run's steps, epoch by epoch, and what limited it."""

from __future__ import annotations

from collections.abc import Sequence

from segmenter.base.invocation import invocation
from segmenter.pages.layout import GREY, PLAN, SHUFFLE, Data, axis, layout, percent_axis
from segmenter.pages.parts import Block, Chart, Charts, Paragraph, Table, percent
from segmenter.runs.report.run_record import WAITING, EpochSpeed, Story

_MOST_EPOCHS = 300


def speed_blocks(story: Story) -> list[Block]:
    """Sentences and charts; a sentence alone where nothing was timed."""
    speeds = story.speeds
    if not speeds:
        text = "The speed is not known: the log has no epoch whose steps were timed. The first call of a "
        text += "training compiles, and is not timed."
        return [Paragraph(text)]
    shown = speeds if len(speeds) <= _MOST_EPOCHS else speeds[:: -(-len(speeds) // _MOST_EPOCHS)]
    charts = [_rates(shown), *([_waits(shown)] if any(s.waiting is not None for s in shown) else [])]
    return [Paragraph(speed_text(story)), Charts(charts)]


def speed_text(story: Story) -> str:
    """Tiles a second, the time that the steps took, and what limited them."""
    speeds, waiting = story.speeds, story.waiting
    typical = sorted(s.rate for s in speeds)[len(speeds) // 2]
    text = f"{typical:,.1f} images/s in a typical epoch. "
    times = [s.seconds for s in speeds if s.seconds is not None]
    if times:
        text += f"The steps that were timed took {duration(sum(times))}; validation, checkpoints and the "
        text += "compiler are not in it. "
    return text + limit_text(waiting)


def limit_text(waiting: float | None) -> str:
    """What limited the speed, by the share of the time that was spent waiting for data."""
    if waiting is None:
        return "How long the devices waited for data is not known."
    share = percent(waiting)
    if waiting >= WAITING:
        return (
            f"The input limited it: for {share} of the time the devices waited for data. More processor "
            "cores, training.input_workers, or tiles packed with "
            f"{invocation('datasets')} pack make it faster."
        )
    return f"The step limited it, not the input: the devices waited for data for {share} of the time."


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _rates(speeds: Sequence[EpochSpeed]) -> Chart:
    data = [_curve(speeds, [s.rate for s in speeds], "%{y:,.1f} images/s", PLAN)]
    look = layout(260, _epochs(), axis("images/s", rangemode="tozero"))
    low, high = min(s.rate for s in speeds), max(s.rate for s in speeds)
    title = f"From {low:,.1f} to {high:,.1f} images/s" if high > low else f"{low:,.1f} images/s"
    note = "Tiles of the training a second, over each epoch, without the first call, which compiles."
    rows = [[str(s.epoch), f"{s.rate:,.1f}", percent(s.waiting), _time(s)] for s in speeds]
    table = Table("Speed of each epoch", ["Epoch", "Images/s", "Waiting for data", "Time of its steps"], rows)
    return Chart("speed", title, note, {"": {"data": data, "layout": look}}, table)


def _waits(speeds: Sequence[EpochSpeed]) -> Chart:
    values = [None if s.waiting is None else 100 * s.waiting for s in speeds]
    data = [_curve(speeds, values, "%{y:.1f} % of the time", SHUFFLE)]
    top = max([value for value in values if value is not None] + [100 * WAITING])
    limit = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100 * WAITING, "y1": 100 * WAITING}
    shape = {**limit, "line": {"color": GREY, "width": 1.2, "dash": "dot"}, "layer": "below"}
    look = layout(260, _epochs(), percent_axis("time", min(105.0, 1.15 * top)), shapes=[shape])
    worst = max(value for value in values if value is not None)
    title = f"The devices waited for data for at most {percent(worst / 100)} of an epoch"
    note = "Above the dotted line the input is what limits the speed."
    rows = [[str(s.epoch), percent(s.waiting)] for s in speeds]
    table = Table("Waiting for data", ["Epoch", "Share of the time"], rows)
    return Chart("waiting", title, note, {"": {"data": data, "layout": look}}, table)


def _curve(speeds: Sequence[EpochSpeed], values: Sequence[float | None], text: str, colour: str) -> Data:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [s.epoch for s in speeds],
        "y": [None if value is None else float(f"{value:.5g}") for value in values],
        "line": {"color": colour, "width": 2},
        "hovertemplate": f"epoch %{{x}}: {text}<extra></extra>",
    }


def _epochs() -> Data:
    return axis("epoch", tickformat="d", nticks=8)


def _time(speed: EpochSpeed) -> str:
    return "–" if speed.seconds is None else duration(speed.seconds)
