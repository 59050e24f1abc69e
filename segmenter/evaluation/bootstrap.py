"""Interval of mIoU by bootstrap over scenes.

Scenes are drawn with replacement, not pixels: neighbouring pixels err together, and their number would make
any interval narrow. It is the percentile interval of Efron 1979 (doi 10.1214/aos/1176344552).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segmenter.evaluation.scores import Scores, percent

LEAST_SCENES = 10
"""Scenes below which draws tell nothing."""
_DRAWS = 2000


def miou_interval(scenes: Sequence[Scores]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mIoU of all scenes together; the same for the same scores.

    None for fewer than `LEAST_SCENES` scenes with labelled pixels.
    """
    scenes = [each for each in scenes if each.pixels]
    if len(scenes) < LEAST_SCENES:
        return None
    count = len(scenes)
    draws_DS = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _DRAWS)
    hits_DK = draws_DS @ np.array([np.diag(each.matrix) for each in scenes])
    union_DK = draws_DS @ np.array([each.truth_pixels + each.predicted_pixels for each in scenes]) - hits_DK
    occurs_DK = union_DK > 0
    iou_DK = np.divide(hits_DK, union_DK, out=np.zeros(hits_DK.shape), where=occurs_DK)
    low, high = np.percentile(iou_DK.sum(axis=1) / occurs_DK.sum(axis=1), (2.5, 97.5))
    return float(low), float(high)


def interval_line(interval: tuple[float, float] | None, scenes: int) -> str:
    """Return the line below a table of scores with the interval of mIoU; empty text for None."""
    if interval is None:
        return ""
    low, high = map(percent, interval)
    return f"\n          mIoU from {low} to {high} (95 %, bootstrap over {scenes} scenes)"
