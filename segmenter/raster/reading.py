"""Windows of a raster as arrays: pixels, and a mask of those with data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import BandsError, RasterError, failing
from segmenter.base.files import Closing
from segmenter.grid.geometry import Size, Window
from segmenter.raster.gdal.faults import FAULTS, gdal_window, naming
from segmenter.raster.header import RasterInfo, read_header
from segmenter.raster.opening import Opened, check_pixels, open_dataset, raising_damage
from segmenter.raster.remote.settings import patiently
from segmenter.raster.source import RasterSource
from segmenter.raster.stamps import Stamp, stamp_of
from segmenter.raster.validity import Validity, fill_void, void_in_bands, void_values

_WHOLE_PIXELS = 1 << 20
"""Pixels up to which a raster is sampled completely; of a larger one at most this number."""
_BLOCKS, _PIXELS_OF_A_BLOCK, _DECODED_BYTES = 16, 1 << 14, 1 << 28
"""For a large raster: blocks read, pixels of each used, bytes decoded for them."""
_NEAR = 1 / 32
"""Share of the opaque level by which a lossy mask may miss it, or 0."""
_SOFT_EDGES = 0.05
"""Share of pixels between 0 and opaque that a mask without an opaque pixel may have."""
_LEVELS = 3
"""Most levels of a mask with constant transparency; measurements have more."""
_MOST_KNOWN = 1 << 20

_known: dict[tuple[Any, ...], tuple[int, ...]] = {}
"""Measured bands of each state of a file: training opens files again and again."""


def measured_alpha(opened: Opened, alpha: Sequence[int]) -> tuple[int, ...]:
    """Return the alpha-tagged bands that are measurements, judged by a bounded sample of undamaged pixels."""
    if not alpha:
        return ()
    key = (opened.source.name, opened.stamp, tuple(alpha))
    if key in _known:
        return _known[key]
    values_BN = _sample(opened.dataset, alpha)
    bands = tuple(band for band, values in zip(alpha, values_BN, strict=True) if _is_measured(values))
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[key] = bands
    return bands


def refuse(path: Path, count: int, alpha: Sequence[int]) -> BandsError:
    """Return the error for a raster of `count` bands whose alpha-tagged bands are measurements."""
    rest = ",".join(str(band) for band in range(1, count + 1) if band not in alpha) if count <= 8 else ""
    return BandsError(
        f"{path}: band {alpha[0]} is tagged as alpha, but holds measurements and no mask; "
        + ask_for_bands(count)
        + (f" or {rest}" if rest else "")
    )


def ask_for_bands(count: int) -> str:
    """Return advice for a raster whose data bands are ambiguous."""
    most = ",".join(map(str, range(1, count + 1))) if count <= 8 else f"1,2,…,{count}"
    return f"say which bands to use, by dataset.bands in the recipe or --bands of predict.py: {most}"


def _is_measured(values_N: NDArray[Any]) -> bool:
    """Return True if most values lie between 0 and opaque, or a good part of them if no value is opaque."""
    whole = values_N.dtype.kind in "iu"
    levels = [255.0, float(np.iinfo(values_N.dtype).max)] if whole else [1.0, 255.0]
    values = values_N[np.isfinite(values_N)].astype(np.float64)
    if not values.size:
        return False
    if not whole:
        levels.append(float(values.max()))
    opaque = np.any([np.abs(values - level) <= abs(level) * _NEAR for level in levels], axis=0)
    between = ~opaque & (np.abs(values) > min(levels) * _NEAR)
    share = float(between.mean())
    if share > 0.5:
        return True
    return share > _SOFT_EDGES and not opaque.any() and len(np.unique(values[between])) > _LEVELS


def _sample(dataset: Any, bands: Sequence[int]) -> NDArray[Any]:
    """Return a sample of (bands, pixels) values."""
    samples = [np.empty((len(bands), 0), dataset.dtypes[0])]
    for window in _windows(dataset):
        with contextlib.suppress(*FAULTS), raising_damage():
            samples.append(dataset.read(list(bands), window=gdal_window(window)).reshape(len(bands), -1))
    return np.concatenate(samples, axis=1)


def _windows(dataset: Any) -> Iterator[Window]:
    height, width = dataset.shape
    if height * width <= _WHOLE_PIXELS:
        yield Window(0, 0, height, width)
        return
    if dataset.driver == "PNG":
        cols = min(width, _WHOLE_PIXELS)
        yield Window(0, 0, min(height, _WHOLE_PIXELS // cols), cols)
        return
    block_height, block_width = dataset.block_shapes[0]
    rows, cols = -(-height // block_height), -(-width // block_width)
    bytes_of_a_block = block_height * block_width * dataset.count * np.dtype(dataset.dtypes[0]).itemsize
    blocks = min(_BLOCKS, max(1, _DECODED_BYTES // bytes_of_a_block))
    across = min(cols, int(blocks**0.5))
    down = min(rows, blocks // across)
    for i in range(down):
        for j in range(across):
            top = (2 * i + 1) * rows // (2 * down) * block_height
            left = (2 * j + 1) * cols // (2 * across) * block_width
            yield _middle(top, left, min(block_height, height - top), min(block_width, width - left))


def _middle(top: int, left: int, height: int, width: int) -> Window:
    """Return the middle of a block, at most a fixed number of pixels."""
    side = int(_PIXELS_OF_A_BLOCK**0.5)
    rows = min(height, max(side, _PIXELS_OF_A_BLOCK // width))
    cols = min(width, _PIXELS_OF_A_BLOCK // rows)
    return Window(top + (height - rows) // 2, left + (width - cols) // 2, rows, cols)


MAX_EMPTY_PIXELS = 1 << 30
"""Pixels that a raster may always declare; more only if its file has bytes for them."""
MAX_BANDS = 4096
"""Bands that are read at once: GDAL takes the square of their number for each window."""
_PIXELS_PER_BYTE = 10_000
"""More than any real map compresses to: DEFLATE ends at 1030 bytes from one."""
_MAX_BLOCK_BYTES = 1 << 30


class Raster(Closing):
    """An open raster; a context manager, for one thread only: GDAL handles cannot be shared.

    Attributes:
        info: the header.
        bands: the 1-based bands that `read` returns, in that order.
        alpha: alpha bands, 0 where there is no data.
        mean_C: the model's mean of each band, which replaces single bands without data; empty: they keep
            their value.
    """

    def __init__(
        self, dataset: Any, info: RasterInfo, bands: tuple[int, ...], alpha: tuple[int, ...]
    ) -> None:
        self._dataset, self.info, self.bands, self.alpha = dataset, info, bands, alpha
        self.mean_C: Sequence[float] = ()
        self._validity = Validity(dataset, info, bands, alpha)
        self._missing_have_data: bool | None = None

    def close(self) -> None:
        """Close the file; `with` does this too."""
        self._dataset.close()

    @property
    def block(self) -> Size:
        """Size of the blocks that are decoded as a whole."""
        return Size(*self._dataset.block_shapes[0])

    @property
    def extent(self) -> Window:
        """Readable pixels: all of the raster."""
        return Window.of(self.info.size)

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the pixels of a window, which may reach beyond the raster.

        Returns:
            (H, W, C) image in the raster's own type, 0 where invalid, and an (H, W) mask of pixels inside the
            raster and with data, by the rule of `validity`.

        Raises:
            RasterError: a block is corrupt or missing; the message names file and window.
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
        """Return True if the file stores no blocks for a window, so that it is known to have no data.

        Requires that missing blocks mean no data: without a nodata value they mean zeros.
        """
        inside = window.intersection(Window.of(self.info.size))
        if not inside.size.pixels:
            return True
        if self._missing_have_data or not self._blocks.missing(inside):
            return False
        if self._missing_have_data is None:  # all of them read alike: one pixel is enough
            _, valid = self._read_inside(Window(inside.row, inside.col, 1, 1))
            self._missing_have_data = bool(valid.any())
        return not self._missing_have_data

    @cached_property
    def _blocks(self) -> StoredBlocks:
        return StoredBlocks(self._dataset, self.info.masked)

    def _read_inside(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return patiently(self.info.path, lambda: self._read_now(window))

    def _read_now(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        with self._naming(window):
            stored = self._dataset.read(self.bands, window=gdal_window(window))
            data = self._scale(stored)
            valid = self._validity.of(stored, data, window)
        image = _interleave(data)
        if len(self.mean_C):
            fill_void(image, void_in_bands(image, valid, self.void_values), self.mean_C)
        if not valid.all():
            image[~valid] = 0
        return image, valid

    @cached_property
    def void_values(self) -> tuple[float | None, ...]:
        """See `validity.void_values`."""
        return void_values(self.info, self.bands)

    def thinned(self, window: Window, shape: Size) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Read a window inside the raster, subsampled to `shape` by nearest neighbour.

        For pictures: takes memory for `shape` only, and little time if the file has overviews.
        """
        with self._naming(window):
            out = (len(self.bands), shape.height, shape.width)
            stored = self._dataset.read(self.bands, window=gdal_window(window), out_shape=out)
            image = self._scale(stored)
            return image, self._validity.of(stored, image, window, count=False)

    @contextlib.contextmanager
    def _naming(self, window: Window) -> Iterator[None]:
        what, advice = f"cannot read {window}", "the file is damaged or incomplete"
        with naming(self.info.path, what, advice), raising_damage():
            yield

    def _scale(self, data_CHW: NDArray[Any]) -> NDArray[Any]:
        """Return stored values as (H, W, C) with scale and offset applied."""
        data = np.moveaxis(data_CHW, 0, 2)
        if not self.info.scaling:
            return data
        scale, offset = np.array([self.info.scaling[band - 1] for band in self.bands]).T
        with np.errstate(over="ignore", invalid="ignore"):
            return (data * scale + offset).astype(np.float32)

    @property
    def may_have_nodata(self) -> bool:
        """True if a pixel inside the raster can be invalid, judged by the header alone."""
        return self._validity.may_lack

    @property
    def apart(self) -> bool:
        """See `Readable.apart`."""
        return self.info.tiled

    @property
    def partial_remark(self) -> str | None:
        """Warning about pixels that have data although a band equals its nodata value; None without any."""
        return f"{self.info.path}: {self._validity.remark}" if self._validity.partial else None


