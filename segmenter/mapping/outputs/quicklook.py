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
    """Every n-th pixel of every n-th row of a map, in its colours, above a legend and a scale bar.

    It is transparent where there is no data, and beside a map that is narrower than its legend.

    Args:
        of: size of the map.
        metres: of its pixels; None: unknown, without a scale bar.
    """

    remark = None

    def __init__(self, path: Path, of: Size, classes: ClassMap, metres: float | None = None) -> None:
        from segmenter.evaluation.figures import legend_strip  # brings matplotlib

        self._every, self._classes = max(1, -(-max(of.height, of.width) // _SIDE)), classes
        self._map = Window(0, 0, -(-of.height // self._every), -(-of.width // self._every))
        self._legend_HWC = legend_strip(classes, self._map.width, metres and metres * self._every)
        height, width, _ = self._legend_HWC.shape
        size = Size(self._map.height + height, max(self._map.width, width))
        super().__init__(path, size, RasterSpec(bands=4, driver="PNG"))
        self._ids_HW = np.full((self._map.height, self._map.width), IGNORE, np.uint8)

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
        picture = np.zeros((self.size.height, self.size.width, 4), np.uint8)
        picture[self._map.slices()] = colours[self._ids_HW]
        picture[self._map.height :, : self._legend_HWC.shape[1], :3] = self._legend_HWC
        picture[self._map.height :, : self._legend_HWC.shape[1], 3] = 255
        self.open()
        self.write(Window.of(self.size), picture)
        super().finish()
