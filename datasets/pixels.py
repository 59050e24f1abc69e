"""Reading of all pixels of a scene in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import row_strips
from segmenter.raster import Raster, open_raster

_PIECE_BYTES = 1 << 24
"""Bytes of an image read at once: with derived arrays some 100 MiB a thread."""
_PIECE_PIXELS = 1 << 22
_LARGE_PIXELS = 1 << 27
"""Pixels from which rasters are read one at a time: one block per thread could fill the memory."""
_LARGE = threading.Lock()
_MASK_SIDE = 512


def pieces(size: Size, bytes_per_pixel: int = 1) -> Iterator[Window]:
    """Yield windows of bounded size that cover a raster; whole rows if they fit."""
    most = max(1, min(_PIECE_PIXELS, _PIECE_BYTES // bytes_per_pixel))
    for strip in row_strips(size, most):
        for col in range(0, size.width, most):
            yield Window(strip.row, col, strip.height, min(most, size.width - col))


def in_turn(size: Size) -> contextlib.AbstractContextManager[object]:
    """Return a lock to hold while reading a raster: very large ones are read one at a time."""
    return _LARGE if size.pixels > _LARGE_PIXELS else contextlib.nullcontext()


def digest_of(raster: Raster) -> tuple[bytes | None, bool]:
    """Read a whole raster; return a digest of the pixels a model would see, and True if any has data.

    Digests find equal scenes without reading a file twice, even in different formats; decoding takes far
    longer than hashing. None for a scene of one colour: empty tiles are equal but no leak.

    Raises:
        RasterError: a window cannot be read.
    """
    size, dtype = raster.info.size, np.dtype(raster.info.dtype)
    digest = hashlib.blake2b(repr((size, dtype.name, len(raster.bands))).encode(), digest_size=16)
    first: NDArray[Any] | None = None
    varies = has_data = False
    with in_turn(size):
        for window in pieces(size, len(raster.bands) * dtype.itemsize):
            image, valid = raster.read(window)
            has_data = has_data or bool(valid.any())
            first = image[:1, :1].copy() if first is None else first
            varies = varies or not np.array_equal(image, np.broadcast_to(first, image.shape))
            digest.update(np.ascontiguousarray(image).data.cast("B"))
    return (digest.digest() if varies else None), has_data


def coarse_mask(path: Path, bands: tuple[int, ...] | None) -> NDArray[np.bool_]:
    """Return an (h, w) mask of an image's data, on a grid of at most 512 × 512."""
    with open_raster(path, bands) as raster:
        size = raster.info.size
        return raster.thinned(Window.of(size), size.at_most(_MASK_SIDE))[1]
