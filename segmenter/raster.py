"""The only module that opens rasters (with `raster_write`, its other half): everything else takes arrays.

Only GeoTIFF (COG among them), PNG and JPEG files on a local path are opened. VRT, archives and network
addresses are refused: one of them can point GDAL anywhere. Faults become a `RasterError` that names the
file and the window.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

# GDAL reads these when it first needs them, in whichever thread; a user's own setting wins.
# The block cache is otherwise 5 % of the machine's memory; listing a folder of 100,000 tiles at each open
# is quadratic (sidecar files are still found).
os.environ.setdefault("GDAL_CACHEMAX", "128")
os.environ.setdefault("GDAL_DISABLE_READDIR_ON_OPEN", "TRUE")

import numpy as np
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import NotGeoreferencedWarning
from rasterio.transform import Affine

from segmenter.errors import RasterError
from segmenter.geometry import Size, Window
from segmenter.raster_open import check_drivers, open_dataset
from segmenter.raster_write import (
    RasterWriter,
    gdal_window,
    leftovers,
    naming,
    quiet_libtiff,
    remove_leftovers,
    write_raster,
)

__all__ = [
    "MAX_EMPTY_PIXELS",
    "Raster",
    "RasterInfo",
    "RasterWriter",
    "check_drivers",
    "leftovers",
    "open_raster",
    "quiet_libtiff",
    "raster_info",
    "read_label",
    "remove_leftovers",
    "write_raster",
]

# Images without georeferencing are ordinary input (NAIC, JPEG); `RasterInfo.transform` says so.
warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)

MAX_EMPTY_PIXELS = 1 << 30
"""A raster may always declare so many pixels, and more only where its file has bytes for them."""
_PIXELS_PER_BYTE = 10_000
"""More than any real map compresses to: DEFLATE ends at 1030 bytes from one."""
_MAX_BLOCK_BYTES = 1 << 30
_METRES_PER_DEGREE = 111_320.0


@dataclass(frozen=True)
class RasterInfo:
    """What a raster's header says.

    Attributes:
        transform: pixel to CRS coordinates; None where the raster has none (or only `gcps`).
        nodata: per band; None where a band has none.
        alpha: 1-based bands that the file tags as alpha.
        gcps: ground control points in `gcp_crs`.
        metres_per_pixel: approximate, at the raster's centre; None where it cannot be told.
        tiled: stored in tiles, so that reading a window decodes little more than the window.
        scaling: (scale, offset) of each band where the file gives any: values are scale × stored + offset,
            and `dtype` is float32; empty: values are as stored.
    """

    path: Path
    size: Size
    count: int
    dtype: str
    crs: CRS | None
    transform: Affine | None
    nodata: tuple[float | None, ...]
    descriptions: tuple[str | None, ...]
    driver: str
    alpha: tuple[int, ...]
    has_palette: bool
    metres_per_pixel: float | None
    gcps: tuple[GroundControlPoint, ...] = ()
    gcp_crs: CRS | None = None
    tiled: bool = False
    scaling: tuple[tuple[float, float], ...] = ()

    @property
    def georeferenced(self) -> bool:
        """Whether the file says where on Earth it lies, by a transform, a CRS or control points."""
        return self.transform is not None or self.crs is not None or bool(self.gcps)

    def georeference(self, part: Window) -> dict[str, Any]:
        """The `crs`, `transform` and `gcps` that a raster of only `part` has (keywords of a writer)."""
        if self.gcps:
            moved = [
                GroundControlPoint(p.row - part.row, p.col - part.col, p.x, p.y, p.z, p.id, p.info)
                for p in self.gcps
            ]
            return {"crs": self.gcp_crs, "gcps": moved}
        move = self.transform and self.transform @ Affine.translation(part.col, part.row)
        return {"crs": self.crs, "transform": move}


class Raster:
    """An open raster; a context manager. For one thread: GDAL handles cannot be shared.

    Attributes:
        info: the header.
        bands: the 1-based bands that `read` gives, in that order.
    """

    def __init__(self, dataset: Any, info: RasterInfo, bands: tuple[int, ...]) -> None:
        self._dataset, self.info, self.bands = dataset, info, bands

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
            `bands`) and, in floats, being finite.

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

    def _read_inside(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        with naming(self.info.path, f"cannot read {window}", "the file is damaged or incomplete"):
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
        with naming(self.info.path, f"cannot read {window}", "the file is damaged or incomplete"):
            data = self._dataset.read(
                self.bands, window=gdal_window(window), out_shape=_out(self.bands, shape)
            )
            image = self._scaled(data)
            return image, self._valid(image, window)

    def _scaled(self, data_CHW: NDArray[Any]) -> NDArray[Any]:
        """(H, W, C) values of what is stored."""
        data = np.moveaxis(data_CHW, 0, 2)
        if not self.info.scaling:
            return data
        scale, offset = np.array([self.info.scaling[band - 1] for band in self.bands]).T
        return (data * scale + offset).astype(np.float32)

    @property
    def may_have_nodata(self) -> bool:
        """Whether a pixel inside the raster can be invalid at all; told from the header alone."""
        masks, alpha = self._mask_bands
        return bool(masks or alpha) or np.dtype(self.info.dtype).kind == "f"

    @cached_property
    def _mask_bands(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bands whose GDAL mask is to be read, and alpha bands that say what is valid."""
        masks: list[int] = []
        for band in self.bands:
            flags = self._dataset.mask_flag_enums[band - 1]
            if MaskFlags.all_valid in flags or MaskFlags.alpha in flags:
                continue  # alpha is read below, and only where it is no data
            shared = MaskFlags.per_dataset in flags
            if not (shared and masks):
                masks.append(band)
        return tuple(masks), tuple(band for band in self.info.alpha if band not in self.bands)

    def _valid(self, data: NDArray[Any], inside: Window) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = np.ones(data.shape[:2], np.bool_)
        where, shape = gdal_window(inside), Size(*data.shape[:2])
        masks, alpha = self._mask_bands
        if masks:
            found = self._dataset.read_masks(masks, window=where, out_shape=_out(masks, shape))
            good &= (found > 0).all(axis=0)
        if alpha:
            good &= (self._dataset.read(alpha, window=where, out_shape=_out(alpha, shape)) > 0).all(axis=0)
        if data.dtype.kind == "f":
            good &= np.isfinite(data).all(axis=2)
        return good


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
    dataset = open_dataset(path, drivers)
    try:
        with naming(path, "cannot read its header", "the file is damaged"):
            info = _info(path, dataset)
        _check_size(info, dataset, max_pixels)
        return Raster(dataset, info, _bands(info, bands))
    except BaseException:
        dataset.close()
        raise


