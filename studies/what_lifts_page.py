"""Tables and plot of `what_lifts`, from its results: means over the seeds with their t-intervals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import renew, table
from studies.what_lifts_data import DATA
from segmenter.base.errors import SegmenterError

MARK = "<!-- table: python -m studies.what_lifts --page -->"
SUMMARY_MARK = "<!-- table: python -m studies.what_lifts --page, summary -->"
BASELINE = ("shuffle", "cross_entropy")
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for a two-sided interval of 95 %, at 1, 2, … degrees of freedom."""
Arm = tuple[str, str]
Result = Mapping[str, Any]


def write_page(results: Path, page: Path) -> None:
    """Renew the tables in the page, and the plot beside it.

    Raises:
        SegmenterError: there are no results.
    """
    found = results_of(results)
    plot = page.with_suffix(".png")
    draw(found, plot)
    lines = [f"![means and intervals over the seeds]({plot.name})", ""]
    for name in DATA:
        if chosen := [one for one in found if one["data"] == name]:
            lines += section(DATA[name].title, chosen)
    renew(page, MARK, lines)
    if (public := Path("docs/benchmarks_public.md")).is_file():
        renew(public, SUMMARY_MARK, summary(found))


SAMPLINGS = ("shuffle", "rare_class", "foreground", "plan", "quotas_by_class", "quotas", "quotas_lift_3")
_LOSSES = {
    "cross_entropy": "cross-entropy",
    "weighted": "cross-entropy, class weights",
    "dice": "cross-entropy and Dice",
    "dice_weighted": "cross-entropy and Dice, class weights",
}


def summary(results: Sequence[Result]) -> list[str]:
    """A table of each loss: samplings against data sets; mean mIoU, that of the rarest third, each seed."""
    lines: list[str] = []
    held = {one["data"]: one["held_by"] for one in results if "held_by" in one}  # not in the oldest
    for loss, title in _LOSSES.items():
        arms = {
            (one["data"], one["sampling"]): by_seed
            for name in DATA
            for (sampling, own), by_seed in arms_of(r for r in results if r["data"] == name).items()
            for one in by_seed.values()
            if own == loss and sampling in SAMPLINGS
        }
        names = [name for name in held if len([s for d, s in arms if d == name]) > 1]
        if not names:
            continue
        rows = [
            [_LABELS.get(s, s.replace("_", " ")), *(_cell(arms, held, n, s) for n in names)]
            for s in SAMPLINGS
        ]
        rows = [row for row in rows if any(cell != "-" for cell in row[1:])]
        lines += [f"### {title[0].upper() + title[1:]}", "", *table(["sampling", *names], rows, words=1), ""]
    return lines


_LABELS = {
    "plan": "plan, presence",
    "quotas_by_class": "plan, quotas of the rule before",
    "quotas": "plan, quotas",
    "quotas_lift_3": "plan, quotas, lift 3",
}


def _cell(arms: Mapping[Arm, Mapping[int, Result]], held: Mapping[str, Any], name: str, sampling: str) -> str:
    if (by_seed := arms.get((name, sampling))) is None:
        return "-"
    best = max(np.mean([one["mIoU"] for one in runs.values()]) for (d, _), runs in arms.items() if d == name)
    each = [100 * one["mIoU"] for one in by_seed.values()]
    mean, rarest = (
        float(np.mean(each)),
        float(np.mean([100 * rarest_third(r, held[name]) for r in by_seed.values()])),
    )
    shown = f"**{mean:.1f}**" if mean >= 100 * best - 1e-9 else f"{mean:.1f}"
    seeds = f" ({', '.join(f'{value:.1f}' for value in each)})" if len(each) > 1 else ""
    return f"{shown}{seeds}; {rarest:.1f}"


