"""Account of estimates: the terminal's table and sentences, and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from segmenter.base.errors import counted
from segmenter.base.terminal import aligned
from segmenter.extras.accuracy.estimators import Estimates, Figure
from segmenter.extras.accuracy.units import SQUARE_METRES, Shown, in_percent, unit_for, with_interval

FORMAT = 1
"""Format of the JSON."""
_FEW = 30
"""Points below which an interval by the normal distribution is rough."""


def sentences(estimates: Estimates, unit: str) -> list[str]:
    """Return `building 12.4 ± 1.1 km² (95 %)` for each class that the sample has seen, largest first."""
    shown = unit_for(unit, estimates.sample.total)
    pairs = zip(estimates.sample.classes, estimates.areas(shown.factor), strict=True)
    seen = sorted((pair for pair in pairs if pair[1].value > 0), key=lambda pair: -pair[1].value)
    return [f"{name} {with_interval(area, shown.sign)} (95 %)" for name, area in seen]


def head(estimates: Estimates) -> str:
    """Return the overall accuracy as a sentence."""
    points, strata = int(estimates.sample.points_H.sum()), len(estimates.sample.strata)
    return (
        f"overall accuracy {in_percent(estimates.overall)} % (95 %), from "
        f"{counted(points, 'labelled point')} in {counted(strata, 'stratum', 'strata')}"
    )


def titles(shown: Shown) -> list[str]:
    """Return the titles of the columns of `class_rows`."""
    sign = f",{shown.sign}" if shown.sign else ""
    return ["Class", "Points", f"Mapped{sign}", f"Area ± 95 %{sign}", "Share %", "User's %", "Producer's %"]


def class_rows(estimates: Estimates, shown: Shown) -> Iterator[list[str]]:
    """Yield the cells of each class."""
    sample, points_K = estimates.sample, estimates.counts_KK.sum(axis=0)
    for k, area in enumerate(estimates.areas(shown.factor)):
        mapped, text = float(sample.mapped_area_K[k]) * shown.factor, with_interval(area)
        decimals = len(text.partition(" ")[0].partition(".")[2])
        yield [
            sample.classes[k],
            f"{points_K[k]:,}",
            "–" if math.isnan(mapped) else f"{mapped:,.{decimals}f}",
            text,
            *(in_percent(each[k]) for each in (estimates.shares, estimates.users, estimates.producers)),
        ]


def table(estimates: Estimates, unit: str) -> list[str]:
    """Return the lines of the table of classes."""
    shown = unit_for(unit, estimates.sample.total)
    return aligned(titles(shown), class_rows(estimates, shown))


def remarks(estimates: Estimates) -> list[str]:
    """Return a line for each weakness of the sample."""
    lines, left = [], estimates.sample.unlabelled
    if left:
        lines.append(f"{counted(left, 'point')} without a reference class left out, as if like the others")
    for k, name in enumerate(estimates.sample.classes):
        mapped, reference = (int(estimates.counts_KK.sum(axis=axis)[k]) for axis in (1, 0))
        right = int(estimates.counts_KK[k, k])
        if not reference:
            lines.append(f"{name}: no point of that reference class: area 0, no producer's accuracy")
        elif right == reference:
            lines.append(
                f"{name}: all its {counted(reference, 'point')} are mapped so; omissions were not met and "
                "its area may be too small, label more points of other strata"
            )
        if not mapped:
            lines.append(f"{name}: no point that is mapped so: no user's accuracy")
        elif right == mapped:
            lines.append(f"{name}: all {counted(mapped, 'point')} mapped so are right; ± 0 is too narrow")
        elif mapped < _FEW:
            lines.append(f"{name}: {counted(mapped, 'point')} mapped so; intervals are rough below {_FEW}")
    return lines


def as_json(estimates: Estimates, unit: str) -> dict[str, Any]:
    """Return all estimates as plain data; areas in hectares where the unit is known."""
    sample = estimates.sample
    factor = SQUARE_METRES.get(unit, SQUARE_METRES["ha"]) / SQUARE_METRES["ha"]
    classes = [
        {
            "name": name,
            "mapped_area": _number(float(sample.mapped_area_K[k]) * factor),
            "area": _figure(estimates.areas(factor)[k], sample.total * factor),
            "share": _figure(estimates.shares[k], 1.0),
            "users": _figure(estimates.users[k], 1.0),
            "producers": _figure(estimates.producers[k], 1.0),
        }
        for k, name in enumerate(sample.classes)
    ]
    rows = zip(sample.strata, (sample.area_H * factor).tolist(), sample.points_H.tolist(), strict=True)
    return {
        "format": FORMAT,
        "unit": "ha" if unit in SQUARE_METRES else unit or None,
        "points": int(sample.points_H.sum()),
        "unlabelled": sample.unlabelled,
        "overall": _figure(estimates.overall, 1.0),
        "classes": classes,
        "strata": [{"name": name, "area": area, "points": points} for name, area, points in rows],
        "matrix": estimates.matrix_KK.tolist(),
        "counts": estimates.counts_KK.tolist(),
        "sentences": sentences(estimates, unit),
        "remarks": remarks(estimates),
    }


def _figure(figure: Figure, most: float) -> dict[str, float | None] | None:
    """Return an estimate with its standard error and interval, which ends at 0 and at `most`."""
    if math.isnan(figure.value):
        return None
    low, high = max(0.0, figure.value - figure.half), min(most, figure.value + figure.half)
    return {"value": figure.value, "se": _number(figure.se), "low": _number(low), "high": _number(high)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
