"""Score files of a run: of its best validation, whose model predicts, and of the last validation."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from segmenter.base.errors import ScoreError, SegmenterError
from segmenter.base.files import write_whole
from segmenter.base.sealed import json_object
from segmenter.base.terminal import fit_table
from segmenter.evaluation.scores import FIGURES, Scores, percent, score_of, title_of
from segmenter.runs.checkpoints import BEST
from segmenter.runs.run import RUN_FILE, runs_in

_NAME = re.compile(r"fold_(\d+)")
MOST_BYTES = 1 << 28
"""Largest file of scores of maps that is read: it has a block for each scene."""


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
        if (best := load_score(run / BEST_FILES[0])) is None:
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
    return "\n".join(fit_table(["score, or IoU of a class", *titles, "mean", "± deviation"], lines))


BEST_FILES = ("scores.json", "confusion.png")
SUMMARY = "summary.png"
"""Picture of the best validation: confusion matrix and examples."""
LAST_FILES = ("last_scores.json", "last_confusion.png")


def keep_as_best(run: Path) -> None:
    """Copy the files of the last validation to those of the best."""
    for last, best in zip(LAST_FILES, BEST_FILES, strict=True):
        write_whole(run / best, (run / last).read_bytes())


def later_scores(run: Path, step: int) -> list[Path]:
    """Return the files of the last validation if it came after a step."""
    last = load_score(run / LAST_FILES[0])
    if last is None or last.step <= step:
        return []
    return [run / name for name in LAST_FILES if (run / name).is_file()]


def describe_scores(run: Path, best_by: str = "miou") -> list[str]:
    """Return a line on the best validation and one on the last, each with its files."""
    lines = []
    if best := load_score(run / BEST_FILES[0]):
        files = ", ".join(BEST_FILES)
        lines.append(f"best: {_line(best, best_by)}; {BEST}, which predict.py uses, {files}")
    if last := load_score(run / LAST_FILES[0]):
        lines.append(f"last: {_line(last, best_by)}; {', '.join(LAST_FILES)}")
    return lines


def record_to_beat(run: Path, best_by: str) -> float | None:
    """Return the best score recomputed by today's rule if it used the earlier rule; else None.

    A validation counts all classes, so its missed pixels are exactly those without data; today's rule leaves
    them out.
    """
    best = load_score(run / BEST_FILES[0])
    if best is None or best.scores.protocol.without_data == "left out":
        return None
    then = best.scores
    protocol = replace(then.protocol, without_data="left out")
    return score_of(Scores(protocol, then.matrix, np.zeros_like(then.missed)), best_by)


@dataclass(frozen=True)
class Scored:
    """Scores of a validation and its step."""

    epoch: int
    step: int
    scores: Scores


def load_score(path: Path) -> Scored | None:
    """Load the validation in a score file; None if it cannot be read."""
    try:
        record = json_object(path.read_bytes()) or {}
        result = Scored(int(record["epoch"]), int(record["step"]), Scores.from_dict(record))
        return result if _is_whole(result.scores) else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, ScoreError):
        return None


def _is_whole(scores: Scores) -> bool:
    """Return True if the matrix fits the protocol's classes: score files have no checksum."""
    names, K = scores.protocol.classes, len(scores.protocol.classes)
    rules = scores.protocol
    texts = (*names, *rules.scenes, rules.labels, rules.split, rules.calibration, rules.fitted_on)
    counts = (scores.matrix, scores.missed, np.array(scores.without_data))
    return (
        all(isinstance(text, str) for text in texts)
        and scores.matrix.shape == (K, K)
        and scores.missed.shape == (K,)
        and all((count >= 0).all() for count in counts)
    )


def _line(one: Scored, best_by: str) -> str:
    known = best_by.partition(":")[2] in ("", *one.scores.protocol.classes)  # of a copied file it may not
    names = dict.fromkeys(("miou", best_by if known else "miou"))
    values = {title_of(name): score_of(one.scores, name) for name in names}
    scores = (f"{title} {f'{100 * v:.2f} %' if np.isfinite(v) else '–'}" for title, v in values.items())
    return f"epoch {one.epoch}, step {one.step}, {', '.join(scores)}"
