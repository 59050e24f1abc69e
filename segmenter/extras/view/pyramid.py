"""Levels of a layer: level 0 is its pixels, a pixel of level k stands for 2^k × 2^k of them.

A pixel of a coarser level is the most frequent class, or the mean, of those that it stands for. It is read
from an overview (`overviews`) that has the level, or where few pixels are behind a window from these. Else,
until the overview is made, single pixels of some blocks stand for all.
"""

from __future__ import annotations

import threading
from functools import cached_property
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.extras.view.colouring import Coloured, Pixels
from segmenter.extras.view.layers import Bands, Layer
from segmenter.extras.view.open_files import OpenFiles
from segmenter.grid.geometry import Size, Window
from segmenter.raster import Raster

TILE = 256
"""Side of a tile in pixels."""
MOST_EXACT = 1 << 22
"""Pixels of a raster up to which it needs no overview."""
_MOST_OF_A_TILE = 1 << 20
"""Pixels up to which all behind a tile are read where there is no overview: two levels."""
_SIGHT, _BLOCKS_OF_ALL, _BLOCKS_OF_A_TILE = 1024, 81, 16
"""Side of the first sight of a large raster, and blocks of 512 × 512 that are read for it, and for a tile."""


def levels(size: Size) -> int:
    """Return the coarsest level: the whole raster in one tile."""
    return max(0, (max(size.height, size.width) - 1).bit_length() - TILE.bit_length() + 1)


