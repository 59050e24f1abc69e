"""Estimators of area and accuracy from a stratified random sample of pixels, in NumPy.

Strata may be anything (Stehman 2014, doi 10.1080/01431161.2014.930207). Where they are the map's classes, the
estimators are those of Olofsson et al. 2013 and 2014 (doi 10.1016/j.rse.2014.02.015). Classes may be pairs of
classes: change between two maps needs no other formulas.

All figures are ratios R = Y / X of two totals. With A_h the area of stratum h, n_h its labelled points, a_u
the area of the pixel of point u, p_u the probability with which it was drawn, and y_u, x_u its indicators:

    w_u    = A_h (a_u / p_u) / sum_h a_u / p_u          area that the point stands for
    r_h(y) = sum_h w_u y_u / A_h                        share of the stratum with y
    Y      = sum_u w_u y_u
    e_u    = w_u ((y_u - r_h(y)) - R (x_u - r_h(x)))
    m_h    = sum_h (1 - p_u) e_u / sum_h (1 - p_u)
    V(R)   = sum_h n_h / (n_h - 1) sum_u (1 - p_u) (e_u - m_h)² / X²

| figure | y_u | x_u |
| --- | --- | --- |
| overall accuracy | mapped = reference | 1 |
| share of the area of k | reference is k | 1 |
| user's accuracy of k | both are k | mapped is k |
| producer's accuracy of k | both are k | reference is k |

V is that of Hájek 1964 for fixed sizes (doi 10.1214/aoms/1177700375), n_h counts only points with p_u < 1.
With one p_u = n_h / N_h for the N_h pixels of a stratum, all of one size, r_h is the mean and V is equation
28 of Stehman 2014; without N_h p_u is 0, as in Olofsson et al. 2014. Points drawn by area all stand for the
same area. Pixels of unequal size that were drawn alike do not, so that few of them may count.

Where a sample meets no error (or nothing but errors) of a kind, V says nothing of that kind. Its share of the
area of the points in which it could have been met is then at most Wilson's bound z² / (n + z²) (1927, doi
10.1080/01621459.1927.10502953), with the effective number of these points n = (sum w_u)² / sum (1 - p_u) w_u²
(Kish 1965, section 11.7): the interval reaches so far to that side, and where V is not 0, the root of both
squared. For overall accuracy these points are those of the strata without an error; for classes those that
are mapped so, and all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import counted
from segmenter.base.terminal import fit_table

Unit = Literal["m2", "ha", "km2", "px"]

SQUARE_METRES: dict[str, float] = {"m2": 1.0, "ha": 1e4, "km2": 1e6}
"""Square metres of one unit."""
_SHOWN = {"m2": "m²", "ha": "ha", "km2": "km²", "px": "px", "": ""}
_LARGE = (("km2", 1e7), ("ha", 1e4), ("m2", 0.0))
"""Unit to show, from this area of all strata on, in square metres."""


@dataclass(frozen=True)
class Shown:
    """Unit in which areas are shown.

    Attributes:
        name: `m2`, `ha`, `km2` or `px`; empty: unknown.
        factor: multiply areas by this.
    """

    name: str
    factor: float

    @property
    def sign(self) -> str:
        """Unit behind a number, with a space; empty if unknown."""
        return f" {_SHOWN[self.name]}" if self.name else ""


def unit_for(unit: str, total: float) -> Shown:
    """Return a unit for areas given in `unit`, all of them together `total`."""
    if unit not in SQUARE_METRES:
        return Shown(unit, 1.0)
    metres = total * SQUARE_METRES[unit]
    name = next(name for name, least in _LARGE if metres >= least)
    return Shown(name, SQUARE_METRES[unit] / SQUARE_METRES[name])


def whole_area(value: float) -> str:
    """Return an area in four digits, or in all of its whole ones."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def with_interval(figure: Estimate, sign: str = "") -> str:
    """Return `12.4 ± 1.1 km²`, or `0.0 (0.0–1.1) km²`; two digits of half the interval or all whole ones."""
    if math.isnan(figure.value):
        return "–"
    if not figure.half > 0:
        return f"{figure.value:,.{0 if figure.value >= 100 else 2}f} ± 0{sign}"
    decimals = max(0, 1 - math.floor(math.log10(float(f"{figure.half:.1e}"))))
    return _with_ends(figure, decimals) + sign


def in_percent(figure: Estimate) -> str:
    """Return a share such as `88.0 ± 7.4` or `100.0 (92.9–100.0)`, in percent."""
    return "–" if math.isnan(figure.value) else _with_ends(figure.times(100), 1)


