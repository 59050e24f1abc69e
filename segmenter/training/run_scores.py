"""Scores of a training's validations, as files of its run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segmenter.evaluation.figures import confusion_figure
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.runs.score_files import LAST_FILES


def write_last(
    run: Path,
    step: int,
    epoch: int,
    scores: Scores,
    confusion: ConfusionMatrix,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write the scores, `more` keys beside them, and the confusion matrix of the validation just done."""
    table, picture = (run / name for name in LAST_FILES)
    scores.write(table, more, facts={"epoch": epoch, "step": step})
    confusion_figure(confusion, picture, f"validation after epoch {epoch}, step {step}")
