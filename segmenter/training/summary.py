"""End of a training on one screen: the best validation, its classes and confusions, the pictures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from segmenter.evaluation.scores import Scores, percent
from segmenter.runs.score_files import BEST_FILES, SUMMARY, describe_scores, scored
from segmenter.terminal import aligned

_BAR = 25
"""Characters of a bar for an IoU of 1."""
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
    """A line for each class with its IoU as a number and as a bar."""
    ious = [float(iou) for iou in scores.iou]
    shares = [float(count) / max(1, scores.pixels) for count in scores.truth_pixels]
    bars = ["" if math.isnan(iou) else "#" * round(_BAR * iou) for iou in ious]
    cells = zip(scores.protocol.classes, map(percent, ious), map(percent, shares), strict=True)
    table = aligned(("class", "IoU", "share of truth"), cells)
    return [line if not bar else f"{line}  {bar}" for line, bar in zip(table, ["", *bars], strict=True)]


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
