"""Routes of the page of maps: its state, tiles, and the values of a pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segmenter.base.errors import SegmenterError
from segmenter.extras.view.colouring import png
from segmenter.extras.view.layers import Bands
from segmenter.extras.view.pyramid import TILE, level_size
from segmenter.extras.view.server import Answer, Asked, Routes
from segmenter.extras.view.shown_map import MapLegend, ShownMap
from segmenter.grid.geometry import Window


class MapPages:
    """Answers about a page's maps."""

    def __init__(self, title: str, maps: Sequence[ShownMap], legend: MapLegend) -> None:
        self._title, self._maps, self._legend = title, {each.id: each for each in maps}, legend

    @property
    def routes(self) -> Routes:
        """Routes by method and first word."""
        return {"GET state": self.state, "GET tile": self.tile, "GET alive": self.alive}

    def state(self, asked: Asked) -> Answer:
        """Return what the page shows."""
        classes = enumerate(zip(self._legend.names, self._legend.colours, strict=True))
        return Answer.of(
            {
                "title": self._title,
                "classes": [{"id": i, "name": name, "colour": colour} for i, (name, colour) in classes],
                "maps": [each.facts for each in self._maps.values()],
                "lists": [],
                "notes": [note for each in self._maps.values() for note in each.notes],
            }
        )

    def alive(self, asked: Asked) -> Answer:
        """Note that a page is open."""
        return Answer.of({})

    def tile(self, asked: Asked) -> Answer:
        """Return a tile of a layer as PNG: `tile/MAP/LAYER/LEVEL/ROW/COLUMN?bands=3,2,1`."""
        shown = self._map(asked)
        level, row, col = (asked.number(place) for place in (3, 4, 5))
        try:
            pyramid = shown.pyramid(asked.words[2], _bands(asked))
        except (KeyError, IndexError):
            raise SegmenterError("the page", f"{shown.name} has no such layer") from None
        if not 0 <= level <= 30:
            raise SegmenterError("the page", f"there is no level {level}")
        whole = Window.of(level_size(shown.info.size, level))
        window = Window(row * TILE, col * TILE, TILE, TILE).intersection(whole)
        if not window.size.pixels:
            raise SegmenterError("the page", f"there is no tile {row}, {col}")
        return Answer(png(pyramid.coloured(level, window)), "image/png", stays="stamp" in asked.query)

    def _map(self, asked: Asked) -> ShownMap:
        try:
            return self._maps[asked.words[1]]
        except (KeyError, IndexError):
            raise SegmenterError("the page", "there is no such map") from None


def _bands(asked: Asked) -> Bands:
    texts: Any = asked.query.get("bands", "").split(",")
    return tuple(int(text) for text in texts if text.isdecimal() and len(text) < 6)
