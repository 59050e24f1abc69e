"""Places of other tools as lists of the page: findings of `review`, points of `accuracy sample`."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from segmenter.base.errors import SegmenterError, failing
from segmenter.base.files import read_regular
from segmenter.extras.view.shown_map import ShownMap
from segmenter.extras.view.windows import Entry, place_facts
from segmenter.grid.geometry import Window

_SIDE = 32
"""Pixels about a point that are marked."""
Row = Mapping[str, Any]


class FoundPlaces:
    """Places of a file, in its order; those in none of the maps are counted.

    Raises:
        SegmenterError: the file cannot be read, or holds no places of pixels.
    """

    def __init__(self, path: Path, maps: Sequence[ShownMap]) -> None:
        self.id, self.title, self._maps = path.name, path.name, len(maps)
        names = {name: shown for shown in reversed(maps) for name in _names(shown)}
        self._entries: list[Entry] = []
        self.left_out = 0
        for row in _rows(path):
            shown = names.get(_stem(str(row.get("map") or row.get("scene") or "")))
            if shown is None:
                self.left_out += 1
            else:
                self._entries.append(_entry(row, shown, path))

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the page knows of the list."""
        return {"id": self.id, "title": self.title, "looked": self._maps, "of": self._maps}

    def entries(self) -> list[Entry]:
        """Return the places."""
        return self._entries


def _names(shown: ShownMap) -> set[str]:
    return {shown.path.stem, _stem(shown.source)}


def _stem(name: str) -> str:
    return Path(name).stem if name.endswith((".tif", ".tiff", ".png", ".jpg")) else name.rpartition("/")[2]


def _rows(path: Path) -> Iterator[Row]:
    with failing(SegmenterError, path, "cannot read it"):
        if path.suffix.lower() != ".gpkg":
            yield from csv.DictReader(io.StringIO(read_regular(path).decode("utf-8-sig", "replace")))
            return
        path.stat()
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as file:
            file.row_factory = sqlite3.Row
            for row in file.execute("select * from points order by id"):
                yield {name: row[name] for name in row.keys()}  # noqa: SIM118  # a Row's values are iterated
    except sqlite3.Error as error:
        raise SegmenterError(path, expected="points of `accuracy sample`", got=str(error)) from None


def _entry(row: Row, shown: ShownMap, path: Path) -> Entry:
    try:
        at, col = int(row["row"]), int(row["col"])
        height, width = int(row.get("height") or 0), int(row.get("width") or 0)
    except (KeyError, TypeError, ValueError):
        raise SegmenterError(
            path, expected="columns row and col with whole numbers, and map or scene", got=dict(row)
        ) from None
    if not height:  # a point
        at, col, height, width = at - _SIDE // 2, col - _SIDE // 2, _SIDE, _SIDE
    title = " ".join(str(row[name]) for name in ("rank", "id", "likely", "reference") if row.get(name))
    label = row.get("label")
    detail = f"labelled {label}" if label else shown.name
    return {"map": shown.id, **place_facts(Window(at, col, height, width)), "title": title, "detail": detail}
