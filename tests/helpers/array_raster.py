"""Rasters in memory, for tests of what is done to windows."""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window
from segmenter.raster import in_memory


class ArrayRaster(in_memory.ArrayRaster):
    """One whose pixels, and where they have data, are in reach of a test."""

    def __init__(self, image: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> None:
        self.image = image
        self.valid = np.ones(image.shape[:2], np.bool_) if valid is None else valid
        super().__init__(image, self.valid)


@dataclass(eq=False)
class ArrayJob:
    raster: Any
    part: Window | None = None
    abandoned: bool = False
    opened: int = 0
    done_rows: int = 0
    columns: Any = None

    def open(self) -> contextlib.AbstractContextManager[Any]:
        self.opened += 1
        return contextlib.nullcontext(self.raster)


def scene(rng: np.random.Generator, height: int, width: int, bands: int = 2) -> ArrayRaster:
    image = rng.integers(0, 255, (height, width, bands), np.uint8)
    return ArrayRaster(image, rng.random((height, width)) > 0.1)
