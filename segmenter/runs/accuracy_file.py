"""Accuracy of a run's maps from labelled points, in `accuracy.json`; the card and the report show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from segmenter.base.errors import CheckpointError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.sealed import sealed, unsealed_text
from segmenter.runs.checkpoints import fingerprint
from segmenter.runs.run import Run

ACCURACY = "accuracy.json"
_MOST_BYTES = 1 << 24


class AccuracyFile(BaseModel):
    """Shown part of accuracy.json, which has all figures.

    Attributes:
        weights: fingerprint of the weights that predicted (`checkpoints.fingerprint`).
        source: name of the file of points.
        head: overall accuracy, as a sentence.
        titles, rows: table of the classes.
        remarks: weaknesses of the sample.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    format: Literal[1] = 1
    weights: str
    source: str
    head: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]


def save_accuracy(run: Run, content: Mapping[str, Any]) -> None:
    """Write the estimates of a run's maps: fields of `AccuracyFile` but `weights`, and others for JSON.

    Raises:
        CheckpointError: the run has no weights.
        OutputError: the file cannot be written.
    """
    whole = {"format": 1, "weights": fingerprint(run.weights()), **content}
    write_whole(run.path / ACCURACY, sealed(json.dumps(whole, ensure_ascii=False, indent=1)).encode())


def load_accuracy(run: Run) -> AccuracyFile | None:
    """Load the estimates of the maps of these weights; None without that file.

    Raises:
        CheckpointError: the file is damaged, of another format or of other weights.
    """
    path = run.path / ACCURACY
    if not path.exists():
        return None
    text = unsealed_text(read_regular(path, _MOST_BYTES))
    try:
        found = AccuracyFile.model_validate_json(text or b"")
    except ValidationError:
        raise CheckpointError(
            path, "damaged, edited or of another version", remedy="remove it, or estimate anew"
        ) from None
    if found.weights != fingerprint(run.weights()):
        raise CheckpointError(
            path, "is of other weights than those that predict", remedy="remove it, or estimate anew"
        )
    return found
