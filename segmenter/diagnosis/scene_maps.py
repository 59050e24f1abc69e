"""Coarse maps of the classes in the scenes, from the tiles' class counts.

A georeferenced scene gets a map in its CRS; if there are many, adjoining scenes share one. Scenes without
georeference are placed side by side, group by group, in the order of the dataset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.threads import in_threads
from segmenter.diagnosis.data import SceneMap
from segmenter.raster import RasterInfo, raster_info
from segmenter.raster.ground import meeting
from segmenter.tiles.index import TileIndex

MOST_MAPS = 24
"""Largest number of maps drawn; further ones are only counted."""
MOST_CELLS = 40
"""Rows and columns of a map, at most."""
_MOST_HEADERS = 2000
"""Files opened for their georeference: a millisecond each."""
_PROBED = 32
"""Files opened to find out if a larger dataset is georeferenced."""
_SMALL = 9
"""Scenes of fewer tiles show no pattern of their own: where there are many, they share one map."""
_TOUCHING = 0.01
"""Share of a scene's side by which two scenes may lie apart and still adjoin."""

Floats = NDArray[np.float64]
Tiles = NDArray[np.int64]


@dataclass(frozen=True)
class _Sheet:
    """Tiles in one plane; `y_n`, `x_n`: their centres in cells, from the top left.

    Attributes:
        bounds: left, bottom, right, top in the CRS; None if the plane has no CRS.
    """

    name: str
    scenes: int
    tiles: Tiles
    y_n: Floats
    x_n: Floats
    rows: int
    cols: int
    georeferenced: bool = False
    crs: str | None = None
    bounds: tuple[float, float, float, float] | None = None


def class_maps(index: TileIndex, *, progress: bool = True) -> tuple[list[SceneMap], int]:
    """Return maps of each class's share of labelled pixels in coarse cells, and the number left out.

    At most 24 maps of at most 40×40 cells are returned, those with most tiles. Scenes of a large
    georeferenced dataset, whose headers would take too long to read, also count as left out.

    Raises:
        RasterError: an image's header cannot be read.
    """
    scene_ids = np.unique(index.scene_N).astype(np.int64)
    infos, unread = _georeferences(index, scene_ids, progress)
    placed = [s for s, info in infos.items() if _north_up(info)]
    clusters = [[s] for s in placed] if len(placed) <= MOST_MAPS else _adjoining(placed, infos)
    tiles = _Members(index)
    sheets = [_plane(index, tiles, cluster, infos) for cluster in clusters]
    sheets += [_rotated_sheet(index, tiles, s, info) for s, info in infos.items() if not _north_up(info)]
    sheets += _without_place(index, tiles, [int(s) for s in scene_ids if s not in infos and s not in unread])
    largest = sorted(range(len(sheets)), key=lambda i: -len(sheets[i].tiles))[:MOST_MAPS]
    maps = [_scene_map(sheets[i], index.counts_NK) for i in sorted(largest)]
    return maps, len(sheets) - len(maps) + len(unread)


class _Members:
    """Tiles by scene."""

    def __init__(self, index: TileIndex) -> None:
        self._order = np.argsort(index.scene_N, kind="stable")
        self._starts = np.searchsorted(index.scene_N[self._order], np.arange(len(index.scenes) + 1))

    def of(self, scenes: Sequence[int]) -> Tiles:
        """Return the tiles of some scenes, scene by scene."""
        return np.concatenate([self._order[self._starts[s] : self._starts[s + 1]] for s in scenes])


# -------------------------------------------------------------------------------- where scenes lie


