"""Outcome of the jobs of a call: maps, their counts against labels, and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError
from segmenter.evaluation.bootstrap import forget_blocks, miou_interval
from segmenter.evaluation.intervals import LEAST
from segmenter.evaluation.scores import ConfusionMatrix, Protocol, Scores
from segmenter.evaluation.tallies import MapTally, Tally
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.mapping.jobs import MapJob


@dataclass
class Tallies:
    """Counts of a map against its label, or of many maps by merging."""

    confusion: ConfusionMatrix
    further: list[MapTally] = field(default_factory=list)

    @property
    def each(self) -> tuple[Tally, ...]:
        """All tallies, the confusion matrix first."""
        return self.confusion, *self.further

    def merge(self, other: Tallies) -> None:
        """Add the counts of `other`."""
        for own, their in zip(self.each, other.each, strict=True):
            own.merge(their)

    def scores(self, protocol: Protocol, scenes: Sequence[ConfusionMatrix]) -> Scores:
        """Return the scores of these scenes under a protocol, the further ones as facts."""
        more = {key: facts for one in self.further for key, facts in one.facts(protocol).items()}
        interval = miou_interval(scenes, protocol)
        return replace(self.confusion.scores(protocol), more=more, interval=interval)


class Scorer:
    """Score of one map against its label."""

    def __init__(self, job: MapJob, classes: ClassMap) -> None:
        self._label = job.truth(classes)
        self.tallies = Tallies(ConfusionMatrix(classes, part=job.part, group=job.group))
        self.error: SegmenterError | None = None

    def add(self, window: Window, ids: NDArray[np.uint8]) -> None:
        """Count a window; an error in the label is stored, since the map is still good."""
        if self._label is None or self.error is not None:
            return
        try:
            self.tallies.confusion.add(self._label.read(window), ids, window)
        except SegmenterError as error:
            self.error = error

    def close(self) -> None:
        """Close the label."""
        if self._label is not None:
            self._label.close()


@dataclass
class Outcome:
    """Outcome of the jobs.

    Attributes:
        each: scored maps, with the tallies of each.
        written: maps made by this call.
        kept: existing maps, finished by an earlier call or another process.
        failed: jobs without a (new) map.
        unscored: maps whose label could not be read.
        warnings: problems that did not harm a map.
        set_sizes: pixels of the written maps whose sets have 0, 1, 2, … classes; 0: none were asked for.
        removed: files of older maps that were removed because they did not belong to the new ones.
        seconds: duration of writing the maps.
        further: files written at the end: scores, pictures.
        scores: scores of all maps with a label; None: nothing was scored.
        stopped: error that ended the call early; jobs in none of the lists were not finished.
    """

    written: list[MapJob] = field(default_factory=list)
    kept: list[MapJob] = field(default_factory=list)
    failed: list[tuple[MapJob, SegmenterError]] = field(default_factory=list)
    each: list[tuple[MapJob, Tallies]] = field(default_factory=list)
    unscored: list[tuple[MapJob, SegmenterError]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    set_sizes: NDArray[np.int64] | int = 0
    seconds: float = 0.0
    further: list[Path] = field(default_factory=list)
    scores: Scores | None = None
    stopped: SegmenterError | None = None

    def merge(self, other: Outcome) -> None:
        """Add the outcome of further jobs."""
        for name in ("written", "kept", "failed", "each", "unscored", "warnings", "removed"):
            getattr(self, name).extend(getattr(other, name))
        self.set_sizes += other.set_sizes
        self.seconds += other.seconds
        self.stopped = self.stopped or other.stopped

    def add_score(self, job: MapJob, scorer: Scorer) -> None:
        """Add a completed map's score to the total, or record why it has none."""
        scorer.close()
        if scorer.error is not None:
            self.unscored.append((job, scorer.error))
        elif job.label is not None:
            self.each.append((job, scorer.tallies))
            forget_blocks([tallies.confusion for _, tallies in self.each[-LEAST:]])
