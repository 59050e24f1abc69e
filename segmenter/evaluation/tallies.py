"""Tallies: counts of maps against labels, from which scores are computed.

Wherever truth meets prediction (a map of `predict`, a validation), each of `TALLIES` counts the same windows.
The confusion matrix is the first. A new tally is a class with the methods of `Tally` and a line in `TALLIES`;
its facts appear under its name in `scores.json` and in the last validation's scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self, cast
from typing import Protocol as Interface

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.protocol import Protocol
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap

Counts = NDArray[np.int64]


class Tally(Interface):
    """Interface of counts over the windows of one map, or of many maps after merging."""

    @property
    def counts(self) -> Counts:
        """All counts, of any shape; a tally can be built from them to continue."""

    def add(self, truth: NDArray[np.uint8], ids: NDArray[np.uint8], window: Window, /) -> None:
        """Count a window: class ids of label and map, and its position in the raster."""

    def merge(self, other: Self, /) -> None:
        """Add the counts of `other`."""

    def facts(self, protocol: Protocol, /) -> dict[str, Any]:
        """Return the scores under a protocol, as plain data for JSON."""


TALLIES: dict[str, Callable[[ClassMap, Counts | None], Tally]] = {"confusion": ConfusionMatrix}
"""Tally by name, made of classes and the counts of an earlier one (None: nothing is counted)."""


class Tallies:
    """One tally of each kind in `TALLIES`."""

    def __init__(self, classes: ClassMap, counts: Mapping[str, Counts] | None = None) -> None:
        self._tallies = {name: make(classes, (counts or {}).get(name)) for name, make in TALLIES.items()}
        self.confusion = cast("ConfusionMatrix", self._tallies["confusion"])

    @property
    def counts(self) -> dict[str, Counts]:
        """The counts of each tally by name."""
        return {name: tally.counts for name, tally in self._tallies.items()}

    def add(self, truth: NDArray[np.uint8], ids: NDArray[np.uint8], window: Window) -> None:
        """Count a window in each tally."""
        for tally in self._tallies.values():
            tally.add(truth, ids, window)

    def merge(self, other: Tallies) -> None:
        """Add the counts of each tally of `other`."""
        for name, tally in self._tallies.items():
            tally.merge(other._tallies[name])

    def scores(self, protocol: Protocol) -> Scores:
        """Return the scores of the confusion matrix, with the facts of all other tallies."""
        others = (name for name in self._tallies if name != "confusion")
        more = {name: self._tallies[name].facts(protocol) for name in others}
        return replace(self.confusion.scores(protocol), more=more)
