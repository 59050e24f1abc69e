"""Levels of a layer: level 0 is its pixels, a pixel of level k stands for 2^k × 2^k of them."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.extras.view.colouring import Coloured, Pixels
from segmenter.extras.view.layers import Bands, Layer
from segmenter.grid.geometry import Size, Window

TILE = 256
"""Side of a tile in pixels."""
_MOST_EXACT = 1 << 20
"""Pixels up to which a tile's own are all read."""
_MOST_BLOCKS = 64
"""Blocks of a file that are read for one tile where no overview is there yet."""


def levels(size: Size) -> int:
    """Return the coarsest level: the whole raster in one tile."""
    return max(0, (max(size.height, size.width) - 1).bit_length() - TILE.bit_length() + 1)


def level_size(size: Size, level: int) -> Size:
    """Return a raster's size at a level; the last pixel of a line may stand for fewer."""
    return Size(
        -(-size.height >> level) if level else size.height, -(-size.width >> level) if level else size.width
    )


def reduced(pixels: Pixels, factor: int, *, by_mean: bool) -> Pixels:
    """Return the mean, or the most frequent value, of squares of `factor` pixels; edges may have fewer.

    Among values that are equally frequent the lowest is taken. A mean is over pixels with data.
    """
    values_HWC, valid_HW = pixels
    height, width = (-(-side // factor) for side in valid_HW.shape)
    wide = ((0, height * factor - valid_HW.shape[0]), (0, width * factor - valid_HW.shape[1]))
    valid = np.pad(valid_HW, wide).reshape(height, factor, width, factor)
    values = np.pad(values_HWC, (*wide, (0, 0))).reshape(height, factor, width, factor, -1)
    count_HW = valid.sum(axis=(1, 3))
    if by_mean:
        total = np.where(valid[..., None], values, 0).sum(axis=(1, 3), dtype=np.float64)
        mean = total / np.maximum(count_HW, 1)[..., None]
        whole = values_HWC.dtype.kind in "iu"
        return (np.rint(mean) if whole else mean).astype(values_HWC.dtype), count_HW > 0
    ids = values[..., 0]
    best_HW, most_HW = np.zeros((height, width), ids.dtype), np.zeros((height, width), np.int64)
    for value in np.unique(ids[valid]):
        count = ((ids == value) & valid).sum(axis=(1, 3))
        best_HW = np.where(count > most_HW, value, best_HW)
        most_HW = np.maximum(count, most_HW)
    return best_HW[..., None], 2 * count_HW >= np.minimum(factor**2, 1)


class Pyramid:
    """Levels of a layer's bands."""

    def __init__(self, layer: Layer, bands: Bands) -> None:
        self.layer, self.bands = layer, bands

    def read(self, level: int, window: Window) -> Pixels:
        """Return the values of a window of a level, which lies inside it.

        Raises:
            SegmenterError: a file is gone, has changed or is damaged.
        """
        factor = 1 << level
        own = Window(
            window.row * factor, window.col * factor, window.height * factor, window.width * factor
        ).intersection(Window.of(self.layer.size))
        if own.size.pixels <= _MOST_EXACT or level == 0:
            pixels = self.layer.read(own, self.bands)
            return pixels if level == 0 else reduced(pixels, factor, by_mean=self.layer.by_mean)
        return self._thinned(own, factor)

    @cached_property
    def sample(self) -> Pixels:
        """Pixels of the whole scene, for a stretch."""
        top = levels(self.layer.size)
        return self.read(top, Window.of(level_size(self.layer.size, top)))

    def coloured(self, level: int, window: Window) -> Coloured:
        """Return the colours of a window of a level; see `read`."""
        return self.layer.coloured(self.read(level, window), self.bands, self.sample)

    def _thinned(self, own: Window, factor: int) -> Pixels:
        """Return single pixels of at most so many blocks, where the whole would take too long."""
        block = self.layer.block
        rows, cols = (
            np.minimum(np.arange(start, stop, factor) + factor // 2, stop - 1)
            for start, stop in ((own.row, own.row_stop), (own.col, own.col_stop))
        )
        rows, cols = _near(rows, cols, block)
        values, valid = None, np.zeros((len(rows), len(cols)), np.bool_)
        for down in _runs(rows // block.height):
            for across in _runs(cols // block.width):
                row, col = rows[down], cols[across]
                part = Window(row[0], col[0], row[-1] + 1 - row[0], col[-1] + 1 - col[0])
                read, known = self.layer.read(part, self.bands)
                if values is None:
                    values = np.zeros((*valid.shape, read.shape[2]), read.dtype)
                pick = np.ix_(row - row[0], col - col[0])
                values[down, across], valid[down, across] = read[pick], known[pick]
        assert values is not None
        return values, valid


def _near(rows: NDArray[Any], cols: NDArray[Any], block: Size) -> tuple[NDArray[Any], NDArray[Any]]:
    """Move rows and columns into the nearest of as many blocks as may be read."""
    lines = [np.unique(rows // block.height), np.unique(cols // block.width)]
    across = min(len(lines[1]), max(1, int((_MOST_BLOCKS * len(lines[1]) / len(lines[0])) ** 0.5)))
    down = max(1, _MOST_BLOCKS // across)
    return _moved(rows, lines[0], down, block.height), _moved(cols, lines[1], across, block.width)


def _moved(places: NDArray[Any], blocks: NDArray[Any], most: int, side: int) -> NDArray[Any]:
    if len(blocks) <= most:
        return places
    chosen = blocks[(2 * np.arange(most) + 1) * len(blocks) // (2 * most)] * side
    nearest = np.searchsorted((chosen[1:] + chosen[:-1] + side) / 2, places)
    low = chosen[nearest]
    return np.clip(places, low, low + side - 1)


def _runs(numbers: NDArray[Any]) -> list[slice]:
    """Return slices of equal numbers that follow each other."""
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return [slice(*pair) for pair in pairwise(cuts)]
