"""Scores of a training's validations, as files of its run."""

from __future__ import annotations

from pathlib import Path

from segmenter.evaluation.figures import confusion_figure
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.runs.score_files import LAST_FILES


def write_last(run: Path, step: int, epoch: int, scores: Scores, confusion: ConfusionMatrix) -> None:
    """Write the scores and the confusion matrix of the validation that was just done."""
    table, picture = (run / name for name in LAST_FILES)
    scores.write(table, facts={"epoch": epoch, "step": step})
    confusion_figure(confusion, picture, f"validation after epoch {epoch}, step {step}")
