"""Answers in a GeoPackage: the field `reference` of its rows, each answer a transaction of its own.

QGIS may have the file open meanwhile. A row that another program changed since it was read is not written.
An answer that was acknowledged is on the disk: SQLite commits with `synchronous=EXTRA`, which also syncs the
folder after the journal is removed. Only the answer and the date of its layer are written, so that indices
and counts of the file stay right. Threads of one process take turns: see `database`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segmenter.base.errors import DatasetError, OutputError, SegmenterError, shorten
from segmenter.base.files import Closing
from segmenter.extras.vector_files.database import REFERENCE, database, undo_unfinished
from segmenter.extras.vector_files.features import check_kind, check_tables
from segmenter.mapping.folder.state import OutputLocks

_OF_GEOMETRY = ("ST_IsEmpty", "ST_MinX", "ST_MaxX", "ST_MinY", "ST_MaxY")
"""Functions of GDAL that triggers of the spatial index name; no change of an attribute calls them."""


class AnswerChangedError(SegmenterError):
    """A row was changed or removed by another program after it was read."""


@dataclass(frozen=True)
class AnswerRow:
    """Row of a layer.

    Attributes:
        values: fields that tell what is asked.
        answer: text of the field of answers; empty: none.
    """

    fid: int
    values: dict[str, Any]
    answer: str

    @property
    def stamp(self) -> str:
        """Digest of the row as it was read."""
        whole = json.dumps([self.fid, self.values, self.answer], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


class AnswerTable(Closing):
    """Layer of a GeoPackage whose rows are answered; the first answer locks it against other processes.

    Attributes:
        alone: lock of this process on the file, for all who open it.
    """

    def __init__(self, path: Path, layer: str, columns: Sequence[str]) -> None:
        """Check the file.

        Args:
            columns: fields that tell what is asked; the first one orders the rows.

        Raises:
            DatasetError: it is no GeoPackage, or lacks the layer or a field.
        """
        self.path, self.alone = path, threading.RLock()
        self._layer, self._columns = layer, (*columns, REFERENCE)
        self._writers = OutputLocks([path])
        self._writes = False
        check_kind(path)
        try:
            undo_unfinished(path)
            check_tables(path, layer)
        except OSError as error:
            raise DatasetError(path, f"cannot be read: {error}", remedy="is it whole?") from None
        with self._connect() as file:
            there = [name for _, name, *_ in file.execute(f"PRAGMA table_info({_quote(layer)})")]
        for name in self._columns:
            if name not in there:
                got = shorten(", ".join(there), 100) or "none"
                raise DatasetError(f"{path}: layer {layer}", expected=f"the field {name}", got=got)

    def rows(self) -> list[AnswerRow]:
        """Return all rows in their order."""
        with self._connect() as file:
            return self._rows(file)

    def row(self, fid: int) -> AnswerRow | None:
        """Return a row; None if it is not there."""
        return self._first("rowid = ?", fid)

    def neighbour(self, fid: int, *, backwards: bool = False) -> AnswerRow | None:
        """Return the row after a row, or before it; None if there is none.

        Row 0 is before the first one and after the last one.
        """
        return (
            self._first(self._beyond("<"), fid, "DESC") if backwards else self._first(self._beyond(">"), fid)
        )

    def next_open(self, fid: int) -> AnswerRow | None:
        """Return the first unanswered row after a row, else the first of all; None if none is left."""
        empty = f"{self._text} = ''"
        return self._first(f"{empty} AND {self._beyond('>')}", fid) or self._first(
            f"{empty} AND ? IS NOT NULL", fid
        )

    @property
    def _text(self) -> str:
        return f"trim(coalesce({_quote(self._columns[-1])}, ''))"

    def _beyond(self, sign: str) -> str:
        key, layer = _quote(self._columns[0]), _quote(self._layer)
        none = -1 if sign == ">" else 1 << 62
        return f"{key} {sign} coalesce((SELECT {key} FROM {layer} WHERE rowid = ?), {none})"

    def _first(self, where: str, fid: int, how: str = "ASC") -> AnswerRow | None:
        with self._connect() as file:
            found = self._rows(file, where, [fid], f"{how} LIMIT 1")
        return found[0] if found else None

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each answer; "" has those without."""
        with self._connect() as file:
            asked = f"SELECT {self._text}, count(*) FROM {_quote(self._layer)} GROUP BY 1"
            return {str(answer): int(count) for answer, count in file.execute(asked)}

    def write(self, fid: int, stamp: str, answer: str | None) -> AnswerRow:
        """Write one answer, None to take it back; return the row once it is on the disk.

        Args:
            stamp: of the row as its reader has seen it.

        Raises:
            AnswerChangedError: another program changed or removed the row since; nothing is written.
            SegmenterError: another process labels the file, or it cannot be written.
        """
        with self.alone:
            if not self._writes:
                self._writers.take()
                self._writes = True
            with self._connect() as file:
                return self._write(file, fid, stamp, answer)

    def _write(self, file: sqlite3.Connection, fid: int, stamp: str, answer: str | None) -> AnswerRow:
        layer = _quote(self._layer)
        file.execute("BEGIN IMMEDIATE")
        before = self._rows(file, "rowid = ?", [fid])
        if not before or before[0].stamp != stamp:
            raise AnswerChangedError(
                f"{self.path}: row {fid}", "was changed by another program", remedy="it is read again"
            )
        file.execute(f"UPDATE {layer} SET {_quote(self._columns[-1])} = ? WHERE rowid = ?", [answer, fid])
        now = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
        file.execute(f"UPDATE gpkg_contents SET last_change = {now} WHERE table_name = ?", [self._layer])
        after = self._rows(file, "rowid = ?", [fid])
        file.execute("COMMIT")
        return after[0]

    def _rows(
        self, file: sqlite3.Connection, where: str = "1", values: Sequence[Any] = (), how: str = "ASC"
    ) -> list[AnswerRow]:
        columns = ", ".join(map(_quote, self._columns))
        asked = f"SELECT rowid, {columns} FROM {_quote(self._layer)} WHERE {where} ORDER BY 2 {how}"
        names = self._columns[:-1]
        return [
            AnswerRow(int(fid), dict(zip(names, cells, strict=True)), str(answer or "").strip())
            for fid, *cells, answer in file.execute(asked, values)
        ]

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection of SQLite, with the file to this thread alone; all is undone after an error.

        Raises:
            OutputError: the file cannot be read or written.
        """
        with self.alone:
            try:
                with database(self.path, "rw") as file:
                    file.execute("PRAGMA synchronous = EXTRA")
                    for name in _OF_GEOMETRY:
                        file.create_function(name, 1, _geometry)
                    yield file
            except sqlite3.Error as error:
                raise OutputError(
                    self.path, f"cannot be read or written: {error}", remedy="is another program writing it?"
                ) from None

    def close(self) -> None:
        """Let other processes write."""
        with self.alone:
            self._writers.release()
            self._writes = False


def _geometry(_: Any) -> Any:
    """Refuse: the change of an attribute moves no geometry."""
    raise AssertionError("an answer changes no geometry")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
