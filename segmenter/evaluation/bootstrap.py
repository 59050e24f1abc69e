"""Interval of mIoU over what is independent: groups of scenes, scenes, or blocks of the ground; never pixels.

Neighbouring pixels err together, and so do scenes of one place: their number would make any interval narrow.
Units are the groups of the data; a scene without one is a group. Of fewer than `FEWEST` scenes that are all
of different groups, square blocks are drawn, of the largest side that leaves `LEAST` labelled ones: the
interval is then for ground like that of these scenes.

From `LEAST` units on, they are drawn with replacement; the interval is that of percentiles (Efron 1979, doi
10.1214/aos/1176344552), expanded by Student's t for few units (Hesterberg 2015, doi
10.1080/00031305.2015.1089789). Percentiles cannot reach beyond the worst unit, so of fewer units the interval
is Student's t with G - 1 degrees of freedom about the mIoU, by the standard error of leaving out one unit at
a time (Tukey 1958; Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 11).

Units of unequal weight make both too narrow. A unit's weight W is the mean, over classes, of its share of
the pixels of a class in truth or map. If all units erred alike and independently, the ratio of error and
standard error would follow from W alone: t times the quotient of its quantiles for W and for equal weights,
which draws give, is used. Where few units have most of the weight, percentiles of draws hang on these: under
`LEAST` / 2 units in effect (1 / sum of W squared), the interval is Student's t for any number. Where a class
lies, in effect, in no more than `_SPREAD` units, nothing tells how it varies: there is no interval.

Where errors reach over a block's edge, the variance V(s) of draws of blocks of side s is too small by a share
of order 1/s, which 2 V(s) - V(s/2) removes (Politis and Romano 1995, doi 10.1111/j.1467-9892.1995.tb00223.x):
an interval of blocks is widened by the root of that over V(s), never narrowed. `studies/miou_intervals.md`
has the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.intervals import FEWEST, LEAST, Interval

if TYPE_CHECKING:
    from segmenter.evaluation.protocol import Protocol
    from segmenter.evaluation.scores import ConfusionMatrix

_SPREAD = 2.0
"""Units that a class must exceed in effect: of two, the spread is unknown."""
_LEVEL = 1 << 6
"""Units in effect from which on unequal weights make no difference."""
_DRAWS, _AT_ONCE = 2000, 100
Units = NDArray[np.float64]
"""(N, 3, K) pixels of units that are of a class in truth and map, in either of them, and in the truth."""


def forget_blocks(scenes: Sequence[ConfusionMatrix]) -> None:
    """Free the memory of all blocks if the scenes are enough themselves."""
    if sum(scene.pixels > 0 for scene in scenes) >= LEAST:
        for scene in scenes:
            scene.blocks = None


def miou_interval(scenes: Sequence[ConfusionMatrix], protocol: Protocol) -> Interval | None:
    """Return the interval of the mIoU of all scenes together; the same for the same counts.

    None if nothing is labelled, or of fewer than `FEWEST` scenes whose blocks were not counted.
    """
    scenes = [scene for scene in scenes if scene.pixels]
    if not scenes:
        return None
    names = protocol.classes
    counted = [scenes[0].classes.names.index(name) for name in names]
    of_group: dict[str | int, NDArray[np.int64]] = {}
    for number, scene in enumerate(scenes):
        key = number if scene.group is None else scene.group
        of_group[key] = of_group.get(key, np.int64(0)) + scene.counts
    units, grouped = _units(np.array([*of_group.values()]), counted), len(of_group) < len(scenes)
    if grouped or len(of_group) >= FEWEST:
        return _interval([units], names, groups=grouped)
    blocks = [scene.blocks for scene in scenes if scene.blocks is not None]
    if len(blocks) < len(scenes):
        return None
    side, levels = max(each.side for each in blocks), list[Units]()
    while len(units := np.concatenate([_units(each.merged(side), counted) for each in blocks])) >= LEAST:
        levels.append(units)
        side *= 2
    return _interval(levels, names, side=side // 2) if levels else Interval(None, len(units), side)


def _units(counts: NDArray[np.int64], counted: Sequence[int]) -> Units:
    """Return those with labelled pixels of (N, K, K + 1) counts, for the protocol's classes."""
    matrix = counts[:, counted][:, :, counted]
    truth = counts[:, counted, :-1].sum(axis=2)
    both = np.diagonal(matrix, axis1=1, axis2=2)
    units = np.stack([both, truth + matrix.sum(axis=1) - both, truth], axis=1)
    return units[truth.any(axis=1)].astype(np.float64)  # sums of whole numbers are exact below 2^53


