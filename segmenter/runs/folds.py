"""Folds of one recipe as run directories side by side, and the table of their scores."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.base.terminal import aligned
from segmenter.evaluation.scores import FIGURES, percent
from segmenter.runs.run import RUN_FILE, runs_in
from segmenter.runs.score_files import BEST_FILES, scored

_NAME = re.compile(r"fold_(\d+)")


def fold_path(folder: Path, fold: int) -> Path:
    """Return the run directory of a fold, counted from 1."""
    return folder / f"fold_{fold}"


def folds_in(folder: Path) -> list[Path]:
    """Return the run directories of the folds in a folder, in order; empty if it is a run, or has none."""
    if os.path.exists(folder / RUN_FILE):  # no error of a folder that cannot be read
        return []
    matches = [(match, path) for path in runs_in(folder) if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(matches, key=lambda item: int(item[0][1]))]


def fold_table(runs: Sequence[Path]) -> str:
    """Return each fold's best scores, their mean and their standard deviation, in percent.

    Raises:
        SegmenterError: a run has no scores.
    """
    all_scores = []
    for run in runs:
        if (best := scored(run / BEST_FILES[0])) is None:
            raise SegmenterError(run, expected=f"scores in {BEST_FILES[0]}, there are none")
        all_scores.append(best.scores)
    rows = {title: [float(getattr(one, key)) for one in all_scores] for key, title in FIGURES.items()}
    for k, name in enumerate(all_scores[0].protocol.classes):
        rows[name] = [float(one.iou[k]) for one in all_scores]
    lines = []
    for title, values in rows.items():
        known = [value for value in values if np.isfinite(value)]
        mean = float(np.mean(known)) if known else np.nan
        spread = float(np.std(known, ddof=1)) if len(known) > 1 else np.nan
        lines.append([title, *map(percent, values), percent(mean), percent(spread)])
    titles = [run.name for run in runs]
    return "\n".join(aligned(["score, or IoU of a class", *titles, "mean", "± deviation"], lines))