def _with_ends(figure: Estimate, decimals: int) -> str:
    if figure.unseen_below or figure.unseen_above:
        return f"{figure.value:,.{decimals}f} ({figure.low:,.{decimals}f}–{figure.high:,.{decimals}f})"
    return f"{figure.value:,.{decimals}f} ± {figure.half:,.{decimals}f}"


FORMAT = 1
"""Format of the JSON."""
_FEW = 30
"""Effective points below which an interval by the normal distribution is rough."""
_MUCH = 0.8
"""Share of the points that count, from which on nothing is said."""


def sentences(estimates: Estimates, unit: str) -> list[str]:
    """Return `building 12.4 ± 1.1 km² (95 %)` for each class that the sample has seen, largest first."""
    shown = unit_for(unit, estimates.sample.total)
    pairs = zip(estimates.sample.classes, estimates.areas(shown.factor), strict=True)
    seen = sorted((pair for pair in pairs if pair[1].value > 0), key=lambda pair: -pair[1].value)
    return [f"{name} {with_interval(area, shown.sign)} (95 %)" for name, area in seen]


def head(estimates: Estimates) -> str:
    """Return the overall accuracy as a sentence."""
    return f"overall accuracy {in_percent(estimates.overall)} % (95 %), from {basis(estimates)}"


def basis(estimates: Estimates) -> str:
    """Return the numbers of points and strata with their nouns."""
    points, strata = int(estimates.sample.points_H.sum()), len(estimates.sample.strata)
    return f"{counted(points, 'labelled point')} in {counted(strata, 'stratum', 'strata')}"


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
    return fit_table(titles(shown), class_rows(estimates, shown))


def remarks(estimates: Estimates) -> list[str]:
    """Return a line for each weakness of the sample."""
    lines, left = [], estimates.sample.unlabelled
    if left:
        lines.append(f"{counted(left, 'point')} without a reference class left out, as if like the others")
    lines += _unlike(estimates.sample)
    for k, name in enumerate(estimates.sample.classes):
        mapped, reference = (int(estimates.counts_KK.sum(axis=axis)[k]) for axis in (1, 0))
        right = int(estimates.counts_KK[k, k])
        if not reference:
            lines.append(f"{name}: no point of that reference class: area 0, no producer's accuracy")
        elif right == reference:
            lines.append(
                f"{name}: all its {counted(reference, 'point')} are mapped so; omissions were not met, label "
                "more points of other strata to narrow its interval"
            )
        effective = effective_points(estimates.sample, estimates.sample.mapped_N == k)
        if not mapped:
            lines.append(f"{name}: no point that is mapped so: no user's accuracy")
        elif right == mapped:
            lines.append(f"{name}: all {counted(mapped, 'point')} mapped so are right; Wilson's bound")
        elif effective < _FEW:
            count = "" if effective > _MUCH * mapped else f" that count as {effective:.0f}"
            lines.append(
                f"{name}: {counted(mapped, 'point')} mapped so{count}; intervals are rough below {_FEW}"
            )
    return lines


def _unlike(sample: PointSample) -> list[str]:
    """Return a line if the points of a stratum stand for so unlike areas that few of them count."""
    weight_N, strata = _weights(sample), len(sample.strata)
    sums_H, squares_H = (np.bincount(sample.stratum_N, weight_N**power, strata) for power in (1, 2))
    points_H = np.maximum(sample.points_H, 1)
    share_H = sums_H**2 / np.where(squares_H > 0, squares_H, 1) / points_H
    few, worst = int(np.count_nonzero((share_H < _MUCH) & (squares_H > 0))), int(np.argmin(share_H))
    if not few:
        return []
    count = f"its {counted(int(points_H[worst]), 'point')} count as {share_H[worst] * points_H[worst]:.0f}"
    more = f", and {few - 1} more strata alike" if few > 1 else ""
    return [
        f"stratum {sample.strata[worst]}: {count}{more}: pixels differ in area and were drawn "
        "alike; intervals may be too narrow, draw a new sample"
    ]


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


