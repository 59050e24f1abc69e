"""Classes and strata of the pixels of maps, window by window; -1 where a pixel has none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, RasterError, counted
from segmenter.extras.vectors.vectorise import check_placed
from segmenter.grid.geometry import Size, Window
from segmenter.raster import Raster, RasterInfo, open_raster, pixel_sides
from segmenter.raster.ground import alignment_errors
from segmenter.raster.written_map import WrittenMap

Ids = NDArray[np.int64]
_CODES = 1 << 16
_MOST_CELLS = 1 << 20
_SIDE, _STRIP = 2048, 1 << 22
"""Pixels of a window's side, a multiple of a map's blocks; pixels of a window of a raster stored in rows."""
BETWEEN = " → "
"""Text between the classes of a change."""


def windows(info: RasterInfo) -> Iterator[Window]:
    """Yield windows that cover a raster once, as it is stored."""
    size = info.size
    width = _SIDE if info.tiled else size.width
    height = _SIDE if info.tiled else max(1, _STRIP // max(1, width))
    for row in range(0, size.height, height):
        for col in range(0, size.width, width):
            yield Window(row, col, min(height, size.height - row), min(width, size.width - col))


def beside(given: Path, path: Path) -> Path:
    """Return the file of an option that belongs to a map: itself, or the file of the map's name in it."""
    if not given.is_dir():
        return given
    found = [
        each for each in sorted(given.glob(f"{path.stem}.*")) if each.suffix.lower() in (".tif", ".tiff")
    ]
    if len(found) != 1:
        raise DatasetError(
            f"{given}: expected one file {path.stem}.tif, as {path} has that name, got {len(found)}"
        )
    return found[0]


class Cover(contextlib.ExitStack):
    """An open class map, or two as one map of changes; a context manager.

    Attributes:
        info: header of the map.
        names: its classes; of changes, all pairs.
    """

    def __init__(self, path: Path, before: Path | None) -> None:
        """Open a map and, for changes, the older one.

        Raises:
            DatasetError: the map is placed by control points, or the older one lies elsewhere.
            RasterError: a file is no class map.
        """
        super().__init__()
        with contextlib.ExitStack() as undo:
            self._map = undo.enter_context(WrittenMap(path, with_confidence=False))
            self.info = self._map.info
            check_placed(self.info)
            self.names = tuple(each.name for each in self._map.classes)
            self._count, self._before = len(self.names), None
            if before is not None:
                self._before = undo.enter_context(WrittenMap(before, with_confidence=False))
                _check_same_grid(self.info, self._before.info)
                olds = [each.name for each in self._before.classes]
                self.names = tuple(f"{old}{BETWEEN}{new}" for old in olds for new in self.names)
            self.enter_context(undo.pop_all())

    def read(self, window: Window) -> Ids:
        """Return (H, W) class numbers."""
        ids = self._ids(self._map, window)
        if self._before is not None:
            old = self._ids(self._before, window)
            ids = np.where((old >= 0) & (ids >= 0), old * self._count + ids, -1)
        return ids

    @staticmethod
    def _ids(one: WrittenMap, window: Window) -> Ids:
        table = np.full(256, -1, np.int64)
        table[: len(one.classes)] = np.arange(len(one.classes))
        return table[one.read(window)[0]]


def _check_same_grid(info: RasterInfo, other: RasterInfo) -> None:
    for _, text in alignment_errors(info, other):
        raise DatasetError(f"{text}; bring it to that grid (gdalwarp -te -ts -t_srs)")


class Strata(Protocol):
    """Strata of several maps.

    Attributes:
        count: number of strata that may occur.
    """

    count: int

    def opened(self, number: int, path: Path, info: RasterInfo) -> contextlib.AbstractContextManager[None]:
        """Open what belongs to map `number`, for `read`."""

    def read(self, window: Window, mapped_HW: Ids) -> Ids:
        """Return the strata of a window of the open map."""

    def name(self, stratum: int) -> str:
        """Return a stratum's name."""


