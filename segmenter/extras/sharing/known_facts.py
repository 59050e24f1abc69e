"""Facts of a run, gathered from its files for descriptions.

The law of this package: **only measured facts are reported.** Scores are used only if they belong to exactly
the described weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.base.files import read_regular
from segmenter.config.models import EncoderDecoderConfig
from segmenter.evaluation.scores import Scores
from segmenter.model.pretrained.encoder_weights import PACKAGE_LICENCE, package_of
from segmenter.runs.checkpoints import BEST, META, Arrays, fingerprint, learned_weights
from segmenter.runs.records import AccuracyFile, Origin, load_accuracy, load_origin
from segmenter.runs.resume import CheckpointFacts
from segmenter.runs.run import Run, load_run
from segmenter.runs.score_files import BEST_FILES


@dataclass(frozen=True)
class RunFactsForOthers:
    """Facts of a run.

    Attributes:
        sha256, size: of that file; size in bytes.
        fingerprint: SHA-256 of the named weights that predict, independent of their file.
        steps: optimiser steps of these weights; None: unknown.
        facts: record of how they were computed; None: unknown.
        origin: origin of the training data; None: trained by an older program.
        scores: scores of a validation of exactly these weights; None: there are none.
        no_scores: reason for missing scores; else empty.
        per_scale: scores by stratum of the validation scenes' scale.
        accuracy: estimates of the maps of exactly these weights; None: there are none.
    """

    run: Run
    weights: Path
    sha256: str
    size: int
    fingerprint: str
    parameters: int
    steps: int | None
    facts: CheckpointFacts | None
    origin: Origin | None
    scores: Scores | None
    no_scores: str
    per_scale: Mapping[str, Mapping[str, Any]]
    accuracy: AccuracyFile | None

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.run.recipe.name

    @property
    def architecture(self) -> str:
        """Name of the model in the literature."""
        model = self.run.recipe.model
        return f"{model.encoder} + {model.decoder}" if isinstance(model, EncoderDecoderConfig) else "U-Net"

    @property
    def band_names(self) -> tuple[str, ...]:
        """Name of each input band: its position in the image file."""
        numbers = self.run.bands or range(1, self.run.band_count + 1)
        return tuple(f"band {number}" for number in numbers)

    @property
    def trained_pixels(self) -> Mapping[str, int] | None:
        """Labelled pixels of the training tiles by class; None: unknown."""
        return None if self.origin is None else self.origin.pixels

    @property
    def pretrained(self) -> bool | None:
        """True if training began with other weights; None: not recorded."""
        origin, weights = self.origin, getattr(self.run.recipe.model, "weights", None)
        if weights is not None or (origin is not None and origin.started_from):
            return True
        return None if origin is None or origin.started_from is None else False

    def describe_start(self) -> str:
        """Return text on the origin of the initial weights, and their licence if known."""
        origin, model = self.origin, self.run.recipe.model
        if origin is not None and origin.started_from:
            return f"the weights of the run {origin.started_from}; their origin and licence are that run's"
        asked = model.weights if isinstance(model, EncoderDecoderConfig) else None
        unless = "" if origin and origin.started_from == "" else "; or another run's: that was not recorded"
        if asked is None:
            return f"random weights{unless}"
        assert isinstance(model, EncoderDecoderConfig)
        package = package_of(model.encoder)
        if asked != "imagenet":
            return f"the encoder from the file {Path(asked).name}; its licence is not recorded{unless}"
        if package is None:
            return f"the encoder with Keras' ImageNet weights; their licence is not recorded{unless}"
        return f"the encoder with ImageNet weights of the package {package}, {PACKAGE_LICENCE}{unless}"


def read_known(path: Path) -> RunFactsForOthers:
    """Read the facts of the run in a directory; does not import TensorFlow.

    Raises:
        CheckpointError: the directory is no run, has no weights, or they are damaged.
        SegmenterError: a file cannot be read.
    """
    run = load_run(path)
    weights, arrays = run.weights_file(), run.weights()
    learned = {n: a for n, a in learned_weights(arrays).items() if not n.endswith("/masks")}
    if not learned:
        raise CheckpointError(weights, expected="the weights of a model, it holds none")
    steps = _steps(arrays)
    scores, why, per_scale = _scores(path, weights, steps)
    with weights.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return RunFactsForOthers(
        run=run,
        weights=weights,
        sha256=sha256,
        size=weights.stat().st_size,
        fingerprint=fingerprint(arrays),
        parameters=sum(math.prod(array.shape) for array in learned.values()),
        steps=steps,
        facts=_facts(arrays),
        origin=load_origin(path),
        scores=scores,
        no_scores=why,
        per_scale=per_scale,
        accuracy=_accuracy(run),
    )


def _accuracy(run: Run) -> AccuracyFile | None:
    with suppress(CheckpointError):  # of other weights, or damaged
        return load_accuracy(run)
    return None


def _steps(arrays: Arrays) -> int | None:
    position = arrays.get("position", np.zeros(0))
    return int(position.ravel()[0]) if position.size else None


def _facts(arrays: Arrays) -> CheckpointFacts | None:
    with suppress(KeyError, ValidationError):
        return CheckpointFacts.model_validate_json(arrays[META].tobytes())
    return None


def _scores(
    run: Path, weights: Path, steps: int | None
) -> tuple[Scores | None, str, Mapping[str, Mapping[str, Any]]]:
    """Return the scores of these weights, the reason if missing, and the scores by gsd stratum."""
    file = run / BEST_FILES[0]
    if weights.name != BEST:
        return None, f"{weights.name} was not validated: the run has no best validation", {}
    if not file.is_file():
        return None, f"the run has no {file.name}", {}
    try:
        record = json.loads(read_regular(file))
        scores, step = Scores.from_dict(record), record.get("step")
        per_scale = dict(record.get("per_scale", {}))
    except (SegmenterError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None, f"{file.name} cannot be read as scores", {}
    if steps is None or step != steps:
        return None, f"{file.name} is of other weights (step {step}, these are of step {steps})", {}
    return scores, "", per_scale
