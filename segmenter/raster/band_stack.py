"""Bands from several files as one raster, on the grid of one of the files.

The rule: files on that grid give their values unchanged. The others are resampled by
`segmenter.grid.resampling`: a coarser file bilinearly, a finer one by the mean over each pixel, weighted by
validity. A pixel has data where it has data in every file. Files of one scene must have the same extent,
within a pixel of the coarser one.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, RasterError
from segmenter.base.sealed import digest
from segmenter.grid.geometry import Window
from segmenter.grid.resampling import as_type, resample, taps
from segmenter.raster.crs_units import same_ground
from segmenter.raster.ground import crs_title
from segmenter.raster.header import RasterInfo
from segmenter.raster.made import MadeRasters, write_strips
from segmenter.raster.opening import files_behind
from segmenter.raster.reading import Raster, open_raster
from segmenter.raster.validity import usable
from segmenter.raster.write import BLOCK, RasterSpec

_VERSION = 2
"""Version of the rules of stacking; it is part of the name."""
_ON_GRID = 1e-3
"""Share of a pixel by which the corners of a grid may miss those of the same grid."""
_NOISE, _DENOMINATOR = 1e-7, 1 << 16
"""In pixels; and of positions that are no simple fractions, off by 1e-9 pixels a pixel at most."""
_WORDS = re.compile(r"[_.\- ]+")


class StackedImages(MadeRasters):
    """Makes one GeoTIFF of a scene's files; safe to use from several threads, and by several processes."""

    def __init__(self, folder: Path, grid: int | None = None, drivers: Sequence[str] = ()) -> None:
        """Store a folder, `grid` (index of the file whose grid is used; None: the finest), and `drivers`."""
        super().__init__(folder, digest([_VERSION, grid], 64))
        self._grid, self._drivers = grid, tuple(drivers)

    def image(self, name: str, files: Sequence[Path]) -> Path:
        """Return the raster of a scene, making it if needed; its bands are those of the files, in order."""
        raster_path = self.get(name, self._sources(files), lambda path: self._make(path, files))
        assert raster_path is not None, "it is always made"
        return raster_path

    def _sources(self, files: Sequence[Path]) -> list[Path]:
        return [behind for file in files for behind in files_behind(file, self._drivers)]

    def _make(self, path: Path, files: Sequence[Path]) -> bool:
        with contextlib.ExitStack() as stack:
            rasters = [stack.enter_context(open_raster(file, drivers=self._drivers)) for file in files]
            bands = _Stack(rasters, self._grid)
            write_strips(path, bands.info.size, bands.spec(), bands.strips())
        # Made anew of the same files it is the same raster: maps of it stay finished.
        newest = max((s.stat().st_mtime_ns for s in self._sources(files)), default=0)
        with contextlib.suppress(PermissionError):  # of another user, whose process has done the same
            os.utime(path, ns=(newest, newest))
        return True


_Along = tuple[int, Fraction, Fraction]
"""Along an axis: length of a file, its pixels per grid pixel, and where the grid begins in them."""


