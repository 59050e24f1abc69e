"""Scores by name: `miou`, or `iou:building` for that of one class."""

from __future__ import annotations

from collections.abc import Sequence

from segmenter.base.errors import ConfigError
from segmenter.evaluation.scores import FIGURES, MEANS, Scores

OF_CLASS = {"iou": "IoU", "f1": "F1", "precision": "precision", "recall": "recall"}
"""Scores that each class has, with their titles."""


def check_name(name: str, classes: Sequence[str], where: str) -> None:
    """Refuse a name that no score of these classes has; `where` is the setting that says it.

    Raises:
        ConfigError: naming the scores or the classes that there are.
    """
    key, colon, of = name.partition(":")
    if not (name in MEANS or (colon and key in OF_CLASS)):
        known = ", ".join([*MEANS, *(f"{key}:CLASS" for key in OF_CLASS)])
        raise ConfigError(f"{where}: expected a score of a validation ({known}), got {name}")
    if colon and of not in classes:
        raise ConfigError(f"{where}: expected a class of the dataset ({', '.join(classes)}), got {of!r}")


def score_of(scores: Scores, name: str) -> float:
    """The score of a name that `check_name` knows, a fraction of 1; NaN where undefined."""
    key, colon, of = name.partition(":")
    value = getattr(scores, key)
    return float(value[scores.protocol.classes.index(of)] if colon else value)


def title_of(name: str) -> str:
    """The name as people read it: `mIoU`, `IoU of building`."""
    key, colon, of = name.partition(":")
    return f"{OF_CLASS[key]} of {of}" if colon else FIGURES[key]
