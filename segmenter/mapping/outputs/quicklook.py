"""Quick look: a small picture of a map, sampled from its windows while they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.inference.prediction import Prediction
from segmenter.raster import RasterSpec, RasterWriter

_SIDE = 1024
"""Pixels of its longer side, at most."""


class QuicklookWriter(RasterWriter):
    """Every n-th pixel of every n-th row of a map, in its colours; transparent where there is no data.

    Args:
        of: size of the map.
    """

    remark = None

    def __init__(self, path: Path, of: Size, classes: ClassMap) -> None:
        self._every, self._classes = max(1, -(-max(of.height, of.width) // _SIDE)), classes
        size = Size(-(-of.height // self._every), -(-of.width // self._every))
        super().__init__(path, size, RasterSpec(bands=4, driver="PNG"))
        self._ids_HW = np.full((size.height, size.width), IGNORE, np.uint8)

    def take(self, window: Window, prediction: Prediction) -> None:
        """Sample a window of the map."""
        n = self._every
        rows, cols = (slice(-(-s.start // n), -(-s.stop // n)) for s in window.slices())
        self._ids_HW[rows, cols] = prediction.ids[
            rows.start * n - window.row :: n, cols.start * n - window.col :: n
        ]

    def finish(self) -> None:
        """Write the picture to a temporary file."""
        colours = np.zeros((256, 4), np.uint8)
        colours[:, :3] = self._classes.palette()
        colours[:, 3] = 255
        colours[IGNORE] = 0
        self.open()
        self.write(Window.of(self.size), colours[self._ids_HW])
        super().finish()