def _interleave(data_HWC: NDArray[Any]) -> NDArray[Any]:
    """Return the values contiguous in memory; band by band, three times as fast as in NumPy's own order."""
    if data_HWC.flags.c_contiguous:
        return data_HWC
    image = np.empty(data_HWC.shape, data_HWC.dtype)
    for band in range(data_HWC.shape[2]):
        image[..., band] = data_HWC[..., band]
    return image


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
        bands: 1-based, in the order wanted; a band listed here is data even if tagged as alpha. None: all but
            alpha, which must then be a mask. If bands are listed, other alpha bands that are no masks are
            ignored.
        max_pixels: largest number of pixels to accept. None: `MAX_EMPTY_PIXELS`, or 10,000 per byte of the
            file if that is more; a 401-byte file that declares 65535×65535 pixels is refused, a large mosaic
            is not.
        drivers: further GDAL drivers that may open the file. A VRT can read whatever this process may.

    Raises:
        RasterError: the file is missing, cannot be opened, lacks the bands, or its data bands are ambiguous.
    """
    with checked_dataset(path, drivers, max_pixels) as (opened, info):
        used = _bands(info, bands)
        _check_scaling(info, used)
        others = tuple(band for band in info.alpha if band not in used)
        data = measured_alpha(opened, others)
        if data and bands is None:
            raise refuse(path, info.count, data)
        return Raster(opened.dataset, info, used, tuple(band for band in others if band not in data))


@contextlib.contextmanager
def checked_dataset(
    path: Path, drivers: Sequence[str], max_pixels: int | None = None
) -> Iterator[tuple[Opened, RasterInfo]]:
    """Yield an open dataset with its passport; an error in the block closes it, and nothing else does.

    Raises:
        RasterError: it cannot be opened, declares more than its file can hold, lacks pixels, or has blocks
            too large to be read piece by piece.
    """
    opened = open_dataset(path, drivers)
    with contextlib.ExitStack() as undo:
        undo.callback(opened.dataset.close)
        with naming(path, "cannot read its header", "the file is damaged"):
            info = read_header(path, opened)
        check_types(info, opened.dataset)
        check_size(info, opened.dataset, max_pixels)
        check_pixels(path, opened)
        _remember(opened.source, info)
        yield opened, info
        undo.pop_all()


def raster_info(path: Path) -> RasterInfo:
    """Return the header of a raster, of any declared size; of an unchanged file as it was read before."""
    if (known := _headers.get(path.absolute())) is not None and known[0] == stamp_of(path):
        return replace(known[1], path=path)
    opened = open_dataset(path)
    with opened.dataset, naming(path, "cannot read its header", "the file is damaged"):
        info = read_header(path, opened)
    _remember(opened.source, info)
    return info


_headers: dict[Path, tuple[Stamp, RasterInfo]] = {}
"""Headers of local files by the state that they were read in: to parse one takes as long as a tile."""
_MOST_HEADERS = 1 << 18


def _remember(source: RasterSource, info: RasterInfo) -> None:
    """Keep a header, unless a further change of its file could go unseen."""
    if source.stamp.is_settled and not source.is_remote:
        if len(_headers) >= _MOST_HEADERS:
            _headers.clear()
        _headers[source.path.absolute()] = source.stamp, info


def _bands(info: RasterInfo, bands: tuple[int, ...] | None) -> tuple[int, ...]:
    if bands is None:
        bands = tuple(b for b in range(1, info.count + 1) if b not in info.alpha)
        if info.has_palette:
            raise BandsError(
                info.path,
                "its values are indices of a palette, not measurements",
                remedy=f"make colours of them: gdal_translate -expand rgb {info.path.name} RGB.tif "
                "(`-expand rgba` where some are transparent), or take the indices as they are by "
                "dataset.bands: [1] or --bands 1",
            )
    if not bands:
        raise RasterError(
            info.path, expected="a band of data, every band is tagged as alpha", remedy="name it"
        )
    if len(bands) > MAX_BANDS:
        raise BandsError(
            info.path,
            expected=f"at most {MAX_BANDS} bands to read at once",
            got=len(bands),
            remedy=ask_for_bands(len(bands)),
        )
    missing = [b for b in bands if not 1 <= b <= info.count]
    if missing:
        raise RasterError(
            info.path,
            expected=f"band {missing[0]} (of {', '.join(map(str, bands))}), the raster has {info.count}",
        )
    return tuple(bands)


def _check_scaling(info: RasterInfo, bands: tuple[int, ...]) -> None:
    for band in bands if info.scaling else ():
        scale, offset = info.scaling[band - 1]
        if not math.isfinite(scale) or not math.isfinite(offset) or scale == 0:
            raise RasterError(
                info.path,
                expected=f"a finite scale (not 0) and offset of band {band}",
                got=f"{scale} and {offset}: no pixel would have data",
                remedy="set them with gdal_edit.py -scale 1 -offset 0",
            )


def check_types(info: RasterInfo, dataset: Any) -> None:
    """Refuse pixels that are not real numbers of one type."""
    if info.dtype.startswith("complex"):  # GDAL has types of them that NumPy has not
        raise RasterError(info.path, expected="real numbers", got=info.dtype)
    if len(types := set(dataset.dtypes)) > 1:
        raise RasterError(info.path, expected="bands of one type", got=", ".join(sorted(types)))


def check_size(info: RasterInfo, dataset: Any, max_pixels: int | None = None) -> None:
    """Refuse a raster that declares more than its file can contain, or too large blocks; as `open_raster`."""
    with failing(RasterError, info.path, "cannot read it"):
        file_bytes = info.path.stat().st_size
    limit = max(MAX_EMPTY_PIXELS, file_bytes * _PIXELS_PER_BYTE) if max_pixels is None else max_pixels
    if info.size.pixels > limit:
        raise RasterError(
            info.path,
            f"declares {info.size} pixels in a file of {file_bytes} bytes, more than the {limit} allowed",
            remedy="lift the limit (--max-pixels) if that is meant",
        )
    height, width = dataset.block_shapes[0]
    if not dataset.compression and width == info.size.width:
        height = 1  # GDAL takes strips that are not compressed apart, but for their rows
    block = height * width * info.count * np.dtype(info.dtype).itemsize
    if info.driver == "GTiff" and block > _MAX_BLOCK_BYTES:
        raise RasterError(
            info.path,
            f"is stored in blocks of {width}×{height} pixels ({block >> 20} MiB), which cannot be read "
            "piece by piece",
            remedy="rewrite it with gdal_translate -co TILED=YES",
        )


# ----------------------------------------------------------------------------------------------- sparse files


class StoredBlocks:
    """Blocks of an open dataset.

    Attributes:
        known: the file's stored blocks can be listed. False for formats other than TIFF, for files with a
            mask, and for uncompressed files whose blocks are rows: GDAL may show rows although the file has
            larger blocks.
    """

    def __init__(self, dataset: Any, masked: bool) -> None:
        self._dataset = dataset
        self._height, self._width = dataset.block_shapes[0]
        rows = (
            dataset.compression is None
            and self._width == dataset.width
            and 1 == self._height < dataset.height
        )
        self.known = dataset.driver == "GTiff" and not rows and not masked
        separate = dataset.interleaving is not None and dataset.interleaving.name == "band"
        self._bands = range(1, dataset.count + 1) if separate else range(1, 2)

    def missing(self, window: Window) -> bool:
        """Return True if the file has no block for a window inside the raster."""
        if not self.known:
            return False
        for row in range(window.row // self._height, -(-window.row_stop // self._height)):
            for col in range(window.col // self._width, -(-window.col_stop // self._width)):
                name = f"BLOCK_OFFSET_{col}_{row}"
                if any(self._dataset.get_tag_item(name, "TIFF", bidx=band) for band in self._bands):
                    return False
        return True
