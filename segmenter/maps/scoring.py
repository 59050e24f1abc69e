"""What came of the maps, and how good they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import SegmenterError
from segmenter.geometry import Size, Window
from segmenter.labels import ClassMap
from segmenter.maps.files import MapStyle
from segmenter.maps.jobs import MapJob
from segmenter.raster import read_label
from segmenter.scores import ConfusionMatrix, Protocol, Scores
from segmenter.tiling import COLUMN, grid

_AT_ONCE = Size(512, COLUMN)
"""Pixels of a finished map that are read to be scored."""


class Scorer:
    """One map against its label."""

    def __init__(self, job: MapJob, classes: ClassMap) -> None:
        self._label, self._classes = job.label, classes
        self.confusion = ConfusionMatrix(classes)
        self.error: SegmenterError | None = None

    def add(self, window: Window, ids: NDArray[np.uint8]) -> None:
        """Count a window; what is wrong with the label is kept, since the map is still good."""
        if self._label is None or self.error is not None:
            return
        try:
            self.confusion.add(self._truth(self._label, window), ids)
        except SegmenterError as error:
            self.error = error

    def _truth(self, label: Path, window: Window) -> NDArray[np.uint8]:
        raw = read_label(label, window, expand_palette=self._classes.encoding == "colours")
        return self._classes.decode(raw, f"{label}, {window}")


@dataclass
class Outcome:
    """What came of the jobs.

    Attributes:
        confusion: of all maps that have a label.
        written: maps made by this call.
        kept: maps that were there, finished by an earlier call or by another process.
        failed: jobs with no (new) map.
        unscored: maps whose label could not be counted.
        warnings: what went wrong without harm to a map.
        stopped: what ended it before the last job; those that are in none of the lists were not finished.
    """

    confusion: ConfusionMatrix
    written: list[MapJob] = field(default_factory=list)
    kept: list[MapJob] = field(default_factory=list)
    failed: list[tuple[MapJob, SegmenterError]] = field(default_factory=list)
    unscored: list[tuple[MapJob, SegmenterError]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stopped: SegmenterError | None = None

    @property
    def scored(self) -> list[MapJob]:
        """Maps whose label was counted."""
        without = {id(job) for job, _ in self.unscored}
        there = [*self.written, *self.kept]
        return [job for job in there if job.label is not None and id(job) not in without]

    def add_score(self, job: MapJob, scorer: Scorer) -> None:
        """Add a map's score to the others', or note why it has none."""
        if scorer.error is not None:
            self.unscored.append((job, scorer.error))
        else:
            self.confusion.merge(scorer.confusion)


def score_kept(outcome: Outcome, style: MapStyle) -> None:
    """Score the maps that were there, as far as they have a label."""
    for job in outcome.kept:
        if job.label is None:
            continue
        scorer = Scorer(job, style.classes)
        try:
            for place in grid(job.part.size, _AT_ONCE):
                ids = style.ids(job, read_label(job.output, place.keep))
                scorer.add(place.keep.shifted(job.part.row, job.part.col), ids)
        except SegmenterError as error:
            scorer.error = error
        outcome.add_score(job, scorer)


@dataclass(frozen=True)
class Scoring:
    """How maps are scored.

    Attributes:
        labels: full or eroded.
        split: what is scored, for the record.
        protocol: name of a published one; None: all classes of the run.
        tta: test-time augmentation.
    """

    classes: ClassMap
    labels: Literal["full", "eroded"]
    split: str
    protocol: str | None = None
    tta: str = "none"

    def __post_init__(self) -> None:
        ConfusionMatrix(self.classes).scores(
            self.of(())
        )  # raises where the protocol does not fit the classes

    def of(self, scenes: Sequence[str]) -> Protocol:
        """The protocol with the scenes that were scored."""
        if self.protocol:
            kind, split, tta = self.labels, self.split, self.tta
            return Protocol.published(self.protocol, labels=kind, split=split, tta=tta, scenes=scenes)
        return Protocol(tuple(self.classes.names), self.labels, self.split, self.tta, scenes=tuple(scenes))


def write_scores(outcome: Outcome, scoring: Scoring, folder: Path, title: str) -> Scores:
    """`scores.json` and `confusion.png` of the maps that have a label."""
    from segmenter.figures import confusion_figure  # brings matplotlib

    protocol = scoring.of([job.name for job in outcome.scored])
    scores = outcome.confusion.scores(protocol)
    scores.write(folder / "scores.json")
    confusion_figure(scores, folder / "confusion.png", f"{title}: {protocol}")
    return scores
