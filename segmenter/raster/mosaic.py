"""Mosaics of adjoining files as one raster: windows extend across file borders, so no seams appear.

Each file keeps its own map and pixel coordinates; its neighbours have rows and columns below 0 or beyond its
size. The grid of a model's stride begins at the top left corner of the whole mosaic, so a scene cut into
files gives, bit for bit, the map of the uncut scene.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.base.files import Closing
from segmenter.grid.geometry import Size, Window
from segmenter.raster import Raster, RasterInfo
from segmenter.raster.crs_units import same_ground

_OFF_GRID = 0.05
"""Share of a pixel by which a file may lie off the others' grid: coordinates are rounded in headers."""
_MOST_OPEN = 12
"""Files that are open at a time: one and its eight neighbours, and some."""

Open = Callable[[Path], Raster]


@dataclass(frozen=True)
class _Member:
    info: RasterInfo
    window: Window  # in the coordinates of the first file


class Mosaic:
    """Non-overlapping files of one CRS, grid and type; gaps between them have no data.

    Args:
        paths: paths of the files.
        open_file: opens one file with the model's bands.

    Raises:
        DatasetError: two files do not fit together.
        RasterError: a file cannot be opened.
    """

    def __init__(self, paths: Sequence[Path], open_file: Open) -> None:
        self._open_file = open_file
        infos = []
        for path in paths:
            with open_file(path) as raster:
                infos.append(raster.info)
        self._members = {info.path: _Member(info, _place(infos[0], info)) for info in infos}
        self._list = list(self._members.values())
        self._edges_N4 = np.array(
            [(m.window.row, m.window.col, m.window.row_stop, m.window.col_stop) for m in self._list]
        )
        self._refuse_overlaps()
        top, left = self._edges_N4[:, :2].min(axis=0)
        bottom, right = self._edges_N4[:, 2:].max(axis=0)
        self._extent = Window(int(top), int(left), int(bottom - top), int(right - left))

    @property
    def first(self) -> RasterInfo:
        """Header of the first file, whose grid is the reference."""
        return self._list[0].info

    def absolute(self) -> Mosaic:
        """Return the same mosaic with absolute paths, for a process with another working directory."""
        mosaic = copy.copy(self)
        mosaic._list = [replace(m, info=replace(m.info, path=m.info.path.absolute())) for m in self._list]
        mosaic._members = {m.info.path: m for m in mosaic._list}
        return mosaic

    def view(self, path: Path) -> MosaicView:
        """Return the mosaic in the coordinates of one of its files."""
        return MosaicView(self, self._members[path], self.extent(path), self._open_file)

    def extent(self, path: Path) -> Window:
        """Return the whole mosaic as a window in the coordinates of one of its files."""
        return self._extent.relative_to(self._members[path].window)

    def neighbours(self, path: Path, reach: int) -> list[tuple[Path, RasterInfo]]:
        """Return the other files within `reach` pixels of one; its map also depends on them."""
        own = self._members[path].window
        around = Window(own.row - reach, own.col - reach, own.height + 2 * reach, own.width + 2 * reach)
        return [(m.info.path, m.info) for m in self.touching(around) if m.info.path != path]

    def touching(self, window: Window) -> list[_Member]:
        """Return the files that share pixels with a window."""
        row, col, row_stop, col_stop = self._edges_N4.T
        shares = (row < window.row_stop) & (row_stop > window.row)
        shares &= (col < window.col_stop) & (col_stop > window.col)
        return [self._list[i] for i in np.flatnonzero(shares)]

    def _refuse_overlaps(self) -> None:
        for member in self._list:
            for other in self.touching(member.window):
                if other is not member:
                    shared = member.window.intersection(other.window).size
                    raise DatasetError(
                        "--mosaic",
                        expected=f"files that adjoin, {member.info.path} and {other.info.path} overlap by "
                        f"{shared} pixels",
                        remedy="leave one out, or predict without --mosaic",
                    )