def level_size(size: Size, level: int) -> Size:
    """Return a raster's size at a level; its last row and column may stand for fewer pixels."""
    return Size(-(-size.height // (1 << level)), -(-size.width // (1 << level)))


def behind(window: Window, factor: int, size: Size) -> Window:
    """Return the pixels of a raster that a window of a level stands for."""
    own = Window(window.row * factor, window.col * factor, window.height * factor, window.width * factor)
    return own.intersection(Window.of(size))


def reduce_squares(pixels: Pixels, factor: int, *, by_mean: bool) -> Pixels:
    """Return the mean, or the most frequent value, of squares of `factor` pixels; those at edges have fewer.

    Of values that are equally frequent the lowest is taken. Both are of pixels with data, if half have some.
    """
    values_HWC, valid_HW = pixels
    height, width = (-(-side // factor) for side in valid_HW.shape)
    wide = ((0, height * factor - valid_HW.shape[0]), (0, width * factor - valid_HW.shape[1]))

    def averages(band_HW: NDArray[Any]) -> NDArray[Any]:
        padded = np.pad(band_HW, wide) if any(map(any, wide)) else band_HW
        return cv2.resize(padded, (width, height), interpolation=cv2.INTER_AREA)

    area_HW = averages(np.ones(valid_HW.shape, np.float32))
    known_HW = area_HW if valid_HW.all() else averages(valid_HW.astype(np.float32))
    has_data = (2 * known_HW >= area_HW) & (known_HW > 0)
    if by_mean:
        known_HWC = values_HWC if valid_HW.all() else np.where(valid_HW[..., None], values_HWC, 0)
        least = np.maximum(known_HW, 1e-9).astype(np.float64)
        bands = [averages(band_HW.astype(np.float32)) / least for band_HW in np.moveaxis(known_HWC, 2, 0)]
        mean_HWC = np.stack(bands, axis=2)
        whole = values_HWC.dtype.kind in "iu"
        return (np.rint(mean_HWC) if whole else mean_HWC).astype(values_HWC.dtype), has_data
    ids_HW = np.where(valid_HW, values_HWC[..., 0], np.uint8(255))
    best_HW, most_HW = np.zeros((height, width), np.uint8), np.zeros((height, width), np.float32)
    # Counts of up to 8 × 8 pixels are told apart in 8 bits, eight times as fast.
    full = np.uint8(255) if factor <= 8 else np.float32(255)
    for value in np.flatnonzero(np.bincount(ids_HW.ravel(), minlength=256)[:255]):
        share_HW = averages((ids_HW == value) * full)
        better = share_HW > most_HW + 1e-3
        best_HW[better], most_HW[better] = value, share_HW[better]
    return best_HW[..., None], has_data


class Pyramid:
    """Levels of a layer's bands.

    Attributes:
        done: share of its overview that is made; None: it needs none, or none was asked for.
        overviews: files of levels.
        version: counts up when tiles are to be drawn anew.
    """

    def __init__(self, layer: Layer, bands: Bands) -> None:
        self.layer, self.bands = layer, bands
        self.done: float | None = None
        self.overviews: dict[int, OpenFiles[Raster]] = {}
        self.version = 0
        self._sighting = threading.Lock()

    @property
    def top(self) -> int:
        """The coarsest level."""
        return levels(self.layer.size)

    @property
    def is_large(self) -> bool:
        """True if an overview is needed to see all of it."""
        return self.layer.size.pixels > MOST_EXACT

    def read(self, level: int, window: Window) -> Pixels:
        """Return the values of a window of a level, which lies inside it.

        Raises:
            SegmenterError: a file is gone, has changed or is damaged.
        """
        if (overview := self.overviews.get(level)) is not None:
            with overview.handle() as raster:
                values, _ = raster.read(window)
            return values[..., :-1], values[..., -1] > 0
        factor = 1 << level
        own = behind(window, factor, self.layer.size)
        if level == 0:
            return self.layer.read(own, self.bands)
        if own.size.pixels <= (_MOST_OF_A_TILE if self.is_large else MOST_EXACT):
            return reduce_squares(self.layer.read(own, self.bands), factor, by_mean=self.layer.by_mean)
        if (finest := self._sight_level) > level:
            return self._thin(own, factor, _BLOCKS_OF_A_TILE)
        values, valid = self.first_sight()
        rows, cols = (
            np.arange(start, stop) << (level - finest)
            for start, stop in ((window.row, window.row_stop), (window.col, window.col_stop))
        )
        return values[np.ix_(rows, cols)], valid[np.ix_(rows, cols)]

    @property
    def _sight_level(self) -> int:
        """Finest level of which all is held in memory."""
        return max(0, self.top - (_SIGHT // TILE).bit_length() + 1)

    @cached_property
    def _sight(self) -> Pixels:
        return self._thin(Window.of(self.layer.size), 1 << self._sight_level, _BLOCKS_OF_ALL)

    def first_sight(self) -> Pixels:
        """Return single pixels of the whole scene, always the same ones."""
        with self._sighting:
            return self._sight

    def colour(self, level: int, window: Window) -> Coloured:
        """Return the colours of a window of a level; see `read`."""
        return self.layer.colour(self.read(level, window), self.bands, self.first_sight)

    def _thin(self, own: Window, factor: int, most_blocks: int) -> Pixels:
        """Return single pixels of at most so many blocks, where all would take too long."""
        block = self.layer.block
        rows, cols = (
            np.minimum(np.arange(start, stop, factor) + factor // 2, stop - 1)
            for start, stop in ((own.row, own.row_stop), (own.col, own.col_stop))
        )
        rows, cols = near(rows, cols, block, most_blocks)
        values: NDArray[Any] | None = None
        valid = np.zeros((len(rows), len(cols)), np.bool_)
        for down in _runs(rows // block.height):
            for across in _runs(cols // block.width):
                row, col = rows[down], cols[across]
                part = Window(int(row[0]), int(col[0]), int(row[-1] + 1 - row[0]), int(col[-1] + 1 - col[0]))
                if values is not None and self.layer.empty(part):
                    continue
                read, known = self.layer.read(part, self.bands)
                if values is None:
                    values = np.zeros((*valid.shape, read.shape[2]), read.dtype)
                pick = np.ix_(row - row[0], col - col[0])
                values[down, across], valid[down, across] = read[pick], known[pick]
        assert values is not None
        return values, valid


def near(
    rows: NDArray[Any], cols: NDArray[Any], block: Size, most_blocks: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Move rows and columns into the nearest of as many blocks as may be read, so that all lie in these."""
    lines = [np.unique(rows // block.height), np.unique(cols // block.width)]
    most = max(1, min(most_blocks, (most_blocks << 18) // (block.height * block.width)))
    across = min(len(lines[1]), max(1, round((most * len(lines[1]) / len(lines[0])) ** 0.5)))
    down = max(1, most // across)
    return _move_places(rows, lines[0], down, block.height), _move_places(cols, lines[1], across, block.width)


def _move_places(places: NDArray[Any], blocks: NDArray[Any], most: int, side: int) -> NDArray[Any]:
    """Move places along one axis into at most so many blocks."""
    if len(blocks) <= most:
        return places
    chosen = blocks[(2 * np.arange(most) + 1) * len(blocks) // (2 * most)] * side
    low = chosen[np.searchsorted((chosen[1:] + chosen[:-1] + side) / 2, places)]
    return np.clip(places, low, low + side - 1)


def _runs(numbers: NDArray[Any]) -> list[slice]:
    """Return slices of equal numbers that follow each other."""
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return [slice(*pair) for pair in pairwise(cuts)]
