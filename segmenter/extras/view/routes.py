"""Routes of the page of maps: its state, tiles, and the values of a pixel."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.extras.view.colouring import Coloured, png
from segmenter.extras.view.layers import Bands
from segmenter.extras.view.overviews import Overviews
from segmenter.extras.view.pyramid import TILE, Pyramid, level_size
from segmenter.extras.view.server import Answer, Asked, Routes
from segmenter.extras.view.shown_map import MapLegend, ShownMap
from segmenter.extras.view.values import pixel_facts, sight
from segmenter.grid.geometry import Window

_AT_ONCE = (os.cpu_count() or 1) + 1
"""Tiles that are drawn at once: more would only take memory."""


class PlaceList(Protocol):
    """Places to look at."""

    id: str

    @property
    def facts(self) -> dict[str, Any]:
        """Return id, title, and how many of how many maps were looked at."""

    def entries(self) -> list[dict[str, Any]]:
        """Return map, row, column, height, width, title and detail of each place."""


class MapPages:
    """Answers about a page's maps.

    Attributes:
        maps, lists: what is shown, and lists of places.
        overviews: what makes overviews in the background.
    """

    def __init__(
        self,
        title: str,
        maps: Sequence[ShownMap],
        legend: MapLegend,
        lists: Sequence[PlaceList],
        overviews: Overviews,
    ) -> None:
        self._title, self._legend, self.maps, self.lists = title, legend, maps, lists
        self._maps, self._lists = {each.id: each for each in maps}, {each.id: each for each in lists}
        self.overviews = overviews
        self._drawing = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def routes(self) -> Routes:
        """Routes by method and first word."""
        return {
            "GET state": self.state,
            "GET alive": self.alive,
            "GET tile": self.tile,
            "GET value": self.value,
            "GET sight": self.sight,
            "GET list": self.entries,
        }

    def state(self, asked: Asked) -> Answer:
        """Return what the page shows."""
        return Answer.of(self.facts)

    @property
    def facts(self) -> dict[str, Any]:
        """Title, classes, maps, lists and notes, as JSON."""
        classes = enumerate(zip(self._legend.names, self._legend.colours, strict=True))
        return {
            "title": self._title,
            "classes": [{"id": i, "name": name, "colour": colour} for i, (name, colour) in classes],
            "maps": [each.facts for each in self.maps],
            **self._progress,
        }

    def alive(self, asked: Asked) -> Answer:
        """Return what changes while a page is open."""
        return Answer.of(self._progress)

    @property
    def _progress(self) -> dict[str, Any]:
        making = [each for shown in self._maps.values() for each in shown.making]
        notes = [note for each in self._maps.values() for note in each.notes]
        return {
            "lists": [each.facts for each in self._lists.values()],
            "notes": [*notes, *self.overviews.remarks],
            "making": making,
        }

    def tile(self, asked: Asked) -> Answer:
        """Return a tile of a layer as PNG: `tile/MAP/LAYER/LEVEL/ROW/COLUMN?bands=3,2,1`."""
        shown = self._map(asked)
        level, row, col = (asked.number(place) for place in (3, 4, 5))
        pyramid = self._pyramid(shown, asked)
        if not 0 <= level <= pyramid.top:
            raise SegmenterError("the page", f"there is no level {level}")
        with self._drawing:
            coloured = coloured_tile(pyramid, level, row, col)
        return Answer(png(coloured), "image/png", stays="stamp" in asked.query)

    def value(self, asked: Asked) -> Answer:
        """Return the values of a pixel: `value/MAP/ROW/COLUMN`."""
        return Answer.of(pixel_facts(self._map(asked), asked.number(2), asked.number(3)))

    def sight(self, asked: Asked) -> Answer:
        """Return shares and hectares of a window: `sight/MAP/ROW/COLUMN/ROW/COLUMN`, without the last two."""
        shown = self._map(asked)
        top, left, bottom, right = (asked.number(place) for place in (2, 3, 4, 5))
        size = shown.info.size
        top, left = max(0, top), max(0, left)
        height, width = max(0, min(size.height, bottom) - top), max(0, min(size.width, right) - left)
        return Answer.of(sight(shown, Window(top, left, height, width), len(self._legend.names)))

    def entries(self, asked: Asked) -> Answer:
        """Return a list of places: `list/ID`."""
        try:
            return Answer.of(self._lists[asked.words[1]].entries())
        except (KeyError, IndexError):
            raise SegmenterError("the page", "there is no such list") from None

    def _map(self, asked: Asked) -> ShownMap:
        try:
            return self._maps[asked.words[1]]
        except (KeyError, IndexError):
            raise SegmenterError("the page", "there is no such map") from None

    def _pyramid(self, shown: ShownMap, asked: Asked) -> Pyramid:
        try:
            pyramid = shown.pyramid(asked.words[2], _bands(asked))
        except (KeyError, IndexError):
            raise SegmenterError("the page", f"{shown.name} has no such layer") from None
        if pyramid.is_large:
            self.overviews.ask(pyramid)
        return pyramid

    def close(self) -> None:
        """Stop what goes on in the background, and close all files."""
        self.overviews.close()
        for each in self._maps.values():
            each.close()


def coloured_tile(pyramid: Pyramid, level: int, row: int, col: int) -> Coloured:
    """Return a tile, transparent beyond the map.

    Raises:
        SegmenterError: there is no such tile, or a file cannot be read.
    """
    whole = Window.of(level_size(pyramid.layer.size, level))
    tile = Window(row * TILE, col * TILE, TILE, TILE)
    window = tile.intersection(whole)
    if not window.size.pixels:
        raise SegmenterError("the page", f"there is no tile {row}, {col}")
    coloured = np.zeros((TILE, TILE, 4), np.uint8)
    coloured[window.relative_to(tile).slices()] = pyramid.colour(level, window)
    return coloured


def _bands(asked: Asked) -> Bands:
    texts = asked.query.get("bands", "").split(",")
    return tuple(int(text) for text in texts if text.isdecimal() and len(text) < 6)