def raster_info(path: Path) -> RasterInfo:
    """The header of a raster; no limit on its declared size."""
    with open_dataset(path) as dataset, naming(path, "cannot read its header", "the file is damaged"):
        return _info(path, dataset)


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
    with open_dataset(path) as dataset:
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


def _info(path: Path, dataset: Any) -> RasterInfo:
    gcps, gcp_crs = dataset.gcps
    placed = not dataset.transform.is_identity and not gcps
    transform = dataset.transform if placed else None
    size = Size(dataset.height, dataset.width)
    scaling = tuple(zip(dataset.scales, dataset.offsets, strict=True))
    if all(pair == (1, 0) for pair in scaling) or np.dtype(dataset.dtypes[0]).kind == "c":
        scaling = ()
    return RasterInfo(
        path=path,
        size=size,
        count=dataset.count,
        dtype="float32" if scaling else dataset.dtypes[0],
        crs=dataset.crs,
        transform=transform,
        nodata=tuple(dataset.nodatavals),
        descriptions=tuple(dataset.descriptions),
        driver=dataset.driver,
        tiled=dataset.block_shapes[0][1] < dataset.width,
        alpha=tuple(i for i, c in enumerate(dataset.colorinterp, start=1) if c == ColorInterp.alpha),
        has_palette=dataset.colorinterp[0] == ColorInterp.palette,
        metres_per_pixel=_metres(dataset.crs, transform, size),
        gcps=tuple(gcps),
        gcp_crs=gcp_crs,
        scaling=scaling,
    )


def _metres(crs: CRS | None, transform: Affine | None, size: Size) -> float | None:
    """Side of a pixel of the mean area, in metres, at the raster's centre."""
    if crs is None or transform is None:
        return None
    side = math.sqrt(abs(transform.determinant))
    if crs.is_geographic:
        _, latitude = transform @ (size.width / 2, size.height / 2)
        return side * _METRES_PER_DEGREE * math.sqrt(max(0.0, math.cos(math.radians(latitude))))
    return side * float(crs.linear_units_factor[1]) if crs.is_projected else None


def _bands(info: RasterInfo, bands: tuple[int, ...] | None) -> tuple[int, ...]:
    if np.dtype(info.dtype).kind == "c":
        raise RasterError(f"{info.path}: expected real numbers, got {info.dtype}")
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


def _check_size(info: RasterInfo, dataset: Any, max_pixels: int | None) -> None:
    file_bytes = info.path.stat().st_size
    limit = max(MAX_EMPTY_PIXELS, file_bytes * _PIXELS_PER_BYTE) if max_pixels is None else max_pixels
    if info.size.pixels > limit:
        raise RasterError(
            f"{info.path}: declares {info.size} pixels in a file of {file_bytes} bytes, more than the "
            f"{limit} allowed; lift the limit (--max-pixels) if that is meant"
        )
    height, width = dataset.block_shapes[0]
    block = height * width * info.count * np.dtype(info.dtype).itemsize
    if info.driver == "GTiff" and dataset.compression and block > _MAX_BLOCK_BYTES:
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