def _figure(figure: Estimate, most: float) -> dict[str, float | None] | None:
    """Return an estimate with its standard error and interval, which ends at 0 and at `most`."""
    if math.isnan(figure.value):
        return None
    low, high = max(0.0, figure.low), min(most, figure.high)
    return {"value": figure.value, "se": _number(figure.se), "low": _number(low), "high": _number(high)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


NORMAL_95 = 1.96
"""Standard errors to each side of a 95 % interval, as the papers round it."""

_ROUNDING = 1e-12
"""Largest standard error of a ratio that comes from rounding alone."""

Indicators = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PointSample:
    """Labelled points of a stratified random sample.

    Attributes:
        area_H: area of each stratum, in any unit.
        pixels_H: number of pixels of each stratum; None: unknown.
        stratum_N, mapped_N, reference_N: index of each point's stratum, mapped class and reference class.
        size_N: area of each point's pixel, in any unit.
        mapped_area_K: area of each class on the map; NaN where it is unknown.
        unlabelled: number of points left out, because they have no reference class.
        probability_N: with which each point's pixel was drawn and labelled; None: alike for all pixels of a
            stratum.
    """

    classes: tuple[str, ...]
    strata: tuple[str, ...]
    area_H: NDArray[np.float64]
    pixels_H: NDArray[np.int64] | None
    stratum_N: NDArray[np.intp]
    mapped_N: NDArray[np.intp]
    reference_N: NDArray[np.intp]
    size_N: NDArray[np.float64]
    mapped_area_K: NDArray[np.float64]
    unlabelled: int = 0
    probability_N: NDArray[np.float64] | None = None

    @property
    def points_H(self) -> NDArray[np.intp]:
        """Number of labelled points in each stratum."""
        return np.bincount(self.stratum_N, minlength=len(self.strata))

    @property
    def total(self) -> float:
        """Area of all strata."""
        return float(self.area_H.sum())


@dataclass(frozen=True)
class Estimate:
    """An estimate with its standard error; NaN where the sample does not define it.

    Attributes:
        unseen_below, unseen_above: how much lower or higher it may be by what no point has shown; 0: all was
        met.
    """

    value: float
    se: float
    unseen_below: float = 0.0
    unseen_above: float = 0.0

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - math.hypot(NORMAL_95 * self.se, self.unseen_below)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + math.hypot(NORMAL_95 * self.se, self.unseen_above)

    @property
    def half(self) -> float:
        """Half of the width of the 95 % interval, or its wider side."""
        return math.hypot(NORMAL_95 * self.se, max(self.unseen_below, self.unseen_above))

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(
            self.value * factor, self.se * factor, self.unseen_below * factor, self.unseen_above * factor
        )


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates from a sample.

    Attributes:
        matrix_KK: share of the area by mapped class (rows) and reference class (columns).
        shares, users, producers: for each class, its share of the area, user's and producer's accuracy.
    """

    sample: PointSample
    matrix_KK: NDArray[np.float64]
    counts_KK: NDArray[np.int64]
    overall: Estimate
    shares: tuple[Estimate, ...]
    users: tuple[Estimate, ...]
    producers: tuple[Estimate, ...]

    def areas(self, factor: float = 1.0) -> tuple[Estimate, ...]:
        """Return the error-adjusted area of each class, in the unit of the sample's areas times a factor."""
        return tuple(share.times(self.sample.total * factor) for share in self.shares)


def estimates(sample: PointSample) -> Estimates:
    """Return all estimates from a sample that has a point in each stratum."""
    count = len(sample.classes)
    mapped_NK = sample.mapped_N[:, np.newaxis] == np.arange(count)
    reference_NK = sample.reference_N[:, np.newaxis] == np.arange(count)
    right_NK = mapped_NK & reference_NK
    every = np.ones_like(right_NK)
    figures = _ratios(
        sample,
        np.hstack([right_NK.any(axis=1, keepdims=True), reference_NK, right_NK, right_NK]),
        np.hstack([every[:, :1], every, mapped_NK, reference_NK]),
    )
    figures = tuple(
        replace(figure, unseen_below=below, unseen_above=above)
        for figure, (below, above) in zip(figures, _unseen(sample), strict=True)
    )
    counts, matrix = np.zeros((count, count), np.int64), np.zeros((count, count))
    cells = sample.mapped_N, sample.reference_N
    np.add.at(counts, cells, 1)
    np.add.at(matrix, cells, _weights(sample) / sample.total)
    parts = (figures[1 + count * i : 1 + count * (i + 1)] for i in range(3))
    return Estimates(sample, matrix, counts, figures[0], *parts)


def _weights(sample: PointSample) -> NDArray[np.float64]:
    """Return the (N,) area that each point stands for."""
    size_N = sample.size_N if sample.probability_N is None else sample.size_N / sample.probability_N
    size_H = np.bincount(sample.stratum_N, size_N, len(sample.strata))
    weight_N: NDArray[np.float64] = size_N * (sample.area_H / size_H)[sample.stratum_N]
    return weight_N


def _random(sample: PointSample) -> NDArray[np.float64]:
    """Return the (N,) probability with which each point's pixel was not drawn: 0 where all pixels are
    known.
    """
    if sample.probability_N is not None:
        return 1 - sample.probability_N
    if sample.pixels_H is None:
        return np.ones(len(sample.stratum_N))
    found: NDArray[np.float64] = (1 - sample.points_H / sample.pixels_H)[sample.stratum_N]
    return found


def effective_points(sample: PointSample, which_N: Indicators) -> float:
    """Return the number of points that some count as, by the areas for which they stand (Kish 1965)."""
    weight_N = _weights(sample)[which_N]
    return float(weight_N.sum() ** 2 / (weight_N**2).sum()) if len(weight_N) else 0.0


def _unseen(sample: PointSample) -> list[tuple[float, float]]:
    """Return how much each figure may be lower, and higher, by what no point has shown.

    In the order of `estimates`: overall accuracy; share, user's and producer's accuracy of each class.
    """
    mapped, reference = sample.mapped_N, sample.reference_N
    weight_N, random_N = _weights(sample) / sample.total, _random(sample)

    def bound(which_N: Indicators) -> float:
        """Return the most of the whole area that some points, all of one kind, leave for others."""
        weight, squares = float(weight_N[which_N].sum()), float((random_N * weight_N**2)[which_N].sum())
        return 0.0 if squares <= _ROUNDING * weight**2 else weight * _wilson(weight**2 / squares)

    def sides(kind_N: Indicators, *groups_N: Indicators) -> tuple[float, float]:
        """Return the bounds below and above a share of the area, of groups that show it or its opposite
        alone.
        """
        none = np.zeros(len(kind_N), np.bool_)
        full = [group_N for group_N in groups_N if kind_N[group_N].all()]
        empty = [group_N for group_N in groups_N if not kind_N[group_N].any()]
        return bound(sum(full, none)), bound(sum(empty, none))

    right_H = np.bincount(sample.stratum_N, mapped == reference, len(sample.strata))
    overall = tuple(bound((right_H == count_H)[sample.stratum_N]) for count_H in (sample.points_H, 0))
    shares, users, producers = [], [], []
    for k in range(len(sample.classes)):
        on_map, true = mapped == k, reference == k
        shares.append(sides(true, on_map, ~on_map))
        of_map = max(float(weight_N[on_map].sum()), _ROUNDING)
        below, above = sides(true, on_map)
        users.append((below / of_map, above / of_map))
        both, whole = float(weight_N[on_map & true].sum()), float(weight_N[true].sum())
        below = above = 0.0
        if whole and not (true & ~on_map).any():
            below = 1 - both / (both + bound(~on_map))
        elif whole and not both:
            above = (most := bound(on_map)) / (most + whole)
        producers.append((below, above))
    return [(overall[0], overall[1]), *shares, *users, *producers]


def _wilson(points: float) -> float:
    """Return the most that a share may be of which so many points show nothing (Wilson 1927)."""
    return NORMAL_95**2 / (points + NORMAL_95**2)


def _ratios(sample: PointSample, y_NM: Indicators, x_NM: Indicators) -> tuple[Estimate, ...]:
    """Return the ratio of two totals, for each of M columns, by this module's formulas."""
    weight_N, random_N1 = _weights(sample)[:, np.newaxis], _random(sample)[:, np.newaxis]
    total_y, total_x = (weight_N * y_NM).sum(axis=0), (weight_N * x_NM).sum(axis=0)
    with np.errstate(invalid="ignore"):
        ratio = np.where(total_x > 0, total_y / total_x, np.nan)
    centred = _centre(sample, weight_N, y_NM) - np.nan_to_num(ratio) * _centre(sample, weight_N, x_NM)
    error_NM = weight_N * centred
    random_H1, points_H1 = (_by_stratum(sample, each) for each in (random_N1, random_N1 > 0))
    mean_HM = _by_stratum(sample, random_N1 * error_NM) / np.where(random_H1 > 0, random_H1, 1)
    squares_HM = _by_stratum(sample, random_N1 * (error_NM - mean_HM[sample.stratum_N]) ** 2)
    factor_H1 = points_H1 / np.maximum(points_H1 - 1, 1)  # one point alone: one pixel, of which all is known
    with np.errstate(invalid="ignore", divide="ignore"):
        se = np.sqrt((factor_H1 * squares_HM).sum(axis=0)) / np.where(total_x > 0, total_x, np.nan)
    se = np.where(se < _ROUNDING, 0.0, se)
    return tuple(Estimate(*pair) for pair in zip(ratio.tolist(), se.tolist(), strict=True))


def _centre(sample: PointSample, weight_N: NDArray[np.float64], y_NM: Indicators) -> NDArray[np.float64]:
    """Return (N, M) indicators minus their share of the stratum."""
    share_HM = _by_stratum(sample, weight_N * y_NM) / sample.area_H[:, np.newaxis]
    return y_NM - share_HM[sample.stratum_N]


def _by_stratum(sample: PointSample, values_NM: NDArray[Any]) -> NDArray[np.float64]:
    """Return the (H, M) sums of (N, M) values in each stratum."""
    sums = np.zeros((len(sample.strata), values_NM.shape[1]))
    np.add.at(sums, sample.stratum_N, values_NM)
    return sums
