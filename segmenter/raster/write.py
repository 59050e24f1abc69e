"""Writing of rasters completely or not at all: law 8, *nothing half-written is ever visible*.

A raster is written to `.NAME.tmp-PID` beside its target, closed, **read back and compared by checksum**,
synced to disk, and only then renamed. The check is mandatory: GDAL reports no error if cached blocks fail to
reach a full disk at close, and the resulting file reads as zeros. For the same reason GDAL's writer threads
are not used (with them a full disk raises no error at all).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.rpc import RPC
from rasterio.transform import Affine

from segmenter.base.files import sync
from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import COLUMN, Columns, round_up
from segmenter.raster.gdal.faults import FAULTS, gdal_window, naming
from segmenter.raster.gdal.settings import set_up_gdal

BLOCK = 512
"""Side in pixels of the blocks of a GeoTIFF; smaller rasters have one block of their own size."""
_PIECE_PIXELS = 1 << 19
"""Least number of pixels written at once: several rows of blocks for narrow rasters."""
_CONVERTED = 1 << 22
"""Values of another type than GDAL knows that are converted at once."""
_ZLEVEL = 1
"""Level of DEFLATE: 16.8 Mpixel are written at 214 Mpixel/s and has 4.4 MB; with 6, at 22 and 3.8 MB."""
_LEFTOVER_SECONDS = 3600.0
COG_ENDING = ".cog"
COG_LEFTOVERS = (".ovr.tmp", ".ovr.tmp.aux.xml", ".msk.ovr.tmp", ".aux.xml")
"""Endings of temporary files that GDAL's driver makes beside its own."""


@dataclass(frozen=True, eq=False)
class RasterSpec:
    """A raster's format, pixel type and metadata: everything except path, size and pixels.

    Attributes:
        dtype: pixel type; float16 is stored in 16 bits and read back as float32.
        bands: number of bands; one band takes (H, W) arrays, more take (H, W, bands).
        crs: coordinate reference system, also of the `gcps`.
        transform: pixel to CRS coordinates; None if the raster is not georeferenced.
        gcps: ground control points, instead of a transform.
        rpcs: rational polynomial coefficients, also beside a transform.
        nodata: value of pixels without data, in every band.
        descriptions: text of each band.
        interpretations: of each band, as `red` or `alpha`; none: red, green, blue, the others undefined.
        colour_table: (256, 3) uint8; `nodata` is transparent.
        tags: metadata of the file, as `CLASS_0: water`.
        driver: GTiff, PNG or JPEG.
        scale: scale factor of all bands, stored for readers of the file.
        overviews: write a cloud-optimised GeoTIFF with overviews by this resampling; None: a plain GeoTIFF.

    Raises:
        ValueError: the driver cannot store all of this.
    """

    dtype: str = "uint8"
    bands: int = 1
    crs: CRS | None = None
    transform: Affine | None = None
    gcps: Sequence[GroundControlPoint] = ()
    rpcs: RPC | None = None
    nodata: float | None = None
    descriptions: Sequence[str | None] = ()
    interpretations: Sequence[str] = ()
    colour_table: NDArray[np.uint8] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    driver: str = "GTiff"
    scale: float | None = None
    overviews: Literal["mode", "nearest"] | None = None

    def __post_init__(self) -> None:
        placed = self.crs or self.transform or self.gcps or self.rpcs
        if self.driver != "GTiff" and (placed or self.tags or any(self.descriptions)):
            raise ValueError(f"{self.driver} holds neither georeference nor tags; write a GTiff")


_PLAIN = RasterSpec()


