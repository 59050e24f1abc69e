"""Rasters in memory, for tests of what is done to windows."""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window


class ArrayRaster:
    """A raster in memory."""

    @dataclass(frozen=True)
    class Info:
        size: Size
        dtype: str

    def __init__(self, image: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> None:
        self.image = image
        self.valid = np.ones(image.shape[:2], np.bool_) if valid is None else valid
        self.info = self.Info(Size(*image.shape[:2]), image.dtype.name)
        self.bands = tuple(range(1, image.shape[2] + 1))

    @property
    def extent(self) -> Window:
        return Window.of(self.info.size)

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        image = np.zeros((window.height, window.width, self.image.shape[2]), self.image.dtype)
        valid = np.zeros(image.shape[:2], np.bool_)
        inside = window.intersection(Window.of(self.info.size))
        to, source = inside.relative_to(window).slices(), inside.slices()
        valid[to] = self.valid[source]
        image[to] = np.where(valid[to][..., None], self.image[source], 0)
        return image, valid

    def empty(self, window: Window) -> bool:
        return False

    @property
    def apart(self) -> bool:
        return False


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
