"""Answers to findings, in `review.gpkg`: `reference` is the class that is right.

A finding whose `reference` is the label is dismissed; with the likely class it is accepted; another class
counts as accepted with that class.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import DatasetError, shorten
from segmenter.extras.vector_files.answers import AnswerRow, AnswerTable
from segmenter.extras.vector_files.database import UNCLEAR, database
from segmenter.extras.vector_files.features import check_kind
from segmenter.grid.geometry import Window

LAYER = "review"
"""Stem of the files, and layer of the findings."""
FIELDS = (
    *("rank", "scene", "row", "col", "height", "width", "label", "likely", "wrong_pixels", "share", "cells"),
)


@dataclass(frozen=True)
class AnsweredFinding:
    """A finding as it is in the file.

    Attributes:
        window: rectangle around its cells.
        label, likely: class of the label, and class that the model sees.
        wrong: expected number of wrong pixels.
        reference: class that is right; empty: not answered, or it cannot be told.
    """

    place: str
    rank: int
    scene: str
    window: Window
    cells: tuple[Window, ...]
    label: str
    likely: str
    wrong: float
    reference: str

    @property
    def accepted(self) -> bool:
        """True if its label is to be changed."""
        return self.reference not in ("", self.label)


def finding_table(path: Path) -> AnswerTable:
    """Return the findings of a file, to be answered.

    Raises:
        DatasetError: it is not as `segmenter review` writes it.
    """
    return AnswerTable(path, LAYER, FIELDS)


def finding_of(path: Path, row: AnswerRow) -> AnsweredFinding:
    """Return the finding in a row.

    Raises:
        DatasetError: the row was emptied or edited.
    """
    values, place = row.values, f"{path}, finding {row.values['rank']}"
    try:
        window = Window(*(int(values[name]) for name in ("row", "col", "height", "width")))
        cells = tuple(Window(*map(int, numbers)) for numbers in json.loads(values["cells"]))
        rank, wrong = int(values["rank"]), float(values["wrong_pixels"])
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise DatasetError(place, expected="its place as it was written", remedy="undo the edit") from None
    if (
        not cells
        or not all(window.contains(cell) and cell.size.pixels for cell in cells)
        or min(window.row, window.col) < 0
    ):
        raise DatasetError(place, expected="cells within its rectangle", remedy="undo the edit")
    names = [str(values[name] or "").strip() for name in ("scene", "label", "likely")]
    reference = "" if row.answer == UNCLEAR else row.answer
    return AnsweredFinding(place, rank, names[0], window, cells, names[1], names[2], wrong, reference)


def answered_findings(path: Path) -> list[AnsweredFinding]:
    """Return the findings of a file.

    Raises:
        DatasetError: it is not as `segmenter review` writes it.
    """
    with finding_table(path) as table:
        return [finding_of(path, row) for row in table.rows()]


def is_findings(path: Path) -> bool:
    """Return whether a GeoPackage has findings.

    Raises:
        DatasetError: it is no GeoPackage.
    """
    check_kind(path)
    try:
        with database(path) as file:
            names = [str(name) for (name,) in file.execute("SELECT table_name FROM gpkg_contents")]
    except sqlite3.Error as error:
        raise DatasetError(path, f"cannot be read: {error}", remedy="is it whole?") from None
    return LAYER in names


def run_of_findings(path: Path) -> tuple[str, str | None]:
    """Return the path of the run that findings are of, from the folder of their file, and its `--root`.

    Raises:
        DatasetError: the file does not say it.
    """
    try:
        with database(path) as file:
            found = file.execute("SELECT * FROM runs")
            row = dict(zip((column[0] for column in found.description), found.fetchone(), strict=True))
            return str(row["run"]), row.get("root")  # earlier versions noted no root
    except (sqlite3.Error, TypeError, KeyError):
        raise DatasetError(
            path, expected="the run in its table runs", got="none", remedy="review anew"
        ) from None


def check_classes(found: Sequence[AnsweredFinding], names: Sequence[str]) -> None:
    """Refuse answers and labels that are no class of the run.

    Raises:
        DatasetError: naming the finding.
    """
    for one in found:
        for name in filter(None, (one.label, one.reference)):
            if name not in names:
                raise DatasetError(
                    one.place,
                    expected=f"a class of the run ({shorten(', '.join(names), 200)})",
                    got=f"{shorten(name, 60)!r}",
                    remedy="answer it anew",
                )
