"""Pixels of a small raster, packed in memory: read once from the file, for all who ask later."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window as GdalWindow

Palette = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class KeptPixels:
    """All bands of a raster without mask or alpha.

    Attributes:
        data: (C, H, W) values, packed by zlib.
        flags: mask flags of each band, as rasterio tells them.
        palette: index and colour of each entry; None if it has no palette.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str
    flags: list[Any]
    palette: Palette | None

    @classmethod
    def of(cls, data_CHW: NDArray[Any], flags: list[Any], palette: Palette | None) -> KeptPixels:
        """Return packed values."""
        packed = zlib.compress(np.ascontiguousarray(data_CHW).data, 1)
        return cls(packed, data_CHW.shape, data_CHW.dtype.name, flags, palette)

    def open(self) -> KeptDataset:
        """Return what takes the place of the open file."""
        return KeptDataset(self)


def nearest(start: int, stop: int, number: int) -> NDArray[np.int64]:
    """Return the rows or columns in the middles of equal parts, as GDAL picks them."""
    return (start + (np.arange(number) + 0.5) * (stop - start) / number).astype(np.int64)


class KeptDataset:
    """Kept pixels in place of rasterio's dataset: as much of it as reading needs."""

    def __init__(self, kept: KeptPixels) -> None:
        self._kept = kept
        self.mask_flag_enums, self.dtypes = kept.flags, (kept.dtype,) * kept.shape[0]

    @cached_property
    def _data_CHW(self) -> NDArray[Any]:
        flat = np.frombuffer(zlib.decompress(self._kept.data), self._kept.dtype)
        return flat.reshape(self._kept.shape)

    def colormap(self, band: int) -> dict[int, tuple[int, ...]]:
        """Return the palette; ValueError if there is none."""
        if self._kept.palette is None:
            raise ValueError(f"band {band} has no palette")
        return dict(self._kept.palette)

    def overviews(self, band: int) -> list[int]:
        """Return the factors of overviews: there are none."""
        return []

    def read(self, bands: Sequence[int], window: GdalWindow, out_shape: Sequence[int]) -> NDArray[Any]:
        """Return a window of some bands, by nearest neighbour if its shape is another."""
        data = self._data_CHW
        part = data if len(bands) == len(data) else data[[band - 1 for band in bands]]
        down, across = window.toslices()
        if tuple(out_shape[-2:]) == (window.height, window.width):
            return part[:, down, across]
        rows, cols = map(nearest, (down.start, across.start), (down.stop, across.stop), out_shape[-2:])
        return part[:, rows[:, None], cols]

    def close(self) -> None:
        """Do nothing: the file is closed already."""
