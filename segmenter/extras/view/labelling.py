"""Page of questions that are answered one after the other: points of a sample, findings of a review."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.extras.vector_files.answers import AnswerChangedError, AnswerRow, AnswerTable
from segmenter.extras.vector_files.database import UNCLEAR
from segmenter.extras.view.colouring import Coloured, png
from segmenter.extras.view.pyramid import Pyramid
from segmenter.extras.view.server import Answer, Asked, Routes
from segmenter.grid.geometry import Window

SIDES = (33, 65, 129, 257, 513, 1025)
"""Pixels of a picture's side; odd, so that the pixel that is asked about is its middle."""
_FRAME = (255, 0, 255, 255)
_WEB = Path(__file__).parent / "web"
_FILES = {
    "": ("label.html", "text/html; charset=utf-8"),
    "label.js": ("label.js", "text/javascript; charset=utf-8"),
    "label.css": ("label.css", "text/css; charset=utf-8"),
}


class Questions(Protocol):
    """Questions of a page, each with the pictures of its place.

    Attributes:
        kind: `points` or `findings`.
        classes: name and colour of each class; colour is empty if unknown.
        done: the command that follows when all is answered.
    """

    kind: str
    title: str
    done: str
    table: AnswerTable

    @property
    def classes(self) -> list[dict[str, str]]: ...

    def facts(self, row: AnswerRow) -> dict[str, Any]:
        """Return what the page shows of a question, as JSON."""
        ...

    def layers(self, row: AnswerRow) -> dict[str, Pyramid]:
        """Return the pictures of a question's place, by name.

        Raises:
            SegmenterError: an image is not found, or cannot be read.
        """
        ...

    def pixels(self, row: AnswerRow) -> tuple[Window, tuple[Window, ...]]:
        """Return the pixels that a question is about, and cells within them to be outlined."""
        ...

    def intervals(self) -> list[tuple[int, float, float]]:
        """Return points, lower and upper end of the estimate, as it became narrower."""
        ...

    def picture(self, row: AnswerRow) -> Path | None:
        """Return a picture that was made before, for where there is no image."""
        ...

    def close(self) -> None:
        """Close the files, and let other processes write answers."""
        ...