class RasterWriter:
    """A raster that is written by windows and appears under its name only when complete.

    Windows may come in any order; each pixel is written exactly once. They are kept until a piece (a row of
    blocks as wide as a column) is complete, so that no compressed block is written twice. Memory depends on
    the column and the windows' distance, not on the raster's size, except for tables (5 bytes for a piece,
    usually of 2¹⁹ pixels or more; GDAL's: 16 for a block of 512×512). PNG and JPEG are exceptions: GDAL
    writes them whole.

    Args:
        path: the target; an existing file is replaced, in one step, on success.
        size: size of the raster in pixels.
        spec: format and metadata of the file.
        column: width in pixels of the columns in which windows come, see `windows.Columns`; if it differs
            from the windows' columns, pieces wait for the next column.

    Raises:
        RasterError: the file cannot be written, or reads back differently.
    """

    def __init__(self, path: Path, size: Size, spec: RasterSpec = _PLAIN, *, column: int = COLUMN) -> None:
        self.path, self.size, self._spec, self._dtype = path, size, spec, np.dtype(spec.dtype)
        self._stored = np.dtype(np.float32) if self._dtype == np.float16 else self._dtype
        self._temp = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        self._step = _piece_size(size, column)
        grid = -(-size.height // self._step.height), -(-size.width // self._step.width)
        self._pieces: dict[tuple[int, int], NDArray[Any]] = {}
        self._missing: dict[tuple[int, int], int] = {}
        self._written, self._checks = np.zeros(grid, np.bool_), np.zeros(grid, np.uint32)
        self._dataset: Any = None

    def __enter__(self) -> RasterWriter:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.complete()
        else:
            self.discard()

    def open(self) -> None:
        """Create the temporary file."""
        set_up_gdal()
        try:
            with self._writing("cannot be written"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._temp.unlink(missing_ok=True)  # GDAL would write through a link
                self._dataset = rasterio.open(self._temp, "w", **_options(self.size, self._spec))
                self._describe()
        except BaseException:
            self.discard()
            raise

    def write(self, window: Window, array: NDArray[Any]) -> None:
        """Write one window of (H, W) or (H, W, bands) pixels."""
        if not Window.of(self.size).contains(window) or array.shape[:2] != (window.height, window.width):
            raise ValueError(f"{self.path}: {array.shape} pixels do not fit {window} of {self.size}")
        pixels = array.reshape(window.height, window.width, self._spec.bands)
        for index in self._touched_blocks(window):
            piece = self._piece(index)
            part = window.intersection(piece)
            into, source = part.relative_to(piece), part.relative_to(window)
            buffer = self._buffer(index)
            buffer[(slice(None), *into.slices())] = np.moveaxis(pixels[source.slices()], 2, 0)
            self._missing[index] -= part.size.pixels
            if self._missing[index] <= 0:
                self._flush(index)

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel, all bands."""
        return self._spec.bands * self._dtype.itemsize

    def complete(self) -> None:
        """Close, check and rename the file; remove it after an error."""
        try:
            self.finish()
            self.publish()
        finally:
            self.discard()

    def finish(self) -> None:
        """Close the file, and make sure that it is on the disk, still under its temporary name.

        After an error, call `discard`.
        """
        if self._pieces or not self._written.all():
            raise ValueError(f"{self.path}: not every pixel was written")
        with self._writing("could not be completed"):
            self._close()
        self._verify()
        if self._spec.overviews is not None:
            with self._writing("could not be made cloud-optimised"):
                cloud_optimised(self._temp, self._spec.overviews)
            self._verify()
        with self._writing("could not be completed"):
            sync(self._temp)

    def publish(self) -> None:
        """Rename the finished raster to its path; remove foreign overviews and masks of an old raster."""
        with self._writing("could not be completed"):
            for ending in (".ovr", ".msk", ".aux.xml"):
                self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
            os.replace(self._temp, self.path)
            sync(self.path.parent)

    def discard(self) -> None:
        """Remove temporary files; nothing is left unless `complete` succeeded."""
        with contextlib.suppress(*FAULTS), rasterio.Env():
            self._close()
        for ending in ("", ".aux.xml", COG_ENDING, *(COG_ENDING + also for also in COG_LEFTOVERS)):
            with contextlib.suppress(OSError):
                self._temp.with_name(self._temp.name + ending).unlink(missing_ok=True)

    def _touched_blocks(self, window: Window) -> Iterator[tuple[int, int]]:
        rows, cols = (
            range(edges.start // step, -(-edges.stop // step))
            for edges, step in zip(window.slices(), (self._step.height, self._step.width), strict=True)
        )
        return itertools.product(rows, cols)

    def _piece(self, index: tuple[int, int]) -> Window:
        top, left = index[0] * self._step.height, index[1] * self._step.width
        return Window(top, left, self._step.height, self._step.width).intersection(Window.of(self.size))

    def _buffer(self, index: tuple[int, int]) -> NDArray[Any]:
        piece = self._piece(index)
        if self._written[index]:
            raise ValueError(f"{self.path}: {piece} were already written")
        if index not in self._pieces:
            self._pieces[index] = np.zeros((self._spec.bands, piece.height, piece.width), self._dtype)
            self._missing[index] = piece.size.pixels
        return self._pieces[index]

    def _flush(self, index: tuple[int, int]) -> None:
        pixels = self._pieces.pop(index)
        del self._missing[index]
        self._written[index] = True
        piece = self._piece(index)
        with self._writing(f"{piece} could not be written"):
            check = 0
            for part in self._parts(piece):
                values = np.ascontiguousarray(pixels[(slice(None), *part.relative_to(piece).slices())])
                check = zlib.crc32(values.data, check)
                self._dataset.write(values.astype(self._stored, copy=False), window=gdal_window(part))
            self._checks[index] = check

    def _verify(self) -> None:
        """Read every pixel back and compare; a lossy JPEG only has to be readable."""
        with (
            self._writing("did not reach the disk whole"),
            rasterio.open(self._temp, sharing=False) as written,
        ):
            for index in np.ndindex(self._checks.shape):
                piece = self._piece((index[0], index[1]))
                check = 0
                for part in self._parts(piece):
                    pixels = written.read(window=gdal_window(part)).astype(self._dtype, copy=False)
                    check = zlib.crc32(np.ascontiguousarray(pixels).data, check)
                if self._spec.driver != "JPEG" and check != self._checks[index]:
                    raise OSError(f"{piece} read back otherwise than they were written")

    def _parts(self, piece: Window) -> Iterator[Window]:
        """Yield the windows that GDAL gets at once: whole blocks, smaller parts if values need conversion."""
        if self._stored == self._dtype:
            yield piece
            return
        wide = BLOCK * max(1, _CONVERTED // (BLOCK * BLOCK * self._spec.bands))
        for top in range(piece.row, piece.row_stop, BLOCK):
            for left in range(piece.col, piece.col_stop, wide):
                yield Window(top, left, BLOCK, wide).intersection(piece)

    def _describe(self) -> None:
        spec = self._spec
        for band, text in enumerate(spec.descriptions, start=1):
            if text:
                self._dataset.set_band_description(band, text)
        if spec.colour_table is not None:
            clear = {int(spec.nodata): (0, 0, 0, 0)} if spec.nodata is not None else {}
            table = {i: (int(r), int(g), int(b), 255) for i, (r, g, b) in enumerate(spec.colour_table)}
            self._dataset.write_colormap(1, table | clear)
        elif spec.bands > 1 and spec.driver == "GTiff":
            told = [ColorInterp[name] for name in spec.interpretations]
            self._dataset.colorinterp = told or _interpretation(spec.bands)
        if spec.scale is not None:
            self._dataset.scales = (spec.scale,) * spec.bands
        if spec.tags:
            self._dataset.update_tags(**spec.tags)

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        advice = "nothing was left under this name; is there space, and permission to write?"
        # Outside an Env, GDAL prints its own lines on stderr, beside our error.
        with naming(self.path, what, advice), rasterio.Env():
            yield

    def _close(self) -> None:
        dataset, self._dataset = self._dataset, None
        if dataset is not None:
            dataset.close()


def write_raster(path: Path, array: NDArray[Any], spec: RasterSpec = _PLAIN) -> None:
    """Write an (H, W) or (H, W, bands) array as a raster, completely or not at all; see `RasterWriter`.

    Type and bands are the array's, whatever `spec` says.
    """
    size = Size(array.shape[0], array.shape[1])
    bands = 1 if array.ndim == 2 else array.shape[2]
    with RasterWriter(path, size, replace(spec, dtype=array.dtype.name, bands=bands)) as writer:
        for top in range(0, size.height, BLOCK):
            rows = array[top : top + BLOCK]
            writer.write(Window(top, 0, rows.shape[0], size.width), rows)


def leftovers(folder: Path) -> dict[str, list[Path]]:
    """Return a folder's temporary files by the name of the raster that they belong to."""
    by_name: dict[str, list[Path]] = {}
    for path in folder.glob(".*.tmp-*"):
        by_name.setdefault(path.name[1:].rpartition(".tmp-")[0], []).append(path)
    return by_name


def remove_leftovers(folder: Path) -> int:
    """Remove temporary files that killed writers left in a folder; return their number.

    A file is removed only if its process is gone and it is unchanged for an hour (on a shared disk, the
    process may run on another machine).
    """
    removed = 0
    for path in (path for paths in leftovers(folder).values() for path in paths):
        pid = path.name.rpartition("-")[2].partition(".")[0]
        with contextlib.suppress(OSError):
            old = time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
            if pid.isdigit() and old and not Path(f"/proc/{pid}").exists():
                path.unlink()
                removed += 1
    return removed


def _piece_size(size: Size, column: int) -> Size:
    """Return the size of the pieces written at once: whole blocks, or to the raster's edge."""
    width = max(1, min(Columns(Window.of(size), round_up(column, BLOCK)).step, size.width))
    rows = BLOCK * max(1, _PIECE_PIXELS // (BLOCK * width))
    return Size(max(1, min(rows, round_up(size.height, 16))), width)


def _options(size: Size, spec: RasterSpec) -> dict[str, Any]:
    options: dict[str, Any] = {"width": size.width, "height": size.height, "count": spec.bands}
    options |= {"dtype": "float32", "nbits": 16} if spec.dtype == "float16" else {"dtype": spec.dtype}
    # rasterio takes no points without a CRS, but with an empty one
    options |= {"crs": spec.crs or (CRS() if spec.gcps else None)}
    options |= {"nodata": spec.nodata, "driver": spec.driver}
    options |= {"rpcs": spec.rpcs} if spec.rpcs else {}
    if spec.gcps:
        options |= {"gcps": list(spec.gcps)}
    elif spec.transform:
        options |= {"transform": spec.transform}
    options |= _geotiff_options(size) if spec.driver == "GTiff" else {}
    return options | ({"zlevel": _ZLEVEL} if spec.driver == "PNG" else {})


def _geotiff_options(size: Size) -> dict[str, Any]:
    # DEFLATE is read by every program; IF_SAFER because IF_NEEDED cannot foresee the compressed size.
    block = Size(min(BLOCK, max(16, size.height)), min(BLOCK, max(16, size.width))).round_up(16)
    return {
        "tiled": True,
        "blockxsize": block.width,
        "blockysize": block.height,
        "compress": "deflate",
        "zlevel": _ZLEVEL,
        "bigtiff": "IF_SAFER",
        "interleave": "pixel",
    }


def _interpretation(bands: int) -> list[ColorInterp]:
    """Return red, green, blue, and undefined for the other bands: GDAL would tag a fourth band as alpha."""
    colours = [ColorInterp.red, ColorInterp.green, ColorInterp.blue]
    return [*(colours if bands >= 3 else [ColorInterp.gray]), *[ColorInterp.undefined] * bands][:bands]


# -------------------------------------------------------------------------------------------- cloud-optimised


def cloud_optimised(path: Path, overviews: Literal["mode", "nearest"]) -> None:
    """Replace a GeoTIFF by a cloud-optimised one with the same pixels, colour table, tags and georeference.

    GDAL can create one only by copying. Overviews are never averaged: the mean of classes 1 and 3 is not
    class 2. Overviews of float16 have 16 bits too.

    Raises:
        errors of rasterio and the system; a full disk may raise none, so the caller must read the file back.
    """
    aside = path.with_name(path.name + COG_ENDING)
    aside.unlink(missing_ok=True)
    with rasterio.open(path, sharing=False) as source:
        options = {"compress": "deflate", "level": 1, "blocksize": BLOCK, "bigtiff": "IF_SAFER"}
        rasterio.shutil.copy(source, aside, driver="COG", overview_resampling=overviews.upper(), **options)
    os.replace(aside, path)