def rarest_third(result: Result, held_by: Mapping[str, int]) -> float:
    """Mean IoU of the third of the scored classes, rounded up, that fewest training tiles hold."""
    scored = sorted(result["IoU"], key=lambda name: held_by[name])
    return float(np.mean([result["IoU"][name] for name in scored[: -(-len(scored) // 3)]]))


def results_of(results: Path) -> list[Result]:
    """What the runs left.

    Raises:
        SegmenterError: nothing.
    """
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*-*-*-*.json"))]
    if not found:
        raise SegmenterError(f"{results}: expected results of runs, there are none; run this without --page")
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half the width of its 95 % t-interval); NaN for one value."""
    n = len(values)
    if n < 2:
        return float(np.mean(values)), float("nan")
    t = _T95[n - 2] if n - 2 < len(_T95) else 1.96 + 2.6 / (n - 1)
    return float(np.mean(values)), t * float(np.std(values, ddof=1)) / n**0.5


def arms_of(results: Iterable[Result]) -> dict[Arm, dict[int, Result]]:
    """Arm → seed → result; losses of one sampling stand together, cross-entropy alone first."""
    found: dict[Arm, dict[int, Result]] = {}
    for one in sorted(results, key=lambda r: (r["loss"] != BASELINE[1], r["loss"], r["sampling"], r["seed"])):
        found.setdefault((one["sampling"], one["loss"]), {})[one["seed"]] = one
    return found


def gain(arm: Mapping[int, Result], baseline: Mapping[int, Result], score: str) -> tuple[float, float]:
    """Mean difference from the baseline over the seeds that both have, and its interval."""
    seeds = sorted(arm.keys() & baseline.keys())
    if not seeds:
        return float("nan"), float("nan")
    return interval([arm[seed][score] - baseline[seed][score] for seed in seeds])


def section(title: str, results: Sequence[Result]) -> list[str]:
    """Heading, a line on the runs, and the table of one data set."""
    arms = arms_of(results)
    baseline = arms.get(BASELINE, {})
    rare = results[0]["rare_class"]
    minutes = [one["processor_seconds"] / 60 for one in results]
    head = ["sampling", "loss", "seeds", "mIoU", f"{rare} IoU", "mIoU gained", f"{rare} gained"]
    head += ["steps with all classes", f"steps with {rare}", "CPU minutes"]
    rows = []
    for (sampling, loss), by_seed in arms.items():
        runs = list(by_seed.values())
        row = [sampling.replace("_", " "), loss.replace("_", " "), str(len(runs))]
        row += [_shown(*interval([100 * one[key] for one in runs])) for key in ("mIoU", "rare_IoU")]
        for key in ("mIoU", "rare_IoU"):
            mean, half = gain(by_seed, baseline, key)
            row.append("-" if (sampling, loss) == BASELINE else _shown(100 * mean, 100 * half, sign=True))
        row += [f"{np.mean([one[key] for one in runs]):.1%}" for key in ("complete_steps", "steps_with_rare")]
        rows.append([*row, f"{np.mean([one['processor_seconds'] for one in runs]) / 60:.1f}"])
    steps, batch, tiles = (results[0][key] for key in ("steps", "global_batch", "tiles"))
    said = (
        f"{len(results)} runs of {steps} steps of {batch} tiles, of {tiles}; {min(minutes):.1f} to "
        f"{max(minutes):.1f} processor minutes each. The rarest class is {rare}."
    )
    return [f"### {title}", said, "", *table(head, rows, words=2), ""]


def _shown(mean: float, half: float, *, sign: bool = False) -> str:
    if np.isnan(mean):
        return "-"
    text = f"{mean:+.1f}" if sign else f"{mean:.1f}"
    return text if np.isnan(half) else f"{text} ± {half:.1f}"


def draw(results: Sequence[Result], path: Path) -> None:
    """A row of panels for each data set: mIoU and the rare class's IoU, each seed and the interval."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = [name for name in DATA if any(one["data"] == name for one in results)]
    figure, axes = pyplot.subplots(len(names), 2, figsize=(11, 4 * len(names)), squeeze=False)
    for name, row in zip(names, axes, strict=True):
        arms = arms_of(one for one in results if one["data"] == name)
        rare = next(one["rare_class"] for one in results if one["data"] == name)
        labels = [f"{s}, {loss}".replace("_", " ") for s, loss in arms]
        for axis, key, title in zip(row, ("mIoU", "rare_IoU"), ("mIoU", f"IoU of {rare}"), strict=True):
            for y, by_seed in enumerate(arms.values()):
                values = [100 * one[key] for one in by_seed.values()]
                mean, half = interval(values)
                axis.errorbar(mean, y, xerr=None if np.isnan(half) else half, fmt="o", color="C0", capsize=3)
                axis.plot(values, [y] * len(values), "|", color="0.4", markersize=10)
            axis.set_title(f"{DATA[name].title}: {title}", fontsize=9)
            axis.set_yticks(range(len(labels)), labels if axis is row[0] else [""] * len(labels), fontsize=8)
            axis.invert_yaxis()
            axis.set_xlabel("%")
            axis.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
