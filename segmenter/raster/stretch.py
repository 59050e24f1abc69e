"""Stretch of a raster's pictures, from windows spread over the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.grid.stretch import Stretch

if TYPE_CHECKING:
    from segmenter.raster.header import RasterInfo

_WINDOWS, _SIDE = 12, 40
"""Parts along each side, and their pixels: few are read of a raster of any size."""


class Thinnable(Protocol):
    """A raster of which windows can be read for pictures."""

    @property
    def info(self) -> RasterInfo:
        """Header of the raster."""
        ...

    def thinned(self, window: Window, shape: Size) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """See `Raster.thinned`."""
        ...


def scene_stretch(raster: Thinnable) -> Stretch | None:
    """Return the stretch for all pictures of a raster, whichever part they show; None without data.

    Raises:
        RasterError: a window cannot be read.
    """
    size = raster.info.size
    rows, cols = (_parts(side) for side in (size.height, size.width))
    windows = [Window(row, col, height, width) for row, height in rows for col, width in cols]
    read = [raster.thinned(window, window.size) for window in windows]
    image, valid = (np.concatenate([each[i] for each in read]) for i in range(2))
    return Stretch.of(image, valid)


def _parts(side: int) -> list[tuple[int, int]]:
    """Return starts and lengths of parts spread evenly along a side; of a short one, the whole."""
    if side <= _WINDOWS * _SIDE:
        return [(0, side)]
    return [(int(start), _SIDE) for start in np.linspace(0, side - _SIDE, _WINDOWS)]