class MosaicView(Closing):
    """A `Raster` that extends beyond its own file; a context manager, for one thread.

    Attributes:
        info: header of the file itself.
        extent: window of the whole mosaic, in the file's pixel coordinates.
    """

    def __init__(self, mosaic: Mosaic, member: _Member, extent: Window, open_file: Open) -> None:
        self._mosaic, self._member, self.extent, self._open_file = mosaic, member, extent, open_file
        self.info = member.info
        self._rasters: OrderedDict[Path, Raster] = OrderedDict()
        self.bands = self._raster(member).bands

    def close(self) -> None:
        """Close all files."""
        while self._rasters:
            self._rasters.popitem()[1].close()

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return pixels and validity as `Raster.read` does, from all files under the window."""
        own = self._member
        if Window.of(own.info.size).contains(window):
            return self._raster(own).read(window)
        image = np.zeros((window.height, window.width, len(self.bands)), self.info.dtype)
        valid = np.zeros((window.height, window.width), np.bool_)
        wanted = window.shifted(own.window.row, own.window.col)
        for member in self._mosaic.touching(wanted):
            part = wanted.intersection(member.window)
            into = part.relative_to(wanted).slices()
            image[into], valid[into] = self._raster(member).read(part.relative_to(member.window))
        return image, valid

    @property
    def apart(self) -> bool:
        """False: a view keeps many files open, and parallel views would open more."""
        return False

    @property
    def partial_remark(self) -> str | None:
        """`Raster.partial_remark` of the file itself."""
        return self._raster(self._member).partial_remark

    def empty(self, window: Window) -> bool:
        """Return True if all files under the window are known to have no data there."""
        own = self._member
        wanted = window.shifted(own.window.row, own.window.col)
        return all(
            self._raster(member).empty(wanted.intersection(member.window).relative_to(member.window))
            for member in self._mosaic.touching(wanted)
        )

    def thinned(self, window: Window, shape: Size) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return `Raster.thinned` of the file itself."""
        return self._raster(self._member).thinned(window, shape)

    def _raster(self, member: _Member) -> Raster:
        path = member.info.path
        if path not in self._rasters:
            if len(self._rasters) >= _MOST_OPEN:
                self._rasters.popitem(last=False)[1].close()
            self._rasters[path] = self._open_file(path)
        self._rasters.move_to_end(path)
        return self._rasters[path]


def _place(first: RasterInfo, info: RasterInfo) -> Window:
    """Return the window of a file in the pixel coordinates of the first."""

    def refuse(why: str) -> DatasetError:
        return DatasetError("--mosaic", expected=f"files of one CRS, grid and type, {why}")

    for one in (first, info):
        if one.transform is None:
            raise refuse(f"{one.path} has no geotransform")
        if one.transform.is_degenerate:
            raise refuse(f"the pixels of {one.path} have no area")
    assert first.transform is not None
    assert info.transform is not None
    if not same_ground(info.crs, first.crs):
        raise refuse(f"{info.path} has {info.crs or 'no CRS'}, {first.path} {first.crs or 'none'}")
    if info.dtype != first.dtype:
        raise refuse(f"{info.path} has {info.dtype}, {first.path} {first.dtype}")
    size, to_first = info.size, ~first.transform
    corner = np.array(to_first @ (info.transform @ (0, 0)))
    far = np.array(to_first @ (info.transform @ (size.width, size.height)))
    across = np.array(to_first @ (info.transform @ (size.width, 0)))
    if not np.isfinite([corner, far, across]).all():
        raise refuse(f"{info.path} is beyond all numbers on the grid of {first.path}")
    col, row = (int(v) for v in np.rint(corner))
    expected = np.array([(col, row), (col + size.width, row + size.height), (col + size.width, row)])
    off = float(np.abs(np.array([corner, far, across]) - expected).max())
    if not off <= _OFF_GRID:
        raise refuse(f"{info.path} lies up to {off:.2g} pixels off the grid of {first.path}")
    return Window(row, col, size.height, size.width)
