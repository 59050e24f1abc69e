"""End of a training on one screen: the best validation, its classes and confusions, the pictures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from segmenter.base.terminal import aligned
from segmenter.evaluation.scores import Scores, percent
from segmenter.runs.score_files import BEST_FILES, SUMMARY, describe_scores, scored

_BAR = 25
"""Characters of a bar for an IoU of 1."""
_MOST_CLASSES, _WORST, _BEST = 8, 5, 2
"""Classes that all have a line; of more, so many of the lowest and of the highest IoU: with a terminal of 24
lines in mind, some of which are too long for it."""
_CONFUSIONS = 5
_LEAST = 0.01
"""Share of a class's pixels below which a confusion is not worth a line."""


def describe_result(run: Path, best_by: str) -> list[str]:
    """Lines on the best validation of a run; without one, only where the learning curves are."""
    lines = describe_scores(run, best_by)
    if (best := scored(run / BEST_FILES[0])) is not None:
        lines += ["", *_classes(best.scores), *_confusions(best.scores), ""]
    pictures = [str(run / name) for name in (SUMMARY, "learning_curves.png") if (run / name).is_file()]
    return [*lines, f"pictures: {', '.join(pictures)}"] if pictures else lines


def _classes(scores: Scores) -> list[str]:
    """A line for each class with its IoU as a number and as a bar; of many, for the worst and the best."""
    ious = [float(iou) for iou in scores.iou]
    chosen = _chosen(ious)
    shares = [float(count) / max(1, scores.pixels) for count in scores.truth_pixels]
    bars = ["" if math.isnan(iou) else "#" * round(_BAR * iou) for iou in ious]
    cells = [(scores.protocol.classes[i], percent(ious[i]), percent(shares[i])) for i in chosen]
    head, *table = aligned(("class", "IoU", "share of truth"), cells)
    lines = [f"{line}  {bars[i]}".rstrip() for i, line in zip(chosen, table, strict=True)]
    if len(chosen) < len(ious):
        between = len(ious) - sum(map(math.isnan, ious)) > len(chosen)
        lines.insert(
            _WORST if between else len(lines), f"… {len(ious) - len(chosen)} more, see {BEST_FILES[0]}"
        )
    return [head, *lines]


def _chosen(ious: list[float]) -> list[int]:
    """Numbers of the classes that have a line; of many, by IoU: those without one are left out first."""
    if len(ious) <= _MOST_CLASSES:
        return list(range(len(ious)))
    known = sorted((i for i, iou in enumerate(ious) if not math.isnan(iou)), key=lambda i: ious[i])
    return [*known[:_WORST], *known[_WORST:][-_BEST:]]


def _confusions(scores: Scores) -> list[str]:
    """The largest shares of a class's pixels that are taken for another class."""
    truth = scores.truth_pixels[:, None]
    shares = np.divide(scores.matrix, truth, out=np.zeros(scores.matrix.shape), where=truth > 0)
    np.fill_diagonal(shares, 0)
    names = scores.protocol.classes
    largest = [np.unravel_index(i, shares.shape) for i in np.argsort(-shares, axis=None, kind="stable")]
    lines = [
        f"  {names[i]} taken for {names[j]}: {percent(float(shares[i, j]))} % of the pixels of {names[i]}"
        for i, j in largest[:_CONFUSIONS]
        if shares[i, j] >= _LEAST
    ]
    return ["", "most confused:", *lines] if lines else []
