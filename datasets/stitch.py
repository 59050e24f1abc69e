"""Stitching of a scene that was cut into a grid, such as Dubai's 3×3 parts, into one GeoTIFF."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.base.threads import in_threads
from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import row_strips
from segmenter.raster import (
    RasterInfo,
    RasterSpec,
    RasterWriter,
    leftovers,
    open_raster,
    raster_info,
    read_label,
)
from segmenter.raster.crs_units import same_ground
from segmenter.raster.header import names_of, order_of
from segmenter.tiles.index import STRIP_PIXELS


def find_parts(pattern: str) -> list[Path]:
    """Return files that match a glob pattern, in numerical order: part_2 before part_10."""
    paths = [Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file()]
    if not paths:
        raise DatasetError(pattern, expected="a pattern that matches the parts, it matches no file")
    return sorted(paths, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    pieces = re.split(r"(\d+)", path.as_posix())
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def stitch(parts: Sequence[Path], columns: int, output: Path, *, progress: bool = True) -> Size:
    """Write the parts, in row-major order, as one GeoTIFF; palettes become colours. Return its size.

    For one process at a time for each output (`base.files.exclusive_outputs`).

    Parts of a row must have equal heights, parts of a column equal widths: if a scene was cut into thirds,
    sizes may differ by a pixel between rows or columns, but not within one.

    Raises:
        DatasetError: the parts do not fill a grid, do not fit together, or differ in bands or type.
        RasterError: a part cannot be read, or the output cannot be written.
    """
    if output.suffix.lower() not in (".tif", ".tiff"):
        raise DatasetError(output, expected="a name that ends in .tif, since a GeoTIFF is written")
    if output.resolve() in {part.resolve() for part in parts}:
        raise DatasetError(output, "is one of the parts", remedy="write to another name")
    if columns < 1 or len(parts) % columns:
        raise DatasetError(expected=f"a multiple of {columns} parts (--columns)", got=len(parts))
    infos = [raster_info(part) for part in parts]
    windows = _windows(infos, columns)
    _same_kind(infos)
    placed = _are_placed(infos, windows)
    size, first = Size(windows[-1].row_stop, windows[-1].col_stop), infos[0]
    georeference = first.georeference(Window.of(first.size)) if placed else {}
    nodata, told = None, {}
    if not first.has_palette:
        nodata = first.nodata[0]
        told = {"descriptions": first.descriptions, "interpretations": first.interpretations}
    jobs = [
        (info, window, strip)
        for info, window in zip(infos, windows, strict=True)
        for strip in row_strips(info.size, STRIP_PIXELS)
    ]
    kept = {"dtype": first.dtype, "bands": _band_count(first), "nodata": nodata, **told, **georeference}
    for left in leftovers(output.parent).get(output.name, ()):  # of killed calls: this one is alone
        left.unlink(missing_ok=True)
    with RasterWriter(output, size, RasterSpec(**kept)) as out:
        rows = in_threads(
            lambda job: _pixels(job[0], job[2]),
            jobs,
            description="stitching",
            unit="piece",
            workers=2,
            progress=progress,
        )
        for (_, window, strip), pixels in zip(jobs, rows, strict=True):
            out.write(strip.shifted(window.row, window.col), pixels)
    return size


def _band_count(info: RasterInfo) -> int:
    return 3 if info.has_palette else info.count


def _windows(infos: Sequence[RasterInfo], columns: int) -> list[Window]:
    heights = [info.size.height for info in infos[::columns]]
    widths = [info.size.width for info in infos[:columns]]
    tops, lefts = ([0, *accumulate(lengths)] for lengths in (heights, widths))
    windows = []
    for i, info in enumerate(infos):
        row, col = divmod(i, columns)
        expected = Size(heights[row], widths[col])
        if info.size != expected:
            raise DatasetError(
                info.path,
                expected=f"{expected} pixels in row {row + 1}, column {col + 1} of the grid, as the first "
                "part of its row is high and the first of its column wide",
                got=info.size,
                remedy="is --columns right?",
            )
        windows.append(Window(tops[row], lefts[col], info.size.height, info.size.width))
    return windows


def _same_kind(infos: Sequence[RasterInfo]) -> None:
    def kind(info: RasterInfo) -> tuple[object, ...]:
        nodata = None if info.has_palette else info.nodata[0]  # of a palette it is an index, gone as a colour
        return _band_count(info), info.dtype, f"nodata {nodata}", *(f"alpha {band}" for band in info.alpha)

    for info in infos:
        if kind(info) != kind(infos[0]):
            expected, got = (", ".join(map(str, kind(i))) for i in (infos[0], info))
            raise DatasetError(
                info.path, expected=f"bands, type and nodata of {infos[0].path.name} ({expected})", got=got
            )
        wanted, names = names_of(infos[0]), names_of(info)
        if order_of(wanted, names, range(1, len(names) + 1)) is not None:
            expected, got = (", ".join(map(str, each)) for each in (wanted, names))
            raise DatasetError(
                info.path, expected=f"bands named {expected} as {infos[0].path.name} has", got=got
            )


def _are_placed(infos: Sequence[RasterInfo], windows: Sequence[Window]) -> bool:
    """Return whether the parts are georeferenced; if so, positions must match the grid."""
    first = infos[0]
    for info, window in zip(infos, windows, strict=True):
        if info.georeferenced != first.georeferenced or not same_ground(info.crs, first.crs):
            raise DatasetError(
                info.path, expected=f"the CRS of {first.path.name} ({first.crs})", got=info.crs
            )
        if first.transform is not None and info.transform is not None:
            for right, down in ((0, 0), (window.width, 0), (window.width, window.height)):
                col, row = ~first.transform @ (info.transform @ (right, down))
                at_row, at_col = window.row + down, window.col + right
                if max(abs(row - at_row), abs(col - at_col)) > 0.5:
                    raise DatasetError(
                        info.path,
                        expected=f"its corner at row {at_row}, column {at_col} of the whole, its "
                        f"georeferencing says row {row:.1f}, column {col:.1f}",
                        remedy="is --columns right, and are all parts' pixels alike?",
                    )
    return first.georeferenced


def _pixels(info: RasterInfo, window: Window) -> NDArray[Any]:
    """Return (H, W) of one band, or (H, W, bands); pixels without data have the nodata value."""
    if info.has_palette:
        return read_label(info.path, window, expand_palette=True)
    with open_raster(info.path, tuple(range(1, info.count + 1))) as raster:
        image, valid = raster.read(window)
    if not valid.all():
        fill = np.nan if image.dtype.kind == "f" and info.nodata[0] is None else info.nodata[0]
        if fill is None:
            raise DatasetError(
                info.path,
                "has pixels without data (a mask) but no nodata value to write them with",
                remedy="set one with gdal_translate -a_nodata",
            )
        image[~valid] = fill
    return image if info.count > 1 else image[..., 0]
