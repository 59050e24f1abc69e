"""Windows to look at, the worst first: most errors, least confidence, or where two maps differ most."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.extras.view.layers import DifferenceLayer
from segmenter.extras.view.overviews import Overviews
from segmenter.extras.view.pyramid import Pyramid, behind, level_size, reduce_squares
from segmenter.extras.view.shown_map import ShownMap
from segmenter.grid.geometry import Window

_LEAST_LEVEL, _MOST_LEVEL, _ACROSS = 4, 7, 12
"""Windows have a side of 16 … 128 pixels, about so many of them along a raster."""
_OF_A_MAP, _OF_ALL = 100, 300
Entry = dict[str, Any]


class WindowList:
    """Worst windows of all maps by one layer; complete once each map was read.

    Attributes:
        id: that of the layer.
        maps: maps that have the layer.
    """

    def __init__(self, id: str, title: str, maps: Sequence[ShownMap], names: Sequence[str]) -> None:
        self.id, self.title, self.maps, self._names = id, title, maps, names
        self._found: dict[str, list[tuple[float, Entry]]] = {}
        self._lock = threading.Lock()

    def read_all(self, overviews: Overviews) -> None:
        """Read all maps now."""
        for shown in self.maps:
            overviews.make(shown.pyramid(self.id))
            self._take(shown, shown.pyramid(self.id))

    def begin(self, overviews: Overviews) -> None:
        """Have all maps read in the background, the first one first."""
        for shown in self.maps:
            pyramid = shown.pyramid(self.id)
            overviews.ask(pyramid, lambda own=shown, of=pyramid: self._take(own, of), soon=False)  # type: ignore[misc]

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the page knows of the list."""
        return {"id": self.id, "title": self.title, "looked": len(self._found), "of": len(self.maps)}

    def entries(self) -> list[Entry]:
        """Return the worst windows so far, as JSON."""
        with self._lock:
            found = [each for own in self._found.values() for each in own]
        return [entry for _, entry in sorted(found, key=lambda each: -each[0])[:_OF_ALL]]

    def _take(self, shown: ShownMap, pyramid: Pyramid) -> None:
        try:
            found = [
                self._entry(shown, pyramid, window)
                for window in _worst(pyramid, lowest=self.id == "confidence")
            ]
        except SegmenterError as error:
            found = []
            shown.notes.append(f"{shown.name}: {error}")
        with self._lock:
            self._found[shown.id] = [each for each in found if each[0] > 0]

    def _entry(self, shown: ShownMap, pyramid: Pyramid, window: Window) -> tuple[float, Entry]:
        """Return how bad a window is, by all of its pixels, and its place and texts."""
        values, valid = pyramid.layer.read(window, pyramid.bands)
        share = float(values[..., 0][valid].mean() / 255) if valid.any() else 0.0
        detail = shown.name if len(self.maps) > 1 else ""
        if isinstance(pyramid.layer, DifferenceLayer):
            bad, title = share, f"{share:.0%} {'wrong' if self.id == 'errors' else 'differs'}"
            detail = " · ".join(filter(None, (self._confusion(pyramid.layer, window), detail)))
        else:
            bad, title = 1 - share, f"{share:.0%} sure"
        place = {"row": window.row, "column": window.col, "height": window.height, "width": window.width}
        return bad * int(valid.sum()), {
            "map": shown.id,
            **place,
            "title": title.replace("%", " %"),
            "detail": detail,
        }

    def _confusion(self, layer: DifferenceLayer, window: Window) -> str:
        """Return the classes that are taken for each other most in a window."""
        (mapped, has_one), (other, has_other) = (each.read(window, ()) for each in (layer.one, layer.other))
        differ = has_one & has_other & (mapped != other)[..., 0]
        if not differ.any():
            return ""
        pairs = other[..., 0][differ].astype(np.int64) * 256 + mapped[..., 0][differ]
        most = divmod(int(np.bincount(pairs).argmax()), 256)
        true, got = (self._names[each] for each in most)
        return f"{true} mapped as {got}" if self.id == "errors" else f"{got} here, {true} there"


def place_facts(window: Window) -> Entry:
    """Return a window as the page knows it."""
    return {"row": window.row, "column": window.col, "height": window.height, "width": window.width}


def _worst(pyramid: Pyramid, *, lowest: bool) -> list[Window]:
    """Return the windows of a map that are worst by its overview."""
    size = pyramid.layer.size
    side = max(size.height, size.width) // _ACROSS
    level = min(_MOST_LEVEL, max(_LEAST_LEVEL, side.bit_length() - 1))
    have = min(level, pyramid.top)
    pixels = pyramid.read(have, Window.of(level_size(size, have)))
    (values_HWC, valid_HW) = (
        reduce_squares(pixels, 1 << (level - have), by_mean=True) if level > have else pixels
    )
    bad_HW = values_HWC[..., 0].astype(np.int64)
    score_HW = np.where(valid_HW, 255 - bad_HW if lowest else bad_HW, 0)
    order = np.argsort(-score_HW, axis=None, kind="stable")[:_OF_A_MAP]
    cells = [divmod(int(at), score_HW.shape[1]) for at in order if score_HW.flat[at] > 0]
    return [behind(Window(row, col, 1, 1), 1 << level, size) for row, col in cells]
