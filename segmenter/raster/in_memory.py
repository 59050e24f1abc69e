"""Pixels in memory, read by windows like a file, with the same rule of validity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.files import Closing
from segmenter.grid.geometry import Size, Window
from segmenter.raster.header import RasterInfo
from segmenter.raster.validity import NO_MEASUREMENT, fill_void, usable, void_in_bands, void_pixels


class ArrayRaster(Closing):
    """(H, W, C) array as a `Readable`; a context manager, like `Raster`. Only windows are copied.

    Args:
        image_HWC: numbers of any type; in a masked array, a pixel with all bands masked has no data, as in a
            file a pixel whose bands all equal nodata.
        valid_HW: True where there is data, like a file's mask; None: everywhere.
        nodata: value of each band that means no data; None: every value is data.
        mean_C: value that replaces single masked or nodata bands of a pixel, as in `Raster`.

    Attributes:
        info: a header without georeference.
        bands: 1 to C.
    """

    def __init__(
        self,
        image_HWC: NDArray[Any],
        valid_HW: NDArray[np.bool_] | None = None,
        nodata: Sequence[float | None] = (),
        mean_C: Sequence[float] = (),
    ) -> None:
        height, width, count = image_HWC.shape
        self._image, self._valid = np.asarray(image_HWC), valid_HW
        self._mean_C = mean_C
        mask: Any = np.ma.getmask(image_HWC)
        self._mask = None if mask is np.ma.nomask else mask
        native = np.dtype(np.float32) if image_HWC.dtype == np.float16 else image_HWC.dtype.newbyteorder("=")
        self._dtype, stored = native, image_HWC.dtype.newbyteorder("=").name
        self._nodata = [usable(value, stored) for value in nodata]
        self.bands = tuple(range(1, count + 1))
        self.info = RasterInfo(
            *(Path("image"), Size(height, width), count, native.name),
            crs=None,
            transform=None,
            nodata=(None,) * count,
            descriptions=(None,) * count,
            interpretations=("undefined",) * count,
            driver="MEM",
            alpha=(),
            has_palette=False,
            metres_per_pixel=None,
        )

    def close(self) -> None:
        """Do nothing; see `Raster.close`."""

    @property
    def extent(self) -> Window:
        """All pixels."""
        return Window.of(self.info.size)

    @property
    def apart(self) -> bool:
        """See `Readable.apart`."""
        return False

    @property
    def may_have_nodata(self) -> bool:
        """See `Raster.may_have_nodata`."""
        return self._valid is not None or self._mask is not None or bool(self._nodata) or self._floats

    @property
    def partial_remark(self) -> None:
        """None: the creator of the array knows its values."""
        return None

    @property
    def _floats(self) -> bool:
        return self._dtype.kind == "f"

    def empty(self, window: Window) -> bool:
        """Return True for windows outside the array; other windows must be read."""
        return not window.intersection(self.extent).size.pixels

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return pixels and validity of a window; see `Raster.read`."""
        image = np.zeros((window.height, window.width, len(self.bands)), self._dtype)
        valid = np.zeros((window.height, window.width), np.bool_)
        inside = window.intersection(self.extent)
        into = inside.relative_to(window).slices()
        image[into] = stored = np.asarray(self._image[inside.slices()])
        valid[into] = self._has_data(stored, image[into], inside)
        void = void_in_bands(image[into], valid[into], self._nodata)
        if self._mask is not None:
            masked = self._mask[inside.slices()] & valid[into][..., np.newaxis]
            void = masked if void is None else void | masked
        fill_void(image[into], void, self._mean_C)
        image[~valid] = 0
        return image, valid

    def _has_data(
        self, stored_HWC: NDArray[Any], image_HWC: NDArray[Any], inside: Window
    ) -> NDArray[np.bool_]:
        where = inside.slices()
        valid = np.ones(stored_HWC.shape[:2], np.bool_)
        if self._valid is not None:
            valid &= np.asarray(self._valid[where])
        if self._mask is not None:
            valid &= ~np.asarray(self._mask[where]).all(axis=2)
        if self._nodata and None not in self._nodata:
            _, void = void_pixels(np.moveaxis(stored_HWC, 2, 0), self._nodata)
            valid &= True if void is None else ~void
        if self._floats:
            valid &= (np.abs(image_HWC) < NO_MEASUREMENT).all(axis=2)  # which NaN is not either
        return valid
