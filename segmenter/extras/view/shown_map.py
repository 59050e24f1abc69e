"""A map on the page, with the layers that lie on its grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segmenter.base.errors import RasterError, SegmenterError
from segmenter.extras.view.layers import Bands, Layer
from segmenter.extras.view.pyramid import Pyramid, levels
from segmenter.extras.written_map import MapClass, WrittenMap
from segmenter.grid.colours import default_colours
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import Colour
from segmenter.raster import RasterInfo, crs_title, extent_text
from segmenter.raster.crs_units import same_ground

_APART = 0.5
"""Pixels by which a map may lie beside its image."""


class MapLegend:
    """Classes of all maps on a page, each name once, in colours that differ."""

    def __init__(self) -> None:
        self._classes: dict[str, Colour | None] = {}

    def take(self, classes: Sequence[MapClass]) -> list[int]:
        """Add a map's classes; return the id of each on the page."""
        for each in classes:
            if self._classes.get(each.name) is None:
                self._classes[each.name] = each.colour
        names = list(self._classes)
        return [names.index(each.name) for each in classes]

    @property
    def names(self) -> list[str]:
        """Names by id."""
        return list(self._classes)

    @property
    def colours(self) -> list[Colour]:
        """Colours by id, none twice, so that the page knows a class by it."""
        taken: dict[Colour, None] = {}
        for red, green, blue in default_colours(self.names, list(self._classes.values())):
            while (red, green, blue) in taken:
                blue = blue + 1 if blue < 255 else 0
            taken[red, green, blue] = None
        return list(taken)


@dataclass
class ShownMap:
    """A map of the page.

    Attributes:
        source, digest: name of the image's file, and digest of its content; empty if unknown.
        weights: see `WrittenMap`.
        layers: by id, the lowest first.
        notes: lines on layers that are missing.
    """

    id: str
    name: str
    path: Path
    info: RasterInfo
    block: Size
    source: str
    digest: str
    weights: str
    classes: tuple[MapClass, ...]
    layers: dict[str, Layer] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _pyramids: dict[tuple[str, Bands], Pyramid] = field(default_factory=dict)

    @classmethod
    def of(cls, id: str, path: Path) -> ShownMap:
        """Open a map without its layers.

        Raises:
            RasterError: it is none, or cannot be read.
        """
        with WrittenMap(path, with_confidence=False) as opened:
            made_of = opened.source, opened.image, opened.weights
            return cls(id, path.stem, path, opened.info, opened.block, *made_of, opened.classes)

    def pyramid(self, layer: str, bands: Bands = ()) -> Pyramid:
        """Return the levels of a layer (KeyError: there is none of that name)."""
        own = self.layers[layer]
        key = layer, own.choice(bands)
        return self._pyramids.setdefault(key, Pyramid(own, key[1]))

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the page has to know, as JSON."""
        info, move = self.info, self.info.transform
        return {
            "id": self.id,
            "name": self.name,
            "rows": info.size.height,
            "columns": info.size.width,
            "transform": None if move is None else list(move[:6]),
            "crs": None if info.crs is None else crs_title(info.crs),
            "degrees": bool(info.crs is not None and info.crs.is_geographic),
            "metres": info.metres_per_pixel,
            "stamp": info.stamp.key if info.stamp else "",
            "levels": levels(info.size),
            "layers": [
                {"id": each.id, "title": each.title, "kind": each.kind, "bands": list(each.bands)}
                for each in self.layers.values()
            ],
        }

    @property
    def making(self) -> list[dict[str, Any]]:
        """Return how far the overviews of its layers are made, as JSON."""
        return [
            {"map": self.id, "layer": layer, "bands": list(bands), "done": each.done, "version": each.version}
            for (layer, bands), each in list(self._pyramids.items())
            if each.is_large and each.done is not None
        ]

    def add(self, layer: Callable[[], Layer]) -> None:
        """Add a layer, or a line on why it is missing."""
        try:
            made = layer()
        except SegmenterError as error:
            self.notes.append(f"{self.name}: {error}")
        else:
            self.layers[made.id] = made

    def close(self) -> None:
        """Close the files that nobody reads."""
        for each in self.layers.values():
            each.close()


def place_in(other: RasterInfo, own: RasterInfo) -> Window:
    """Return a map's pixels in another raster, of which the map may be a part.

    Raises:
        RasterError: the grids differ.
    """
    row = col = 0.0
    is_same = other.size == own.size
    if other.transform is not None and own.transform is not None:
        step = ~other.transform @ own.transform
        col, row = step.c, step.f
        skew = abs(step.a - 1) + abs(step.d) + abs(step.b) + abs(step.e - 1)
        is_same = skew * max(own.size.height, own.size.width) < _APART
    window = Window(round(row), round(col), own.size.height, own.size.width)
    moved = max(abs(row - window.row), abs(col - window.col))
    both = other.crs is not None and own.crs is not None
    meets = window.intersection(Window.of(other.size)).size.pixels > 0
    if not is_same or not meets or moved > _APART or (both and not same_ground(other.crs, own.crs)):
        raise RasterError(
            other.path,
            expected=f"the grid of the map {own.path.name} ({own.size}, {extent_text(own) or 'nowhere'})",
            got=f"another ({other.size}, {extent_text(other) or 'nowhere'})",
        )
    return window
