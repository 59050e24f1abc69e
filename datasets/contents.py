"""Contents of images, read once for all that asks for them: digest, fill values, landmarks, borders."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import row_strips
from segmenter.raster import KnownRasters, Raster, RasterInfo, open_raster
from segmenter.raster.remote.settings import RemotePath
from segmenter.raster.stamps import Stamp, stamp_of

from .fill import Fill
from .landmarks import NONE, Floats, Landmarks, grey, landmarks_of
from .neighbours import borders_of

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


def digest_of(
    raster: Raster, look: Callable[[Window, NDArray[Any], NDArray[np.bool_]], None] = lambda *_: None
) -> tuple[bytes | None, bool]:
    """Read a whole raster; return a digest of the pixels a model would see, and True if any has data.

    Digests find equal scenes without reading a file twice, even in different formats; decoding takes far
    longer than hashing. None for a scene of one colour: empty tiles are equal but no leak.

    Args:
        look: is called with each window, its piece of the image and its mask of data, on the way.

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
            look(window, image, valid)
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


@dataclass(frozen=True)
class ImageContent:
    """Facts that the pixels of an image tell.

    Attributes:
        info: its header.
        bands: bands that were read.
        masked: a pixel may have no data, as the header tells.
        digest: digest of all pixels; None if they are equal.
        has_data: a pixel has data.
        fill: share of the pixels of each fill value that is not declared.
        landmarks: points by which copies and windows of other pixels are found.
        borders: means along its borders; None for a large one.
        remark: warning about pixels of which some bands have no data.
        fault: why it cannot be read; empty: it was.
    """

    info: RasterInfo
    bands: tuple[int, ...]
    masked: bool
    digest: bytes | None = None
    has_data: bool = True
    fill: Mapping[float, float] = field(default_factory=lambda: MappingProxyType({}))
    landmarks: Landmarks = NONE
    borders: Floats | None = None
    remark: str | None = None
    fault: str = ""


def content_of(raster: Raster) -> ImageContent:
    """Return the content of an open image, of which each pixel is read once; what cannot be is a fault."""
    size, fill, parts, borders = raster.info.size, Fill(), [NONE], list[Floats]()

    def look(window: Window, image: NDArray[Any], valid: NDArray[np.bool_]) -> None:
        fill.look(image, valid)
        grey_HW = grey(image, valid)
        parts.append(landmarks_of(grey_HW, window))
        if window.size == size:  # larger ones are no tiles
            borders.append(borders_of(grey_HW))

    content = ImageContent(raster.info, raster.bands, raster.may_have_nodata)
    try:
        digest, has_data = digest_of(raster, look)
    except RasterError as error:
        return replace(content, fault=str(error))
    return replace(
        content,
        digest=digest,
        has_data=has_data,
        fill=fill.values(),
        landmarks=Landmarks.joined(parts),
        borders=borders[0] if borders else None,
        remark=raster.partial_remark,
    )


class Contents:
    """Contents of images and values of small labels, handed on so that each file is read once.

    A file that may change unseen is read again.

    Attributes:
        files: opener of labels, and of images whose pixels are needed again.
    """

    def __init__(self) -> None:
        self.files = KnownRasters(labels=True)
        self._images: dict[tuple[Path, tuple[int, ...] | None], tuple[Stamp, ImageContent]] = {}

    def image(
        self,
        path: Path,
        bands: tuple[int, ...] | None = None,
        *,
        drivers: Sequence[str] = (),
        most: int | None = None,
    ) -> ImageContent:
        """Return the content of an image.

        Args:
            most: pixels up to which it is read; of a larger one that is not known, only the header.

        Raises:
            RasterError: it cannot be opened.
        """
        stamp = None if isinstance(path, RemotePath) else stamp_of(path)
        known = self._images.get((path, bands))
        if known is not None and known[0] == stamp:
            return known[1]
        with open_raster(path, bands, drivers=drivers) as raster:
            if most is not None and raster.info.size.pixels > most:
                return ImageContent(raster.info, raster.bands, raster.may_have_nodata)
            content = content_of(raster)
            if stamp is not None and stamp.is_settled:
                self._images[path, bands] = stamp, content
                self.files.remember(raster, path, bands, stamp)
        return content
