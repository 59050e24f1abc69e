"""The page of maps as one file, which needs no program and no network: its tiles lie within it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from segmenter.base.errors import SegmenterError, counted
from segmenter.extras.view.built import built_file
from segmenter.extras.view.colouring import jpeg, png
from segmenter.extras.view.pyramid import TILE, level_size
from segmenter.extras.view.routes import MapPages, coloured_tile
from segmenter.extras.view.shown_map import ShownMap

MOST_PIXELS = 50_000_000
"""Pixels of all maps in a file; further maps are left out."""
MOST_BYTES = 20_000_000
_AS_TEXT = 4 / 3
"""Bytes of base64 for one."""
_HEAD = 1_000_000
"""Bytes for everything but tiles."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src data:"
)
_COARSE = 2
"""Level from which on a level of all layers takes little of the file."""
_FIRST = ("map", "image", "errors", "confidence", "label", "differences", "beside", "probabilities")
"""Layers in the order in which the file's bytes are given to them."""


@dataclass
class _Content:
    left: float
    tiles: dict[str, str] = field(default_factory=dict)
    finest: dict[str, int] = field(default_factory=dict)


def export_pages(pages: MapPages, most_bytes: int = MOST_BYTES) -> tuple[bytes, list[str]]:
    """Return the file, and lines on what it leaves out.

    Raises:
        SegmenterError: no map is small enough, or one cannot be read.
    """
    maps, remarks = _small_enough(pages.maps)
    content = _Content((most_bytes - _HEAD) / _AS_TEXT)
    layers = [(shown, id) for id in _FIRST for shown in maps if id in shown.layers]
    for shown, id in layers:
        pages.overviews.make(shown.pyramid(id))
    top = max(shown.pyramid(id).top for shown, id in layers)
    coarse = [(level, *layer) for level in range(top, _COARSE - 1, -1) for layer in layers]
    fine = [(level, *layer) for layer in layers for level in range(min(top, _COARSE - 1), -1, -1)]
    full = set[tuple[str, str]]()
    for level, shown, id in coarse + fine:  # all layers are there before the first one is fine
        key = (shown.id, id)
        if level <= shown.pyramid(id).top and key not in full and not _add_level(content, shown, id, level):
            full.add(key)
            finest = content.finest.get("/".join(key))
            rest = "left out" if finest is None else f"in the file at 1/{2**finest} of its resolution"
            remarks.append(f"{shown.name}: {id} is {rest}")
    return _html(pages, maps, content, remarks), remarks


def _small_enough(maps: Sequence[ShownMap]) -> tuple[list[ShownMap], list[str]]:
    inside: list[ShownMap] = []
    for shown in maps:
        if sum(each.info.size.pixels for each in (*inside, shown)) <= MOST_PIXELS:
            inside.append(shown)
    if not inside:
        raise SegmenterError(
            maps[0].path,
            expected=f"a map of at most {MOST_PIXELS / 1e6:g} million pixels for --export",
            got=f"{maps[0].info.size.pixels / 1e6:.0f}",
            remedy="cut a part: predict.py --bbox, or gdal_translate -srcwin",
        )
    out = len(maps) - len(inside)
    return inside, [f"left out: {counted(out, 'map')}, for their size"] if out else []


def _add_level(content: _Content, shown: ShownMap, id: str, level: int) -> bool:
    """Add a layer's tiles of a level; return False, and add none, if they do not fit."""
    tiles, size = {}, 0
    for key, data, kind in _tiles(shown, id, level):
        size += len(data)
        if size > content.left:
            return False
        tiles[key] = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    content.tiles |= tiles
    content.left -= size
    content.finest[f"{shown.id}/{id}"] = level
    return True


def _tiles(shown: ShownMap, id: str, level: int) -> Iterator[tuple[str, bytes, str]]:
    """Yield name, content and format of a level's tiles; images without gaps are JPEGs."""
    pyramid = shown.pyramid(id)
    size = level_size(shown.info.size, level)
    for row in range(-(-size.height // TILE)):
        for col in range(-(-size.width // TILE)):
            coloured = coloured_tile(pyramid, level, row, col)
            lossy = pyramid.layer.kind == "image" and bool(np.all(coloured[..., 3] == 255))
            data = jpeg(coloured) if lossy else png(coloured, small=True)
            yield f"tile/{shown.id}/{id}/{level}/{row}/{col}", data, "jpeg" if lossy else "png"


def _html(pages: MapPages, maps: Sequence[ShownMap], content: _Content, remarks: Sequence[str]) -> bytes:
    ids = {shown.id for shown in maps}
    state = pages.facts
    state["maps"] = [each for each in state["maps"] if each["id"] in ids]
    state["notes"] = [*state["notes"], *remarks]
    answers: dict[str, Any] = {
        f"list/{each.id}": [entry for entry in each.entries() if entry["map"] in ids] for each in pages.lists
    }
    held = {"state": state, "answers": answers, "tiles": content.tiles, "finest": content.finest}
    text = json.dumps(held, allow_nan=False).replace("<", "\\u003c")
    page = built_file("index.html").decode()
    for tag, inlined in (
        (
            '<meta charset="utf-8">',
            f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        ),
        ('<link rel="stylesheet" href="app.css">', f"<style>{built_file('app.css').decode()}</style>"),
        (
            '<script src="app.js" type="module"></script>',
            f'<script>globalThis.OFFLINE = {text}</script>\n<script type="module">{_script()}</script>',
        ),
    ):
        assert tag in page, tag
        page = page.replace(tag, inlined)
    return page.encode()


def _script() -> str:
    """Return the program so that it can lie within a page."""
    return built_file("app.js").decode().replace("</script", "<\\/script").replace("<!--", "<\\!--")
