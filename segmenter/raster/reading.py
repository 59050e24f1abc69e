"""Windows of a raster as arrays: pixels, and which of them have data."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import MaskFlags
from rasterio.errors import NotGeoreferencedWarning

from segmenter.errors import RasterError
from segmenter.geometry import Size, Window
from segmenter.raster.header import RasterInfo, read_header
from segmenter.raster.opening import check_pixels, hearing_damage, open_dataset
from segmenter.raster.remote import RemotePath
from segmenter.raster.sparse import Blocks
from segmenter.raster.write import gdal_window, naming

# Images without georeferencing are ordinary input (NAIC, JPEG); `RasterInfo.transform` says so.
warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)

MAX_EMPTY_PIXELS = 1 << 30
"""A raster may always declare so many pixels, and more only where its file has bytes for them."""
_PIXELS_PER_BYTE = 10_000
"""More than any real map compresses to: DEFLATE ends at 1030 bytes from one."""
_MAX_BLOCK_BYTES = 1 << 30
_NO_MEASUREMENT = 1e30
"""Floats from there on are fill values that a file does not declare (−3.4e38, −1.8e308): in a model's float32
they overflow, and NaN would spread over all that a convolution sees of them."""


class Raster:
    """An open raster; a context manager. For one thread: GDAL handles cannot be shared.

    Attributes:
        info: the header.
        bands: the 1-based bands that `read` gives, in that order.
    """

    def __init__(self, dataset: Any, info: RasterInfo, bands: tuple[int, ...]) -> None:
        self._dataset, self.info, self.bands = dataset, info, bands
        self._missing_have_data: bool | None = None

    def __enter__(self) -> Raster:
        return self

    def close(self) -> None:
        """Close the file; `with` does it too."""
        self._dataset.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dataset.close()

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Pixels of a window, which may reach beyond the raster.

        Returns:
            (H, W, C) image in the raster's own type, 0 where invalid, and (H, W) valid: inside the raster
            and measured in **every** band, by nodata values, masks, alpha (unless that band is among
            `bands`) and, in floats, being a number within ±1e30.

        Raises:
            RasterError: naming file and window, where a block is corrupt or missing.
        """
        inside = window.intersection(Window.of(self.info.size))
        if inside == window and inside.size.pixels:
            return self._read_inside(window)
        image = np.zeros((window.height, window.width, len(self.bands)), self.info.dtype)
        valid = np.zeros((window.height, window.width), np.bool_)
        if inside.size.pixels:
            where = inside.relative_to(window).slices()
            image[where], valid[where] = self._read_inside(inside)
        return image, valid

    def empty(self, window: Window) -> bool:
        """Whether a window is known to hold no data without being read: its blocks are not in the file.

        Only where a missing block means no data: without a nodata value it means zeros.
        """
        inside = window.intersection(Window.of(self.info.size))
        if not inside.size.pixels:
            return True
        if self._missing_have_data or not self._blocks.missing(inside):
            return False
        if self._missing_have_data is None:  # all of them read alike: one pixel tells
            _, valid = self._read_inside(Window(inside.row, inside.col, 1, 1))
            self._missing_have_data = bool(valid.any())
        return not self._missing_have_data

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self._dataset)

    def _read_inside(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        with self._naming(window):
            data = self._scaled(self._dataset.read(self.bands, window=gdal_window(window)))
            valid = self._valid(data, window)
        image = _interleaved(data)
        if not valid.all():
            image[~valid] = 0
        return image, valid

    def thinned(self, window: Window, shape: Size) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """As `read`, of a window inside the raster, by nearest neighbour on a coarser grid of `shape`.

        For pictures: costs memory for `shape` only, and little time where the file has overviews.
        """
        with self._naming(window):
            data = self._dataset.read(
                self.bands, window=gdal_window(window), out_shape=_out(self.bands, shape)
            )
            image = self._scaled(data)
            return image, self._valid(image, window)

    @contextlib.contextmanager
    def _naming(self, window: Window) -> Iterator[None]:
        what, advice = f"cannot read {window}", "the file is damaged or incomplete"
        with naming(self.info.path, what, advice), hearing_damage():
            yield

    def _scaled(self, data_CHW: NDArray[Any]) -> NDArray[Any]:
        """(H, W, C) values of what is stored."""
        data = np.moveaxis(data_CHW, 0, 2)
        if not self.info.scaling:
            return data
        scale, offset = np.array([self.info.scaling[band - 1] for band in self.bands]).T
        with np.errstate(over="ignore", invalid="ignore"):
            return (data * scale + offset).astype(np.float32)

    @property
    def may_have_nodata(self) -> bool:
        """Whether a pixel inside the raster can be invalid at all; told from the header alone."""
        how = self._how_valid
        return bool(how.masks or how.values or how.alpha) or np.dtype(self.info.dtype).kind == "f"

    @cached_property
    def _how_valid(self) -> _HowValid:
        masks: list[int] = []
        values: list[int] = []
        for band in self.bands:
            flags = self._dataset.mask_flag_enums[band - 1]
            if MaskFlags.all_valid in flags or MaskFlags.alpha in flags:
                continue  # alpha is read below, and only where it is no data
            shared, by_value = MaskFlags.per_dataset in flags, MaskFlags.nodata in flags
            # GDAL's mask leaves the value out where there is a mask; rasterio's warns where there is alpha.
            apart = self.info.nodata[band - 1] is not None and (not by_value if shared else self.info.alpha)
            if apart:
                values.append(band)
            if not (masks if shared else apart):
                masks.append(band)
        alpha = tuple(band for band in self.info.alpha if band not in self.bands)
        return _HowValid(tuple(masks), tuple(values), alpha)

    def _valid(self, data: NDArray[Any], inside: Window) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = np.ones(data.shape[:2], np.bool_)
        where, shape = gdal_window(inside), Size(*data.shape[:2])
        how = self._how_valid
        if how.masks:
            found = self._dataset.read_masks(how.masks, window=where, out_shape=_out(how.masks, shape))
            good &= (found > 0).all(axis=0)
        for band in how.values:
            stored = self._dataset.read(band, window=where, out_shape=(shape.height, shape.width))
            good &= stored != self.info.nodata[band - 1]
        if how.alpha:
            found = self._dataset.read(how.alpha, window=where, out_shape=_out(how.alpha, shape))
            good &= (found > 0).all(axis=0)
        if data.dtype.kind == "f":
            good &= (np.abs(data) < _NO_MEASUREMENT).all(axis=2)  # which NaN is not either
        return good


@dataclass(frozen=True)
class _HowValid:
    """By what it is told which pixels have data, in 1-based bands.

    Attributes:
        masks: those whose GDAL mask is read.
        values: those whose nodata value is looked for here.
        alpha: those that are transparent where there is no data.
    """

    masks: tuple[int, ...]
    values: tuple[int, ...]
    alpha: tuple[int, ...]


def _interleaved(data_HWC: NDArray[Any]) -> NDArray[Any]:
    """The same values, contiguous; band by band, which is three times as fast as NumPy's own order."""
    if data_HWC.flags.c_contiguous:
        return data_HWC
    image = np.empty(data_HWC.shape, data_HWC.dtype)
    for band in range(data_HWC.shape[2]):
        image[..., band] = data_HWC[..., band]
    return image


def _out(bands: tuple[int, ...], shape: Size) -> tuple[int, int, int]:
    return len(bands), shape.height, shape.width


def open_raster(
    path: Path,
    bands: tuple[int, ...] | None = None,
    *,
    max_pixels: int | None = None,
    drivers: Sequence[str] = (),
) -> Raster:
    """Open a raster without reading pixels; close it, or use it as a context manager.

    Args:
        path: a GeoTIFF, PNG or JPEG file.
        bands: 1-based, in the order wanted; a band named here is data even if tagged as alpha. None: all
            but alpha.
        max_pixels: refuse more. None: `MAX_EMPTY_PIXELS`, or 10,000 per byte of the file if that is
            more; a 401-byte file that declares 65535×65535 pixels is refused, a large mosaic is not.
        drivers: further ones of GDAL that may open it. A VRT can read whatever this process may.

    Raises:
        RasterError: where there is no such file, it cannot be opened, or has not the bands.
    """
    dataset, remarks = open_dataset(path, drivers)
    try:
        with naming(path, "cannot read its header", "the file is damaged"):
            info = read_header(path, dataset, remarks)
        _check_types(info, dataset)
        _check_size(info, dataset, max_pixels)
        check_pixels(path, dataset)
        return Raster(dataset, info, _bands(info, bands))
    except BaseException:
        dataset.close()
        raise


def raster_info(path: Path) -> RasterInfo:
    """The header of a raster; no limit on its declared size."""
    dataset, remarks = open_dataset(path)
    with dataset, naming(path, "cannot read its header", "the file is damaged"):
        return read_header(path, dataset, remarks)


def read_label(
    path: Path, window: Window | None = None, *, expand_palette: bool = False, shape: Size | None = None
) -> NDArray[Any]:
    """Raw values of a label raster: (H, W) codes of one band, or (H, W, 3) colours of three or more.

    Args:
        window: must lie within the raster; None reads it whole.
        expand_palette: give the colours of a palette image, (H, W, 3), instead of its indices (grey
            images without a palette become three equal bands).
        shape: read on a coarser grid, by nearest neighbour; for pictures.

    Raises:
        RasterError: naming file and window.
    """
    with open_dataset(path)[0] as dataset:
        check_pixels(path, dataset)
        size = Size(dataset.height, dataset.width)
        window = Window.of(size) if window is None else window
        if not Window.of(size).contains(window):
            raise RasterError(f"{path}: expected a label of at least {window}, got one of {size} pixels")
        with naming(path, f"cannot read {window}", "the file is damaged or incomplete"):
            bands = (1, 2, 3) if dataset.count >= 3 else (1,)
            out = _out(bands, shape or window.size)
            data = np.moveaxis(dataset.read(bands, window=gdal_window(window), out_shape=out), 0, 2)
            palette = _palette(dataset) if expand_palette and len(bands) == 1 else None
    if len(bands) == 3:
        return np.ascontiguousarray(data)
    if palette is not None:
        return palette[data[..., 0]]
    return np.repeat(data, 3, axis=2) if expand_palette else np.ascontiguousarray(data[..., 0])


def _bands(info: RasterInfo, bands: tuple[int, ...] | None) -> tuple[int, ...]:
    if bands is None:
        bands = tuple(b for b in range(1, info.count + 1) if b not in info.alpha)
    if not bands:
        raise RasterError(f"{info.path}: expected a band of data, every band is tagged as alpha; name it")
    missing = [b for b in bands if not 1 <= b <= info.count]
    if missing:
        raise RasterError(
            f"{info.path}: expected band {missing[0]} (of {', '.join(map(str, bands))}), "
            f"the raster has {info.count}"
        )
    return tuple(bands)


def _check_types(info: RasterInfo, dataset: Any) -> None:
    if info.dtype.startswith("complex"):  # GDAL has types of them that NumPy has not
        raise RasterError(f"{info.path}: expected real numbers, got {info.dtype}")
    if len(types := set(dataset.dtypes)) > 1:
        raise RasterError(f"{info.path}: expected bands of one type, got {', '.join(sorted(types))}")


def _check_size(info: RasterInfo, dataset: Any, max_pixels: int | None) -> None:
    file_bytes = 0 if isinstance(info.path, RemotePath) else info.path.stat().st_size
    limit = max(MAX_EMPTY_PIXELS, file_bytes * _PIXELS_PER_BYTE) if max_pixels is None else max_pixels
    if info.size.pixels > limit:
        raise RasterError(
            f"{info.path}: declares {info.size} pixels in a file of {file_bytes or 'unknown'} bytes, "
            f"more than the {limit} allowed; lift the limit (--max-pixels) if that is meant"
        )
    height, width = dataset.block_shapes[0]
    if not dataset.compression and width == info.size.width:
        height = 1  # GDAL takes strips that are not compressed apart, but for their rows
    block = height * width * info.count * np.dtype(info.dtype).itemsize
    if info.driver == "GTiff" and block > _MAX_BLOCK_BYTES:
        raise RasterError(
            f"{info.path}: is stored in blocks of {height}×{width} pixels ({block >> 20} MiB), which "
            "cannot be read piece by piece; rewrite it with gdal_translate -co TILED=YES"
        )


def _palette(dataset: Any) -> NDArray[np.uint8] | None:
    """(256, 3) colours, or None where the band has no palette."""
    try:
        entries = dataset.colormap(1)
    except ValueError:
        return None
    table = np.zeros((256, 3), np.uint8)
    for index, colour in entries.items():
        if index < 256:
            table[index] = colour[:3]
    return table
