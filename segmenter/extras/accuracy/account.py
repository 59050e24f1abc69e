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
    sample = estimates.sample
    return (
        f"overall accuracy {in_percent(estimates.overall)} % (95 %), from "
        f"{counted(int(sample.points_H.sum()), 'labelled point')} in "
        f"{counted(len(sample.strata), 'stratum', 'strata')}"
    )


COLUMNS = ("points", "mapped", "area ± 95 %", "share %", "user's %", "producer's %")


def class_rows(estimates: Estimates, shown: Shown) -> Iterator[list[str]]:
    """Yield name and cells of `COLUMNS` for each class."""
    sample = estimates.sample
    areas, points_K = estimates.areas(shown.factor), estimates.counts_KK.sum(axis=0)
    for k, name in enumerate(sample.classes):
        mapped = sample.mapped_area_K[k] * shown.factor
        yield [
            name,
            f"{points_K[k]:,}",
            "–" if math.isnan(mapped) else f"{mapped:,.{_decimals(areas[k])}f}",
            with_interval(areas[k]),
            in_percent(estimates.shares[k]),
            in_percent(estimates.users[k]),
            in_percent(estimates.producers[k]),
        ]


def _decimals(area: Figure) -> int:
    """Return the decimals that `with_interval` shows, so that mapped and adjusted areas can be compared."""
    return len(with_interval(area).partition(" ")[0].partition(".")[2])


def table(estimates: Estimates, unit: str) -> list[str]:
    """Return the lines of the table of classes."""
    shown = unit_for(unit, estimates.sample.total)
    columns = [f"{title},{shown.sign}" if title == "mapped" and shown.sign else title for title in COLUMNS]
    return aligned(["class", *columns], class_rows(estimates, shown))


def remarks(estimates: Estimates) -> list[str]:
    """Return a line for each weakness of the sample."""
    sample, lines = estimates.sample, []
    if sample.unlabelled:
        lines.append(
            f"{counted(sample.unlabelled, 'point')} without a reference class left out, as if they were "
            "like the others"
        )
    for k, name in enumerate(sample.classes):
        mapped, reference = (int(estimates.counts_KK.sum(axis=axis)[k]) for axis in (1, 0))
        if not reference:
            lines.append(f"{name}: no point of that reference class, so no producer's accuracy and area 0")
        if not mapped:
            lines.append(f"{name}: no point that is mapped so, so no user's accuracy")
        right = int(estimates.counts_KK[k, k])
        if reference and right == reference:
            lines.append(
                f"{name}: all {counted(reference, 'point')} of that reference class are mapped so; "
                "omissions were not met, and its area may be too small: label more points of other strata"
            )
        if mapped and right == mapped and estimates.users[k].half == 0:
            lines.append(
                f"{name}: all {counted(mapped, 'point')} mapped so are right; the interval of 0 is too narrow"
            )
        elif mapped and mapped < _FEW:
            lines.append(f"{name}: {counted(mapped, 'point')} mapped so; below {_FEW}, intervals are rough")
    return lines


def as_json(estimates: Estimates, unit: str) -> dict[str, Any]:
    """Return all estimates as plain data; areas in hectares where the unit is known."""
    sample = estimates.sample
    metric = unit in SQUARE_METRES
    factor = SQUARE_METRES[unit] / SQUARE_METRES["ha"] if metric else 1.0
    rows = zip(estimates.areas(factor), estimates.shares, estimates.users, estimates.producers, strict=True)
    return {
        "format": FORMAT,
        "unit": "ha" if metric else unit or None,
        "points": int(sample.points_H.sum()),
        "unlabelled": sample.unlabelled,
        "overall": _figure(estimates.overall, 1.0),
        "classes": [
            {
                "name": name,
                "mapped_area": _number(float(sample.mapped_area_K[k]) * factor),
                "area": _figure(area, sample.total * factor),
                "share": _figure(share, 1.0),
                "users": _figure(users, 1.0),
                "producers": _figure(producers, 1.0),
            }
            for k, (name, (area, share, users, producers)) in enumerate(
                zip(sample.classes, rows, strict=True)
            )
        ],
        "strata": [
            {"name": name, "area": _number(float(area) * factor), "points": int(points)}
            for name, area, points in zip(sample.strata, sample.area_H, sample.points_H, strict=True)
        ],
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
