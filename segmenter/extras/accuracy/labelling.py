"""Points of a sample, labelled one after the other without the map: nothing here reads what it says.

`intervals` alone does, and gives intervals of the overall accuracy, which tells nothing of a single point.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.extras.accuracy.estimators import estimates
from segmenter.extras.accuracy.points import CLASSES, MAPS, POINTS
from segmenter.extras.accuracy.tables import column_of, read_labelled
from segmenter.extras.vector_files.answers import AnswerRow, AnswerTable
from segmenter.grid.geometry import Window

_EVERY = 10
"""Answers from one interval to the next: one after each answer would tell whether it is what the map says."""


class PointLabels:
    """Points to label.

    Attributes:
        table: the points, in the order in which they were drawn.
        intervals: labelled points, and lower and upper end of the overall accuracy with 95 %, at first and
            after each ten answers; none while a stratum has less than two labelled points.
    """

    def __init__(self, path: Path) -> None:
        """Check the file.

        Raises:
            DatasetError: it is not as `accuracy sample` writes it.
        """
        self.path = path
        self.table = AnswerTable(path, POINTS, ("id", "map", "row", "col"))
        self.intervals: list[tuple[int, float, float]] = []
        self._counted = -1
        self.count()

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes, in the maps' order."""
        return column_of(self.path, CLASSES, "class")

    @cached_property
    def maps(self) -> dict[str, Path]:
        """Paths of the maps by their names in the points."""
        names, paths = (column_of(self.path, MAPS, column) for column in ("map", "path"))
        return {name: self.path.parent / path for name, path in zip(names, paths, strict=True)}

    def number(self, row: AnswerRow) -> int:
        """Return the number of a point.

        Raises:
            DatasetError: the row was edited.
        """
        return self._number_in(row, "id")

    def pixel(self, row: AnswerRow) -> Window:
        """Return a point's pixel.

        Raises:
            DatasetError: the row was edited.
        """
        return Window(self._number_in(row, "row"), self._number_in(row, "col"), 1, 1)

    def _number_in(self, row: AnswerRow, name: str) -> int:
        value = row.values[name]
        if not isinstance(value, int) or not 0 <= value < 1 << 40:
            raise DatasetError(
                f"{self.path}, point {row.fid}",
                expected=f"the field {name} as it was drawn",
                got=repr(value)[:60],
                remedy="undo the edit, or remove the point",
            )
        return value

    def picture(self, row: AnswerRow) -> Path | None:
        """Return the picture of a point that `accuracy sample --chips` wrote; None if there is none."""
        picture = self.path.with_suffix(".chips") / f"{self.number(row)}.png"
        return picture if os.path.isfile(picture) else None

    def count(self) -> None:
        """Estimate at every tenth answer alone: two intervals that are one answer apart would tell it."""
        with self.table.alone:
            counts = self.table.counts()
            answered = sum(counts.values()) - counts.get("", 0)
            if answered <= self._counted or answered % _EVERY:
                return
            self._counted = answered
            try:
                sample, _ = read_labelled(self.path, None, None)
            except SegmenterError:  # which `accuracy estimate` tells, and names strata
                return
        overall = estimates(sample).overall
        low, high = max(0.0, overall.low), min(1.0, overall.high)
        self.intervals.append((int(sample.points_H.sum()), low, high))
