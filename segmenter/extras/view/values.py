"""Values on a map's page: those of a pixel, and shares and areas of classes in a window."""

from __future__ import annotations

from typing import Any

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.extras.view.pyramid import MOST_EXACT, behind, level_size
from segmenter.extras.view.shown_map import ShownMap
from segmenter.grid.geometry import Window
from segmenter.raster.pixel_areas import pixel_areas
from segmenter.raster.polygons import between, crs_of

_HECTARE = 10_000.0


def pixel_facts(shown: ShownMap, row: int, col: int) -> dict[str, Any]:
    """Return all that is known of a pixel, as JSON.

    Raises:
        SegmenterError: it lies outside the map.
    """
    window = Window(row, col, 1, 1)
    if not Window.of(shown.info.size).contains(window):
        raise SegmenterError("the page", f"{shown.name} has no pixel {row}, {col}")
    facts: dict[str, Any] = {"row": row, "column": col, **_place(shown, row, col), "layers": []}
    for layer in shown.layers.values():
        bands = tuple(range(1, len(layer.bands) + 1))
        values, valid = layer.read(window, bands)
        own: dict[str, Any] = {"id": layer.id, "title": layer.title}
        if not valid[0, 0]:
            own["text"] = "no data"
        elif layer.kind == "classes":
            own["class"] = int(values[0, 0, 0])
        elif layer.kind == "marks":
            own["text"] = "yes" if values[0, 0, 0] else "no"
        elif layer.kind == "amount":
            own["shares"] = [round(float(value) / 255, 3) for value in values[0, 0]]
        else:
            own["values"] = [value.item() for value in values[0, 0]]
        facts["layers"].append(own)
    return facts


def _place(shown: ShownMap, row: int, col: int) -> dict[str, Any]:
    """Return the coordinates of a pixel's centre, in the map's CRS and in degrees; None if it has none."""
    move, crs = shown.info.transform, shown.info.crs
    if move is None:
        return {"x": None, "y": None, "longitude": None, "latitude": None}
    x, y = move @ (col + 0.5, row + 0.5)
    places = np.array([[x, y]])
    if crs is None:
        places[:] = np.nan
    elif (convert := between(crs, crs_of("EPSG:4326"))) is not None:
        places = convert(places)
    longitude, latitude = (value if np.isfinite(value) else None for value in places[0].tolist())
    return {"x": x, "y": y, "longitude": longitude, "latitude": latitude}


def sight(shown: ShownMap, window: Window, classes: int) -> dict[str, Any]:
    """Return share and hectares of each class in a window, from an overview if it is large.

    Raises:
        SegmenterError: the map cannot be read.
    """
    pyramid, level = shown.pyramid("map"), 0
    own = window.intersection(Window.of(shown.info.size))
    while own.size.pixels >> 2 * level > MOST_EXACT:
        level += 1
    factor = 1 << level
    part = Window(
        own.row // factor, own.col // factor, -(-own.height // factor), -(-own.width // factor)
    ).intersection(Window.of(level_size(shown.info.size, level)))
    if not part.size.pixels:
        return {"classes": [], "exact": True}
    values_HWC, valid_HW = pyramid.read(level, part)
    ids_HW = np.where(valid_HW, values_HWC[..., 0], np.uint8(255))
    count_K = np.bincount(ids_HW.ravel(), minlength=256)[:classes] * factor**2
    areas = pixel_areas(shown.info)
    hectares: list[float | None] = [None] * classes
    if areas is not None:
        of = behind(part, factor, shown.info.size)
        row = np.arange(part.height) * factor + of.row
        area_H = areas.at(row, np.full(row.shape, of.col + of.width // 2))
        by_row = np.stack([(ids_HW == each).sum(axis=1) for each in range(classes)], axis=1)
        hectares = (area_H @ by_row * factor**2 / _HECTARE).tolist()
    total = max(1, int(count_K.sum()))
    return {
        "classes": [
            {"id": i, "share": count / total, "hectares": hectares[i]}
            for i, count in enumerate(count_K.tolist())
        ],
        "exact": level == 0,
    }
