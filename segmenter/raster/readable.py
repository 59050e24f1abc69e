"""What gives pixels window by window: a raster, a mosaic's view, or either on another grid."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window
from segmenter.raster.header import RasterInfo


class Readable(Protocol):
    """A `raster.Raster`, a `raster.mosaic.MosaicView`, or a `raster.resampled.ResampledRaster`."""

    info: RasterInfo
    bands: tuple[int, ...]

    @property
    def extent(self) -> Window:
        """The pixels that can be read: of a mosaic seen from one of its files, more than that file has."""

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """(H, W, C) pixels of a window, 0 where invalid, and (H, W) where they are valid."""

    def empty(self, window: Window) -> bool:
        """Whether a window is known to hold no data without being read."""

    @property
    def apart(self) -> bool:
        """Whether several handles may each read some of its columns, at no more than the cost of one handle.

        Not of strips, which are decoded whole, nor where a handle counts what it has read in order.
        """
