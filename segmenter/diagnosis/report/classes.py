"""Classes of a diagnosis in the order of all its charts, and their names."""

from __future__ import annotations

from segmenter.diagnosis.data import Diagnosis


def order(diagnosis: Diagnosis) -> list[int]:
    """The classes that occur, rarest first: the order of all charts."""
    classes = diagnosis.classes
    return sorted((c.id for c in classes if c.tiles), key=lambda c: (classes[c].tiles, c))


def names(diagnosis: Diagnosis) -> list[str]:
    """Names of all the classes, by id."""
    return [c.name for c in diagnosis.classes]