def _interval(
    levels: Sequence[Units], names: Sequence[str], *, side: int | None = None, groups: bool = False
) -> Interval:
    """Return the interval over the last of units of growing sides, if their design allows one."""
    units = levels[-1]
    plain = Interval(None, len(units), side, groups)
    if len(units) < FEWEST:
        return plain
    effective_K = _effective(units)
    least = int(effective_K.argmin())
    if effective_K[least] <= _SPREAD:
        lies = f"lies in {effective_K[least]:.1f} of {plain.units} in effect, more than {_SPREAD:.0f} needed"
        return replace(plain, reason=f"class {names[least]} {lies}")
    weight_N = _weights(units)
    if len(units) >= LEAST and 1 / (weight_N**2).sum() >= LEAST / 2:
        return replace(plain, bounds=_drawn_bounds(levels, weight_N))
    return replace(plain, bounds=_left_out_bounds(units, weight_N), drawn=False)


def _weights(units: Units) -> NDArray[np.float64]:
    """Return the (N,) weight of each unit in the mIoU; they sum to 1."""
    either_NK = units[:, 1, units[:, 1].any(axis=0)]
    weight_N: NDArray[np.float64] = (either_NK / either_NK.sum(axis=0)).mean(axis=1)
    return weight_N


def _effective(units: Units) -> NDArray[np.float64]:
    """Return the (K,) number of units in effect that each class lies in; inf for one in none."""
    lies_NK = np.where(units[:, 2].any(axis=0), units[:, 2], units[:, 1])  # of no truth: where it is mapped
    total_K, squares_K = lies_NK.sum(axis=0), (lies_NK**2).sum(axis=0)
    return np.divide(total_K**2, squares_K, out=np.full(total_K.shape, np.inf), where=squares_K > 0)


def _mean_iou(both: NDArray[np.float64], either: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over the last axis, of the classes that occur."""
    iou = np.divide(both, either, out=np.zeros(both.shape), where=either > 0)
    mean: NDArray[np.float64] = iou.sum(axis=-1) / (either > 0).sum(axis=-1)
    return mean


def _left_out_bounds(units: Units, weight_N: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of Student's t by the standard error of leaving out one unit at a time."""
    count, total = len(units), units.sum(axis=0)
    left_N = _mean_iou(*np.moveaxis(total - units, 1, 0)[:2])
    error = math.sqrt((count - 1) * float(left_N.var()))
    middle, reach = float(_mean_iou(total[0], total[1])), _student(count) * _widening(weight_N) * error
    return max(0.0, middle - reach), min(1.0, middle + reach)


def _drawn_bounds(levels: Sequence[Units], weight_N: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of draws of the last units."""
    from scipy.special import ndtr  # here: all that reads scores would wait for it

    count = len(levels[-1])
    drawn = _miou_of_draws(levels[-1])
    tail = 100 * ndtr(-_student(count) * math.sqrt(count / (count - 1)))
    low, middle, high = np.percentile(drawn, (tail, 50, 100 - tail))
    wider = _widening(weight_N)
    if len(levels) > 1 and (variance := _variance(drawn, count)):
        finer = _variance(_miou_of_draws(levels[-2]), len(levels[-2]))
        wider *= math.sqrt(min(2.0, max(1.0, 2 - finer / variance)))
    low, high = middle - wider * (middle - low), middle + wider * (high - middle)
    return max(0.0, float(low)), min(1.0, float(high))


def _student(count: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975))


def _widening(weight_N: NDArray[np.float64]) -> float:
    """Return by how much unequal weights of units widen Student's t, at least 1."""
    count = len(weight_N)
    if 1 / (weight_N**2).sum() > min(_LEVEL, 0.999 * count):
        return 1.0
    rng, equal_N = np.random.default_rng(0), np.full(count, 1 / count)
    ratios = list[NDArray[np.float64]]()
    for _ in range(2 * _DRAWS // _AT_ONCE):
        errors_DN = rng.normal(size=(_AT_ONCE, count))
        ratios.append(np.stack([_ratios(errors_DN, each_N) for each_N in (weight_N, equal_N)]))
    unequal, equal = np.quantile(np.concatenate(ratios, axis=1), 0.95, axis=1)
    return max(1.0, float(unequal / equal))


def _ratios(errors_DN: NDArray[np.float64], weight_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (D,) quotients of the error of a weighted mean and its standard error by leaving one out."""
    count, error_D = len(weight_N), errors_DN @ weight_N
    left_DN = (error_D[:, None] - weight_N * errors_DN) / (1 - weight_N)
    ratios: NDArray[np.float64] = np.abs(error_D) / np.sqrt((count - 1) * left_DN.var(axis=1))
    return ratios


def _miou_of_draws(units: Units) -> NDArray[np.float64]:
    """Return the mIoU of each draw of as many units with replacement."""
    count, rng, found = len(units), np.random.default_rng(0), []
    flat = units[:, :2].reshape(count, -1)
    for _ in range(_DRAWS // _AT_ONCE):
        draws = rng.multinomial(count, np.full(count, 1 / count), _AT_ONCE).astype(np.float64)
        found.append(_mean_iou(*np.moveaxis((draws @ flat).reshape(_AT_ONCE, 2, -1), 1, 0)))
    return np.concatenate(found)


def _variance(drawn: NDArray[np.float64], count: int) -> float:
    return float(drawn.var()) * count / (count - 1)