class LabelPages:
    """Answers about a page of questions; any number of pages reads, the first that answers writes."""

    def __init__(self, questions: Questions) -> None:
        self._asks, self._lock = questions, threading.Lock()
        self._writer = ""

    @property
    def routes(self) -> Routes:
        """Routes by method and first word."""
        files = {word: Answer((_WEB / name).read_bytes(), kind) for word, (name, kind) in _FILES.items()}
        return {
            **{f"GET {word}": lambda asked: files[asked.words[0]] for word in files},
            "GET alive": lambda _: Answer.of({}),
            "GET state": self.state,
            "GET next": self.next,
            "GET before": self.near,
            "GET after": self.near,
            "GET row": self.row,
            "GET place": self.place,
            "POST answer": self.answer,
            "POST claim": self.claim,
            "POST leave": self.leave,
        }

    def state(self, asked: Asked) -> Answer:
        """Return what the page has to know, and how far the answers are."""
        asks = self._asks
        return Answer.of(
            {
                "title": asks.title,
                "kind": asks.kind,
                "classes": asks.classes,
                "unclear": UNCLEAR,
                "done": asks.done,
                "sides": SIDES,
                "progress": self._progress(asked.query.get("page", "")),
            }
        )

    def _progress(self, page: str) -> dict[str, Any]:
        counts = self._asks.table.counts()
        total = sum(counts.values())
        return {
            "total": total,
            "answered": total - counts.get("", 0),
            "unclear": counts.get(UNCLEAR, 0),
            "intervals": self._asks.intervals(),
            "writes": self._writer in ("", page),
        }

    def next(self, asked: Asked) -> Answer:
        """Return the next unanswered question behind `next/FID`, else the first; null: none is left."""
        return self._answer(self._asks.table.next_open(asked.number(1)))

    def near(self, asked: Asked) -> Answer:
        """Return the question after `after/FID`, or before `before/FID`, answered or not; null: none."""
        backwards = asked.words[0] == "before"
        return self._answer(self._asks.table.neighbour(asked.number(1), backwards=backwards))

    def row(self, asked: Asked) -> Answer:
        """Return a question."""
        return self._answer(self._row(asked))

    def _row(self, asked: Asked) -> AnswerRow:
        if (row := self._asks.table.row(asked.number(1))) is None:
            raise SegmenterError("the page", "there is no such question", remedy="it was removed")
        return row

    def _answer(self, row: AnswerRow | None) -> Answer:
        return Answer.of(None if row is None else self._facts(row))

    def _facts(self, row: AnswerRow) -> dict[str, Any]:
        facts = {"fid": row.fid, "answer": row.answer, "stamp": row.stamp, **self._asks.facts(row)}
        try:
            facts["layers"] = list(self._asks.layers(row))
        except SegmenterError as error:
            facts |= {"layers": [], "fault": str(error)}
            if self._asks.picture(row) is not None:
                facts |= {"layers": ["picture"]}
        return facts

    # ---------------------------------------------------------------------------------------- answers

    def answer(self, asked: Asked) -> Answer:
        """Write an answer; it is on the disk when this returns. 409: the row is another now, or others write.

        Raises:
            SegmenterError: it is no class, or the file cannot be written.
        """
        page, fid, stamp, text = _posted_fields(asked, "page", "fid", "stamp", "answer")
        names = [each["name"] for each in self._asks.classes]
        if text is not None and text not in (*names, UNCLEAR):
            raise SegmenterError("the page", expected="a class, or none", got=str(text)[:60])
        with self._lock:
            if self._writer not in ("", page):
                return _conflict("Another page writes the answers.")
            self._writer = str(page)
            try:
                row = self._asks.table.write(int(fid), str(stamp), text)
            except AnswerChangedError as error:
                return _conflict(str(error), changed=True)
            except SegmenterError as error:
                return _conflict(str(error))
        return Answer.of({"row": self._facts(row), "progress": self._progress(str(page))})

    def claim(self, asked: Asked) -> Answer:
        """Let a page write in place of another."""
        (page,) = _posted_fields(asked, "page")
        with self._lock:
            self._writer = str(page)
        return Answer.of(self._progress(str(page)))

    def leave(self, asked: Asked) -> Answer:
        """Let others write once a page has gone."""
        (page,) = _posted_fields(asked, "page")
        with self._lock:
            if self._writer == page:
                self._writer = ""
        return Answer.of({})

    # ----------------------------------------------------------------------------------------- places

    def place(self, asked: Asked) -> Answer:
        """Return a picture of a place: `place/FID/LAYER/SIDE`, the pixel asked about in the middle."""
        row, layer = self._row(asked), "".join(asked.words[2:3])
        side = asked.number(3)
        if side not in SIDES:
            raise SegmenterError("the page", expected=f"a side of {', '.join(map(str, SIDES))}", got=side)
        if layer == "picture" and (path := self._asks.picture(row)) is not None:
            return Answer(path.read_bytes(), "image/png")
        known = self._asks.layers(row)
        if layer not in known:
            raise SegmenterError("the page", "there is no such layer")
        own, cells = self._asks.pixels(row)
        window = Window(
            own.row + own.height // 2 - side // 2, own.col + own.width // 2 - side // 2, side, side
        )
        return Answer(png(_outline_cells(_colour_window(known[layer], window), window, cells)), "image/png")


def _colour_window(pyramid: Pyramid, window: Window) -> Coloured:
    """Return the colours of a window, which may reach over the edge of a layer."""
    inside = window.intersection(Window.of(pyramid.layer.size))
    found = np.zeros((window.height, window.width, 4), np.uint8)
    if inside.size.pixels:
        found[inside.relative_to(window).slices()] = pyramid.colour(0, inside)
    return found


def _outline_cells(picture: Coloured, window: Window, cells: tuple[Window, ...]) -> Coloured:
    """Draw a line around cells, of the pixels that border on them."""
    if not cells:
        return picture
    inside = np.zeros(picture.shape[:2], np.uint8)
    for cell in cells:
        shown = cell.intersection(window)
        if shown.size.pixels:
            inside[shown.relative_to(window).slices()] = 1
    border = cv2.dilate(inside, np.ones((3, 3), np.uint8)) > inside
    return np.where(border[..., None], np.array(_FRAME, np.uint8), picture)


def _posted_fields(asked: Asked, *names: str) -> list[Any]:
    """Return fields of a request's body.

    Raises:
        SegmenterError: it is not as the page sends it.
    """
    try:
        body = json.loads(asked.body)
        found = [body[name] for name in names]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SegmenterError("the page", "sent what cannot be read", remedy="load it again") from None
    numbers = [value for name, value in zip(names, found, strict=True) if name == "fid"]
    texts = [value for name, value in zip(names, found, strict=True) if name != "fid"]
    whole = all(type(value) is int and abs(value) < 1 << 62 for value in numbers)
    if not whole or not all(value is None or isinstance(value, str) for value in texts):
        raise SegmenterError("the page", "sent what cannot be read", remedy="load it again")
    return found


def _conflict(why: str, *, changed: bool = False) -> Answer:
    return Answer.of({"error": why, "changed": changed}, 409)