def _georeferences(
    index: TileIndex, shown: Tiles, progress: bool
) -> tuple[dict[int, RasterInfo], frozenset[int]]:
    """Return headers of georeferenced scenes, and the scenes whose headers were not read."""
    numbers = [int(s) for s in shown]
    if len(numbers) > _MOST_HEADERS:
        probed = numbers[:: len(numbers) // _PROBED]
        if not any(info.georeferenced for info in _headers(index, probed, False)):
            return {}, frozenset()
    read, unread = numbers[:_MOST_HEADERS], frozenset(numbers[_MOST_HEADERS:])
    infos = dict(zip(read, _headers(index, read, progress), strict=True))
    return {s: info for s, info in infos.items() if info.georeferenced}, unread


def _headers(index: TileIndex, scenes: Sequence[int], progress: bool) -> list[RasterInfo]:
    images = [index.scenes[s].image for s in scenes]
    return list(in_threads(raster_info, images, description="headers", unit="scene", progress=progress))


def _north_up(info: RasterInfo) -> bool:
    """Return whether rows run from north to south, and columns from west to east."""
    t = info.transform
    return t is not None and t.b == 0 and t.d == 0 and t.a > 0 and t.e < 0


def _box(info: RasterInfo) -> tuple[float, float, float, float]:
    """Return left, bottom, right, top of a north-up raster."""
    assert info.transform is not None, "only north-up rasters have a box"
    left, top = info.transform @ (0, 0)
    right, bottom = info.transform @ (info.size.width, info.size.height)
    return left, bottom, right, top


def _adjoining(scenes: Sequence[int], infos: dict[int, RasterInfo]) -> list[list[int]]:
    """Return the scenes in connected groups of one CRS, each in order; touching scenes are connected."""
    by_crs: dict[str | None, list[int]] = {}
    for scene in scenes:
        by_crs.setdefault(_crs(infos[scene]), []).append(scene)
    groups: list[list[int]] = []
    for own in by_crs.values():
        low, high = np.split(np.array([_box(infos[s]) for s in own], np.float64), 2, axis=1)
        number = meeting(low, high, _TOUCHING * (high - low).min(axis=1))
        groups += [[own[i] for i in np.flatnonzero(number == g)] for g in range(number.max() + 1)]
    return sorted(groups)


def _crs(info: RasterInfo) -> str | None:
    crs = info.crs or info.gcp_crs
    return None if crs is None else str(crs.to_string())


# ------------------------------------------------------------------------------------- their tiles


def _plane(index: TileIndex, members: _Members, scenes: list[int], infos: dict[int, RasterInfo]) -> _Sheet:
    """Return one map of adjoining north-up scenes in their CRS."""
    boxes = np.array([_box(infos[s]) for s in scenes])
    left, bottom = boxes[:, :2].min(axis=0)
    right, top = boxes[:, 2:].max(axis=0)
    tiles = members.of(scenes)
    x, y = np.empty(len(tiles)), np.empty(len(tiles))
    tile_width = tile_height = 0.0
    done = 0
    for s in scenes:
        own, info = members.of([s]), infos[s]
        t = info.transform
        assert t is not None, "only north-up rasters are here"
        row, col = _centres(index, own, info.size.height, info.size.width)
        x[done : done + len(own)] = t.c + t.a * col - left
        y[done : done + len(own)] = top - (t.f + t.e * row)
        tile_width = max(tile_width, t.a * index.tile.width)
        tile_height = max(tile_height, -t.e * index.tile.height)
        done += len(own)
    rows, cols = _cells(top - bottom, tile_height), _cells(right - left, tile_width)
    return _Sheet(
        name=_title([index.scenes[s].name for s in scenes]),
        scenes=len(scenes),
        tiles=tiles,
        y_n=y * rows / (top - bottom),
        x_n=x * cols / (right - left),
        rows=rows,
        cols=cols,
        georeferenced=True,
        crs=_crs(infos[scenes[0]]),
        bounds=(float(left), float(bottom), float(right), float(top)),
    )


def _rotated_sheet(index: TileIndex, members: _Members, scene: int, info: RasterInfo) -> _Sheet:
    """Return the map of a rotated scene, or one with control points only, in its rows and columns."""
    tiles, size = members.of([scene]), info.size
    row, col = _centres(index, tiles, size.height, size.width)
    rows, cols = _cells(size.height, index.tile.height), _cells(size.width, index.tile.width)
    y, x = row * rows / size.height, col * cols / size.width
    return _Sheet(index.scenes[scene].name, 1, tiles, y, x, rows, cols, True, _crs(info))


def _without_place(index: TileIndex, members: _Members, scenes: list[int]) -> list[_Sheet]:
    """Return a map for each group of scenes without georeference; if many are small, one for all these."""
    groups: dict[str, list[int]] = {}
    for s in scenes:
        groups.setdefault(index.scenes[s].group, []).append(s)
    small: list[int] = []
    if len(groups) > MOST_MAPS:
        counts = np.bincount(index.scene_N, minlength=len(index.scenes))
        small = [g[0] for g in groups.values() if len(g) == 1 and counts[g[0]] < _SMALL]
    pooled = set(small)
    sheets = [
        _side_by_side(index, members, group, name) for name, group in groups.items() if group[0] not in pooled
    ]
    if small:
        sheets.append(_side_by_side(index, members, small, f"{len(small)} small scenes in their order"))
    return sheets


def _side_by_side(index: TileIndex, members: _Members, scenes: list[int], name: str) -> _Sheet:
    """Return scenes as equal blocks in a near-square; beyond 1600 scenes, several share a block."""
    tiles = members.of(scenes)
    rank = np.empty(len(index.scenes), np.int64)
    rank[scenes] = np.arange(len(scenes))
    blocks = min(len(scenes), MOST_CELLS**2)
    block_n = rank[index.scene_N[tiles]] * blocks // len(scenes)
    across = math.ceil(math.sqrt(blocks))
    down = -(-blocks // across)
    height, width = _extent(index, tiles)
    row, col = _centres(index, tiles, height[tiles], width[tiles])
    rows = _cells(height[tiles].min(), index.tile.height, MOST_CELLS // down)
    cols = _cells(width[tiles].min(), index.tile.width, MOST_CELLS // across)
    y = (block_n // across + row / height[tiles]) * rows
    x = (block_n % across + col / width[tiles]) * cols
    return _Sheet(name, len(scenes), tiles, y, x, rows * down, cols * across)


def _extent(index: TileIndex, tiles: Tiles) -> tuple[Tiles, Tiles]:
    """Return (N,) height and width covered by tiles in each tile's scene; valid only for `tiles`."""
    height, width = (np.zeros(len(index.scenes), np.int64) for _ in range(2))
    np.maximum.at(height, index.scene_N[tiles], index.row_N[tiles] + index.tile.height)
    np.maximum.at(width, index.scene_N[tiles], index.col_N[tiles] + index.tile.width)
    return height[index.scene_N], width[index.scene_N]


def _centres(index: TileIndex, tiles: Tiles, height: Any, width: Any) -> tuple[Floats, Floats]:
    """Return row and column in scene pixels of the centre of each tile's part inside its scene."""
    row, col = index.row_N[tiles], index.col_N[tiles]
    bottom = np.minimum(row + index.tile.height, height)
    right = np.minimum(col + index.tile.width, width)
    return (row + bottom) / 2, (col + right) / 2


def _cells(length: float, tile: float, most: int = MOST_CELLS) -> int:
    """Return the number of cells along a side: no cell is smaller than a tile, so each has a tile."""
    return max(1, min(most, int(length / tile + 1e-6)))


def _title(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} adjoining"


def _scene_map(sheet: _Sheet, counts_NK: NDArray[np.int64]) -> SceneMap:
    """Return the sheet as a map for the diagnosis."""
    rows = np.clip(sheet.y_n.astype(np.int64), 0, sheet.rows - 1)
    cols = np.clip(sheet.x_n.astype(np.int64), 0, sheet.cols - 1)
    total = np.zeros((sheet.rows, sheet.cols, counts_NK.shape[1]), np.int64)
    np.add.at(total, (rows, cols), counts_NK[sheet.tiles])
    labelled = total.sum(axis=2, keepdims=True)
    share = np.round(total / np.maximum(labelled, 1), 5)
    known: NDArray[Any] = share.astype(object)
    known[labelled[..., 0] == 0] = None
    return SceneMap(
        name=sheet.name,
        scenes=sheet.scenes,
        georeferenced=sheet.georeferenced,
        crs=sheet.crs,
        rows=sheet.rows,
        cols=sheet.cols,
        bounds=sheet.bounds,
        share=known.transpose(2, 0, 1).tolist(),
    )
