"""Learning curves of a training: loss, scores and learning rate by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.drawing import hex_colour, name_legend, new_figure, one_line, save_figure
from segmenter.grid.labels import ClassMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PALE = 0.7
"""Brightness (Rec. 709, of 1) above which a line on white needs an outline, as yellow, cyan and green do."""


def learning_curves(
    records: Iterable[Mapping[str, Any]], path: Path, title: str = "", *, classes: ClassMap | None = None
) -> None:
    """Draw loss, scores and learning rate by step, as a PNG.

    A class has its colour of the class map; pale colours get a dark outline.

    Args:
        records: records of a training log, in any order; each may have `step` and any of `loss`,
            `learning_rate`, `miou` and `iou` (by class name). Missing, null or non-finite values leave a gap.
        path: path of the PNG, written completely or not at all.
        classes: classes with the colours; other names get a colour of matplotlib.
    """
    ordered = sorted((r for r in records if "step" in r), key=lambda r: int(r["step"]))
    figure = new_figure(1000, 1020)
    loss, scores, rate = figure.subplots(3, 1, sharex=True, height_ratios=(3, 4, 2))
    _draw_loss(loss, ordered)
    _draw_scores(scores, ordered, {c.name: hex_colour(c.colour) for c in classes.classes} if classes else {})
    steps, rates = _series(ordered, "learning_rate")
    if steps.size:
        rate.plot(steps, rates, color="tab:blue", linewidth=1.4, marker=_marker(steps))
    for axes, name in ((loss, "loss"), (scores, "IoU"), (rate, "learning rate")):
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if not axes.lines:
            axes.text(0.5, 0.5, "nothing logged yet", transform=axes.transAxes, ha="center", color="0.5")
            axes.set_yticks([])
    rate.set_xlabel("step")
    figure.suptitle(one_line(title or "Training"), parse_math=False)
    # Room on the right for the legend of classes.
    figure.subplots_adjust(left=0.09, right=0.76, top=0.94, bottom=0.06, hspace=0.1)
    save_figure(figure, path)


def _draw_loss(axes: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """Draw every logged loss in a pale colour, and its running mean over a twentieth of the curve."""
    steps, losses = _series(records, "loss")
    if not steps.size:
        return
    axes.plot(
        steps, losses, color="tab:blue", linewidth=0.8, alpha=0.4, label="logged", marker=_marker(steps)
    )
    finite = np.flatnonzero(np.isfinite(losses))
    span = finite.size // 20
    if span >= 2:
        mean = np.convolve(losses[finite], np.full(span, 1 / span), mode="valid")
        middle = steps[finite][(span - 1) // 2 :][: mean.size]
        axes.plot(middle, mean, color="tab:blue", linewidth=1.6, label=f"mean of {span}")
        axes.legend(frameon=False, fontsize=9)


def _draw_scores(axes: Axes, records: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> None:
    """Draw mIoU bold, black and dashed, each class as a thin line; the legend, best first, is outside."""
    names = list(dict.fromkeys(name for r in records for name in (r.get("iou") or {})))
    curves = {name: _series([{**r, **(r.get("iou") or {})} for r in records], name) for name in names}
    final = {name: values[np.isfinite(values)][-1:].sum() for name, (_, values) in curves.items()}
    names.sort(key=lambda name: -final[name])
    if not any("miou" in r or r.get("iou") for r in records):
        return
    lines = axes.plot(
        *_series(records, "miou"), color="black", linestyle="--", linewidth=2.2, marker=".", zorder=3
    )
    for i, name in enumerate(names):
        colour = colours.get(name, f"C{i % 10}")
        lines += axes.plot(
            *curves[name], color=colour, linewidth=1.6, marker=".", path_effects=_outline(colour)
        )
    axes.set_ylim(0, 1)
    legend = axes.legend(
        lines, [""] * len(lines), loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9
    )
    scored = {name for name, (_, values) in curves.items() if np.isfinite(values).any()}
    name_legend(legend, ["mIoU", *(name if name in scored else f"{name} (no score)" for name in names)])


def _outline(colour: str) -> list[Any]:
    """Return a dark outline that makes a pale line visible on white; none for other colours."""
    from matplotlib.colors import to_rgb
    from matplotlib.patheffects import withStroke

    red, green, blue = to_rgb(colour)
    pale = 0.2126 * red + 0.7152 * green + 0.0722 * blue > _PALE
    return [withStroke(linewidth=3.2, foreground="0.35")] if pale else []


def _marker(steps: NDArray[Any]) -> str:
    """Return the marker: dots if there are too few points for a visible line."""
    return "." if steps.size < 20 else ""


def _series(records: Sequence[Mapping[str, Any]], key: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return steps and values of the records with `key`; null and infinite values become NaN, a gap."""
    with_key = [r for r in records if key in r]
    values = np.array([math.nan if r[key] is None else float(r[key]) for r in with_key], np.float64)
    values[~np.isfinite(values)] = np.nan
    return np.array([int(r["step"]) for r in with_key], np.int64), values