@dataclass
class ClassStrata:
    """The map's classes as strata."""

    names: Sequence[str]

    def __post_init__(self) -> None:
        self.count = len(self.names)

    def opened(self, number: int, path: Path, info: RasterInfo) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def read(self, window: Window, mapped_HW: Ids) -> Ids:
        return mapped_HW

    def name(self, stratum: int) -> str:
        return self.names[stratum]


class MapStrata:
    """Classes of another map, or the codes of any raster of whole numbers, as strata."""

    count = _CODES

    def __init__(self, given: Path) -> None:
        self._given = given
        self._one: WrittenMap | Raster | None = None
        self._names: tuple[str, ...] | None = None

    @contextlib.contextmanager
    def opened(self, number: int, path: Path, info: RasterInfo) -> Iterator[None]:
        file = beside(self._given, path)
        names: tuple[str, ...] = ()
        one: WrittenMap | Raster
        try:
            one = WrittenMap(file, with_confidence=False)
            names = tuple(each.name for each in one.classes)
        except RasterError:  # of another program
            one = open_raster(file, (1,))
        with one:
            _check_same_grid(info, one.info)
            if np.dtype(one.info.dtype).kind not in "ui":
                raise DatasetError(f"{file}: expected strata as whole numbers, got {one.info.dtype}")
            if self._names not in (None, names):
                raise DatasetError(f"{file}: expected the classes of the other maps of strata, got {names}")
            self._names, self._one = names, one
            yield

    def read(self, window: Window, mapped_HW: Ids) -> Ids:
        assert self._one is not None
        if isinstance(self._one, WrittenMap):
            return Cover._ids(self._one, window)
        raw, valid = self._one.read(window)
        codes = raw[..., 0].astype(np.int64)
        if ((wrong := codes[valid]) < 0).any() or (wrong >= _CODES).any():
            raise DatasetError(
                f"{self._one.info.path}: expected strata from 0 to {_CODES - 1}, got "
                f"{wrong.min()} to {wrong.max()}"
            )
        return np.where(valid, codes, -1)

    def name(self, stratum: int) -> str:
        return self._names[stratum] if self._names else str(stratum)


class GridStrata:
    """Cells of a grid as strata, counted from the upper left corner of each map.

    Args:
        side: of a cell, in metres; in pixels for maps without georeference.
        infos: headers of the maps.
    """

    def __init__(self, side: float, infos: Sequence[RasterInfo]) -> None:
        self._infos = infos
        self._cell = [_cell(side, info) for info in infos]
        self._across = [
            -(-info.size.width // cell.width) for info, cell in zip(infos, self._cell, strict=True)
        ]
        down = [-(-info.size.height // cell.height) for info, cell in zip(infos, self._cell, strict=True)]
        self._first = np.cumsum([0, *(a * d for a, d in zip(self._across, down, strict=True))])
        self.count = int(self._first[-1])
        if self.count > _MOST_CELLS:
            raise DatasetError(
                f"--grid: expected at most {_MOST_CELLS:,} cells, got {counted(self.count, 'cell')}"
            )
        self._number = 0

    @contextlib.contextmanager
    def opened(self, number: int, path: Path, info: RasterInfo) -> Iterator[None]:
        self._number = number
        yield

    def read(self, window: Window, mapped_HW: Ids) -> Ids:
        cell, first = self._cell[self._number], int(self._first[self._number])
        down = (window.row + np.arange(window.height)) // cell.height * self._across[self._number]
        across = (window.col + np.arange(window.width)) // cell.width
        return np.where(mapped_HW >= 0, first + down[:, np.newaxis] + across, -1)

    def name(self, stratum: int) -> str:
        number = int(np.searchsorted(self._first, stratum, side="right")) - 1
        down, across = divmod(stratum - int(self._first[number]), self._across[number])
        return f"{self._infos[number].path.stem} row {down} column {across}"


def _cell(side: float, info: RasterInfo) -> Size:
    down, across = pixel_sides(info) or (1.0, 1.0)
    return Size(max(1, round(side / down)), max(1, round(side / across)))
