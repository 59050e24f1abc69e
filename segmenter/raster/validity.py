"""Validity of pixels, by the file's own mask or alpha, else by nodata values.

The rule of this module: **if a file has a mask or alpha, that decides; else a pixel has no data if all bands
that are read equal their nodata value. NaN, infinity and fill values beyond ±1e30 in any band are never
data.** If only some bands of a pixel with data equal nodata, statistics leave those values out, and the model
sees the band's mean instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import MaskFlags

from segmenter.grid.geometry import Window
from segmenter.raster.gdal.faults import gdal_window
from segmenter.raster.header import RasterInfo

NO_MEASUREMENT = 1e30
"""Floats from there on are fill values that a file does not declare (−3.4e38, −1.8e308): in a model's float32
they overflow, and NaN would spread over all that a convolution sees of them."""
_SAME = 4 * float(np.finfo(np.float32).eps)
"""Share by which a float may miss a nodata value that is kept as text, as for GDAL."""


class Validity:
    """Validity rule for the bands that are read from an open raster.

    Args:
        bands: 1-based.
        alpha: alpha bands, 0 where there is no data.

    Attributes:
        partial: pixels read so far that have data although a band equals its nodata value.
    """

    def __init__(
        self, dataset: Any, info: RasterInfo, bands: tuple[int, ...], alpha: tuple[int, ...]
    ) -> None:
        self._dataset, self._alpha = dataset, alpha
        self._masks = _masks(dataset, bands)
        dtype = dataset.dtypes[0]
        self._values = [usable(info.nodata[band - 1], dtype) for band in bands]
        self._floats = np.dtype(info.dtype).kind == "f"
        self.partial = self._read = 0

    @property
    def may_lack(self) -> bool:
        """True if a pixel can have no data, judged by the header alone."""
        return bool(self._masks or self._alpha or self._by_value) or self._floats

    @property
    def _by_value(self) -> bool:
        """True if nodata values decide: a band without one always has data."""
        return not self._masks and not self._alpha and None not in self._values

    @property
    def remark(self) -> str:
        """Warning about `partial` pixels, in percent of all that were read, since windows overlap."""
        why = "its mask says so" if self._masks or self._alpha else "other bands do not"
        share = f"{100 * self.partial / self._read:.2g} %"
        what = f"{share} of the pixels hold a nodata value in some band and are data, since {why}"
        return f"{what}; the model sees that band's mean there"

    def of(
        self, stored_CHW: NDArray[Any], image_HWC: NDArray[Any], inside: Window, *, count: bool = True
    ) -> NDArray[np.bool_]:
        """Return an (H, W) mask of data in a window.

        Args:
            stored_CHW: stored values, perhaps on a coarser grid.
            image_HWC: the same values with scale and offset applied.
            count: add to `partial`.
        """
        valid_HW: NDArray[np.bool_] = np.ones(image_HWC.shape[:2], np.bool_)
        for bands, read in ((self._masks, self._dataset.read_masks), (self._alpha, self._dataset.read)):
            if bands:
                shape = (len(bands), *valid_HW.shape)
                masks = read(list(bands), window=gdal_window(inside), out_shape=shape)
                valid_HW &= (masks > 0).all(axis=0)
        some_HW, all_HW = void_pixels(stored_CHW, self._values)
        if self._by_value and all_HW is not None:
            valid_HW &= ~all_HW
        if self._floats:
            for band in range(image_HWC.shape[2]):  # which NaN is not either
                valid_HW &= np.abs(image_HWC[..., band]) < NO_MEASUREMENT
        if count and some_HW is not None:
            self.partial += int(np.count_nonzero(some_HW & valid_HW))
            self._read += valid_HW.size
        return valid_HW


def void_pixels(
    stored_CHW: NDArray[Any], values: Sequence[float | None]
) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None]:
    """Return (H, W) masks of pixels in which any, and in which all, bands with a nodata value hold it."""
    some_HW: NDArray[np.bool_] | None = None
    all_HW: NDArray[np.bool_] | None = None
    for stored_HW, value in zip(stored_CHW, values, strict=True):
        if value is not None:
            held_HW = holds(stored_HW, value)
            some_HW = held_HW if some_HW is None else some_HW | held_HW
            all_HW = held_HW if all_HW is None else all_HW & held_HW
    return some_HW, all_HW


def _masks(dataset: Any, bands: tuple[int, ...]) -> tuple[int, ...]:
    """Return the bands whose masks are read, a shared mask once. Alpha is read as a band."""
    masks: list[int] = []
    shared = False
    all_flags = dataset.mask_flag_enums  # asks for those of all bands each time
    for band in bands:
        flags = all_flags[band - 1]
        if MaskFlags.all_valid in flags or MaskFlags.alpha in flags:
            continue
        if MaskFlags.per_dataset in flags:  # NODATA_VALUES too, a colour
            masks += [] if shared else [band]
            shared = True
        elif MaskFlags.nodata not in flags:
            masks.append(band)
    return tuple(masks)


def usable(nodata: float | None, dtype: str) -> float | None:
    """Return a nodata value if a band of type `dtype` can store it, else None."""
    kind = np.dtype(dtype)
    if nodata is None or not abs(nodata) < NO_MEASUREMENT:
        return None
    if kind.kind == "f":
        return float(nodata)
    whole = int(nodata)
    return whole if whole == nodata and np.iinfo(kind).min <= whole <= np.iinfo(kind).max else None


def void_values(info: RasterInfo, bands: Sequence[int]) -> tuple[float | None, ...]:
    """Return the scaled nodata value of each band; None for bands without one."""
    kind = "float64" if info.scaling else info.dtype  # scaled values are floats, whatever is stored
    values = [usable(info.nodata[band - 1], kind) for band in bands]
    scaling = [info.scaling[band - 1] if info.scaling else (1, 0) for band in bands]
    return tuple(v if v is None else v * s + o for v, (s, o) in zip(values, scaling, strict=True))


def void_in_bands(
    image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_], values: Sequence[float | None]
) -> NDArray[np.bool_] | None:
    """Return an (H, W, C) mask of nodata values in pixels that have data; None if there are none.

    A pixel whose bands all equal nodata, but which the file's mask calls data, is not marked.

    Args:
        values: nodata value of each band in the image's units; empty: no band has one.
    """
    if not any(value is not None for value in values):
        return None
    void_HWC = np.zeros(image_HWC.shape, np.bool_)
    for band, value in enumerate(values):
        if value is not None:
            void_HWC[..., band] = holds(image_HWC[..., band], value)
    void_HWC &= (valid_HW & ~void_HWC.all(axis=2))[..., np.newaxis]
    return void_HWC if void_HWC.any() else None


def fill_void(image_HWC: NDArray[Any], void_HWC: NDArray[np.bool_] | None, mean_C: Sequence[float]) -> None:
    """Write each band's mean, rounded for integers, where `void_HWC` is True; nothing without `mean_C`."""
    if void_HWC is None or not len(mean_C):
        return
    whole = image_HWC.dtype.kind in "iu"
    mean = np.array([round(value) if whole else value for value in mean_C]).astype(image_HWC.dtype)
    np.copyto(image_HWC, mean, where=void_HWC)


def holds(stored: NDArray[Any], value: float) -> NDArray[np.bool_]:
    """Return a mask of an array's nodata values; floats may differ by the rounding of decimal text."""
    if stored.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.abs(stored - stored.dtype.type(value)) <= _SAME * abs(value))
    return np.asarray(stored == value)
