"""A map on the page, with the layers that lie on its grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segmenter.base.errors import RasterError
from segmenter.extras.view.layers import Bands, ImageLayer, Layer, MapLayer
from segmenter.extras.view.pyramid import Pyramid, levels
from segmenter.extras.written_map import MapClass, WrittenMap
from segmenter.grid.colours import default_colours
from segmenter.grid.geometry import Window
from segmenter.grid.labels import Colour
from segmenter.mapping.folder.journal import Journal
from segmenter.raster import RasterInfo, crs_title, raster_info
from segmenter.raster.header import names_of

_SAME_PLACE = 0.01
"""Pixels by which a map's corner may lie beside one of its image's."""


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
        layers: by id, the lowest first.
        notes: lines on layers that are missing.
    """

    id: str
    name: str
    path: Path
    info: RasterInfo
    source: str
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
            return cls(id, path.stem, path, opened.info, opened.source, opened.classes)

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


def image_of(shown: ShownMap, folder: Path | None, journals: Mapping[Path, Journal]) -> Path | None:
    """Return the image of a map: in the folder given, or where the journal of its own folder says."""
    if folder is not None:
        named = folder / shown.source
        if shown.source and named.is_file():
            return named
        return next((path for path in sorted(folder.iterdir()) if path.stem == shown.path.stem), None)
    entry = journals[shown.path.parent].find(shown.path.stem)
    return Path(entry.source) if entry is not None and Path(entry.source).is_file() else None


def image_layer(shown: ShownMap, path: Path) -> ImageLayer:
    """Return the layer of a map's image.

    Raises:
        RasterError: it cannot be read, or lies on another grid.
    """
    info = raster_info(path)
    names = names_of(info)
    bands = [name or f"band {number}" for number, name in enumerate(names, 1)]
    wished = [names.index(name) + 1 for name in ("red", "green", "blue") if name in names]
    others = [band for band in range(1, info.count + 1) if band not in info.alpha]
    usual = tuple(wished) if len(wished) == 3 else tuple(others[:3] if len(others) > 2 else others[:1] or [1])
    return ImageLayer(path, bands, usual, place_in(info, shown.info))


def place_in(image: RasterInfo, own: RasterInfo) -> Window:
    """Return a map's pixels in another raster that it is of, or a part of.

    Raises:
        RasterError: the grids differ.
    """
    row = col = 0.0
    if image.transform is not None and own.transform is not None:
        step = ~image.transform @ own.transform
        col, row = step.c, step.f
        apart = max(abs(step.a - 1) + abs(step.d), abs(step.b) + abs(step.e - 1))
        is_same = apart * max(own.size.height, own.size.width) < 0.5
    else:
        is_same = image.size == own.size
    window = Window(round(row), round(col), own.size.height, own.size.width)
    if not is_same or max(abs(row - window.row), abs(col - window.col)) > 0.5:
        raise RasterError(
            image.path,
            expected=f"the grid of the map {own.path.name}",
            got="another grid",
            remedy="name another --images",
        )
    return window


def map_layer(shown: ShownMap, ids: Sequence[int], palette: Sequence[Colour]) -> MapLayer:
    """Return the layer of the map itself."""
    return MapLayer("map", "map", shown.path, ids, palette)