class _Stack:
    """Open files of one scene on the grid of one of them.

    Attributes:
        info: header of the file whose grid is used.
    """

    def __init__(self, rasters: Sequence[Raster], grid: int | None) -> None:
        self._rasters = rasters
        if grid is None:
            areas = [_pixel_area(raster.info) for raster in rasters]
            grid = int(np.argmin(areas))
        self.info = rasters[grid].info
        self._axes = [_axes(self.info, raster.info) for raster in rasters]
        self._dtype = str(np.result_type(*(raster.info.dtype for raster in rasters)))
        self._nodata = _shared_nodata(rasters, self._dtype)

    def spec(self) -> RasterSpec:
        return RasterSpec(
            dtype=self._dtype,
            bands=sum(len(raster.bands) for raster in self._rasters),
            nodata=self._nodata,
            descriptions=_descriptions(self._rasters),
            tags={"BANDS": " ".join(raster.info.path.name for raster in self._rasters)},
            **self.info.georeference(Window.of(self.info.size)),
        )

    def strips(self) -> Iterator[tuple[Window, NDArray[Any]]]:
        """Yield the pixels from the top, in strips of the raster's width; nodata where a file has none."""
        size = self.info.size
        for row in range(0, size.height, BLOCK):
            window = Window(row, 0, min(BLOCK, size.height - row), size.width)
            parts = [self._part(i, window) for i in range(len(self._rasters))]
            image = np.concatenate([values for values, _ in parts], axis=2)
            valid = np.logical_and.reduce([valid for _, valid in parts])
            if self._nodata is not None:
                image[~valid] = self._nodata
            yield window, image

    def _part(self, index: int, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return one file's values on the grid, in the common type, and a mask of pixels with data."""
        raster, axes = self._rasters[index], self._axes[index]
        if axes is None:
            image, valid = raster.read(window)
            return image.astype(self._dtype, copy=False), valid
        rows, cols = taps(window.row, window.row_stop, *axes[0]), taps(window.col, window.col_stop, *axes[1])
        (top, bottom), (left, right) = rows.span, cols.span
        under = Window(top, left, bottom - top, right - left)
        image, valid = raster.read(under)
        values, has_data = resample(
            image, valid, rows.shifted(-top, under.height), cols.shifted(-left, under.width)
        )
        return as_type(values, self._dtype), has_data


def _pixel_area(info: RasterInfo) -> float:
    """Return the area of a pixel in CRS units or, without a transform, as a share of the raster."""
    return 1 / info.size.pixels if info.transform is None else abs(info.transform.determinant)


def _axes(grid: RasterInfo, info: RasterInfo) -> tuple[_Along, _Along] | None:
    """Return the position of a file's rows and columns on a grid; None if the file has that grid."""
    if grid.transform is None or info.transform is None:
        if grid.size == info.size:
            return None
        raise _unlike(grid, info, f"{info.size} pixels and no georeference, against {grid.size}")
    if (grid.crs is None) != (info.crs is None) or (grid.crs and not same_ground(grid.crs, info.crs)):
        names = ["no CRS" if one.crs is None else crs_title(one.crs) for one in (info, grid)]
        raise _unlike(grid, info, f"{names[0]}, against {names[1]}")
    if info.transform.is_degenerate:
        raise _unlike(grid, info, "pixels without area")
    to_file = ~info.transform @ grid.transform
    size, steps = grid.size, (to_file.e, to_file.a)
    far = np.array(to_file @ (size.width, size.height))
    if max(abs(to_file.b) * size.height, abs(to_file.d) * size.width) > _ON_GRID or min(steps) <= 0:
        raise _unlike(grid, info, "other directions of rows and columns")
    corner = np.array([to_file.c, to_file.f])
    off = float(np.abs([corner, far - (info.size.width, info.size.height)]).max())
    if off > max(1.0, *steps):
        raise _unlike(grid, info, f"corners up to {off:,.1f} of its pixels from those of the grid")
    if info.size == size and off <= _ON_GRID:
        return None
    rows = info.size.height, _plain(to_file.e), _plain(to_file.f)
    return rows, (info.size.width, _plain(to_file.a), _plain(to_file.c))


def _plain(pixels: float) -> Fraction:
    """Return a number as a fraction: a simple one, if they differ only by rounding noise of coordinates."""
    near = Fraction(pixels).limit_denominator(1000)
    return near if abs(near - pixels) < _NOISE else Fraction(pixels).limit_denominator(_DENOMINATOR)


def _unlike(grid: RasterInfo, info: RasterInfo, got: str) -> DatasetError:
    return DatasetError(
        info.path, expected=f"the place and extent of {grid.path}, since they are bands of one scene", got=got
    )


def _shared_nodata(rasters: Sequence[Raster], dtype: str) -> float | None:
    """Return the nodata value for all bands; None if every pixel has data."""
    if not any(raster.may_have_nodata for raster in rasters):
        return None
    declared = {raster.info.nodata[band - 1] for raster in rasters for band in raster.bands}
    is_one = len(declared) == 1 and not any(raster.info.scaling for raster in rasters)
    if (value := usable(declared.pop() if is_one else None, dtype)) is not None:
        return value
    if np.dtype(dtype).kind == "f":
        return math.nan
    lacking = [raster.info.path.name for raster in rasters if raster.may_have_nodata]
    raise RasterError(
        rasters[0].info.path,
        expected="files of a scene that all declare one nodata value, or none",
        got=f"some in {', '.join(lacking)}",
        remedy="give all of them one (gdal_edit.py -a_nodata)",
    )


def _descriptions(rasters: Sequence[Raster]) -> list[str | None]:
    """Return a name for each band: the file's own, else the part that distinguishes its file name."""
    words = [_WORDS.split(raster.info.path.stem) for raster in rasters]
    common = set.intersection(*map(set, words)) if len(words) > 1 else set()
    descriptions: list[str | None] = []
    for raster, parts in zip(rasters, words, strict=True):
        apart = "_".join(part for part in parts if part not in common) or None
        for band in raster.bands:
            own = raster.info.descriptions[band - 1]
            numbered = apart if len(raster.bands) == 1 or apart is None else f"{apart}_{band}"
            descriptions.append(own or (numbered if len(rasters) > 1 else None))
    return descriptions
