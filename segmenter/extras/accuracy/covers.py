"""Classes and strata of the pixels of maps, window by window; -1 where a pixel has none.

Samples of the pixels of each stratum, drawn while windows of rasters pass by. Each pixel gets a random number
U, and each stratum keeps the pixels of the smallest U / (1 - U) (1 - p) / p, where p is the probability with
which a pixel is to be drawn: Pareto sampling (Rosén 1997, doi 10.1016/S0378-3758(96)00186-3), of fixed size
and without replacement. With one p for all, these are the pixels of the smallest U, a simple random sample.
Memory: a window, and the kept pixels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, RasterError
from segmenter.base.files import Closing
from segmenter.extras.written_map import WrittenMap, check_placed
from segmenter.grid.geometry import Size, Window
from segmenter.raster import Raster, RasterInfo, open_raster, pixel_sides
from segmenter.raster.ground import alignment_errors

_SLACK = 1 << 16
"""Pixels that may wait until surplus ones are dropped."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """Pixels of rasters: number of the raster, position, stratum, class, and random number."""

    raster: NDArray[np.int32]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    stratum: NDArray[np.int64]
    mapped: NDArray[np.int64]
    key: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.key)

    def of(self, which: Any) -> Pixels:
        """Return a selection."""
        return Pixels(*(getattr(self, each.name)[which] for each in fields(self)))

    @staticmethod
    def join(parts: list[Pixels]) -> Pixels:
        """Return all pixels of several selections."""
        names = [each.name for each in fields(Pixels)]
        return Pixels(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Reservoirs:
    """Kept pixels of all strata.

    Args:
        most: pixels to keep of each stratum, one number for all or one for each.
        seed: of all random numbers, with the position of the window.
    """

    def __init__(self, strata: int, most: int | NDArray[np.int64], seed: int) -> None:
        self._most_H, self._seed = np.broadcast_to(np.asarray(most), strata), seed
        self._below = np.full(strata + 1, np.inf)
        self._below[:-1][self._most_H <= 0] = -1.0
        self._below[-1] = -1.0  # of stratum -1: pixels that are left out
        self._parts: list[Pixels] = []
        self._waiting = self._kept = 0

    def add(
        self,
        raster: int,
        window: Window,
        stratum_HW: NDArray[np.int64],
        mapped_HW: NDArray[np.int64],
        probability_HW: NDArray[np.float64] | None = None,
    ) -> None:
        """Take a window of a raster; stratum -1 leaves a pixel out.

        Args:
            probability_HW: of being drawn; None: that of all pixels of a stratum is the same.
        """
        spawned = np.random.SeedSequence(self._seed, spawn_key=(raster, window.row, window.col))
        key_N = np.random.default_rng(spawned).random(stratum_HW.size)
        if probability_HW is not None:
            wanted_N = probability_HW.reshape(-1)
            key_N = key_N / (1 - key_N) * ((1 - wanted_N) / wanted_N)
        stratum_N = stratum_HW.reshape(-1)
        chosen = np.flatnonzero(key_N < self._below[stratum_N])
        if not len(chosen):
            return
        row, col = np.divmod(chosen, window.width)
        found = Pixels(
            np.full(len(chosen), raster, np.int32),
            row + window.row,
            col + window.col,
            stratum_N[chosen],
            mapped_HW.reshape(-1)[chosen],
            key_N[chosen],
        )
        self._parts.append(found)
        self._waiting += len(found)
        if self._waiting > self._kept + _SLACK:
            self._drop()

    def _drop(self) -> None:
        """Keep the pixels of the smallest numbers of each stratum."""
        pixels, rank_N = _rank_pixels(Pixels.join(self._parts))
        most_N = self._most_H[pixels.stratum]
        last = rank_N == most_N - 1
        self._below[pixels.stratum[last]] = pixels.key[last]
        self._parts = [pixels.of(rank_N < most_N)]
        self._waiting = self._kept = len(self._parts[0])

    def sample(self, points_H: NDArray[np.int64]) -> Pixels:
        """Return the sample: of each stratum as many pixels as asked for, at most those kept."""
        pixels, rank_N = _rank_pixels(Pixels.join(self._parts))
        return pixels.of(rank_N < points_H[pixels.stratum])


def _rank_pixels(pixels: Pixels) -> tuple[Pixels, NDArray[np.intp]]:
    """Return pixels ordered by stratum and number, and the rank of each in its stratum, from 0."""
    pixels = pixels.of(np.lexsort((pixels.col, pixels.row, pixels.raster, pixels.key, pixels.stratum)))
    starts = np.flatnonzero(np.diff(pixels.stratum, prepend=-1))
    rank_N = np.arange(len(pixels)) - np.repeat(starts, np.diff([*starts, len(pixels)]))
    return pixels, rank_N


Ids = NDArray[np.int64]
BETWEEN = " → "
"""Text between the classes of a change."""
_CODES = 1 << 16
_MOST_CELLS = 1 << 20
_SIDE = 1024
"""Side in pixels of a window, a multiple of a map's blocks."""


def windows(info: RasterInfo) -> Iterator[Window]:
    """Yield windows that cover a raster once, as it is stored."""
    size = info.size
    width = _SIDE if info.tiled else max(1, size.width)
    height = max(1, _SIDE**2 // width)
    for row in range(0, size.height, height):
        for col in range(0, size.width, width):
            yield Window(row, col, min(height, size.height - row), min(width, size.width - col))


def file_for_map(given: Path, path: Path, endings: Sequence[str] = (".tif", ".tiff")) -> Path:
    """Return the file of an option that belongs to a map: itself, or the file of the map's name in it.

    Raises:
        DatasetError: the folder has none or several.
    """
    if not given.is_dir():
        return given
    found = [
        each for each in sorted(given.iterdir()) if each.stem == path.stem and each.suffix.lower() in endings
    ]
    if len(found) != 1:
        raise DatasetError(
            given, expected=f"one file {path.stem} ({', '.join(endings)}), as {path} is named", got=len(found)
        )
    return found[0]


def check_same_grid(info: RasterInfo, other: RasterInfo) -> None:
    """Refuse a raster whose pixels are not those of a map.

    Raises:
        DatasetError: size or place differ.
    """
    for _, text in alignment_errors(info, other):
        raise DatasetError(f"{text}; bring it to that grid (gdalwarp -t_srs -te -ts)")


class SampledMap(Closing):
    """An open class map, or two as one map of changes; a context manager.

    Attributes:
        names: its classes; of changes, all pairs.
    """

    def __init__(self, path: Path, before: Path | None) -> None:
        """Open a map and, for changes, the older one.

        Raises:
            DatasetError: the map is placed by control points, or the older one lies elsewhere.
            RasterError: a file is no class map.
        """
        with contextlib.ExitStack() as undo:
            self._maps = [undo.enter_context(WrittenMap(path, with_confidence=False))]
            self.info = self._maps[0].info
            check_placed(self.info)
            self.names = tuple(each.name for each in self._maps[0].classes)
            self._count = len(self.names)
            if before is not None:
                self._maps.append(undo.enter_context(WrittenMap(before, with_confidence=False)))
                check_same_grid(self.info, self._maps[1].info)
                olds = [each.name for each in self._maps[1].classes]
                self.names = tuple(f"{old}{BETWEEN}{new}" for old in olds for new in self.names)
            undo.pop_all()

    def close(self) -> None:
        """Close the files; `with` does it too."""
        for one in self._maps:
            one.close()

    def read(self, window: Window) -> Ids:
        """Return (H, W) class numbers."""
        new, *older = (_ids(one, window) for one in self._maps)
        for old in older:
            new = np.where((old >= 0) & (new >= 0), old * self._count + new, -1)
        return new


def _ids(one: WrittenMap, window: Window) -> Ids:
    table = np.full(256, -1, np.int64)
    table[: len(one.classes)] = np.arange(len(one.classes))
    return table[one.read(window)[0]]


class Strata:
    """Strata of several maps: their classes."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self.count = tuple(names), len(names)

    @contextlib.contextmanager
    def open_map(self, number: int, path: Path, info: RasterInfo) -> Iterator[None]:
        """Open what belongs to map `number`, for `read`."""
        yield

    def read(self, window: Window, mapped_HW: Ids) -> Ids:
        """Return the strata of a window of the open map."""
        return mapped_HW

    def name(self, stratum: int) -> str:
        """Return a stratum's name."""
        return self._names[stratum] if self._names else str(stratum)


class MapStrata(Strata):
    """Classes of another map, or the codes of any raster of whole numbers, as strata."""

    def __init__(self, given: Path) -> None:
        self._given = given
        self._known: tuple[str, ...] | None = None
        self.count = _CODES

    @contextlib.contextmanager
    def open_map(self, number: int, path: Path, info: RasterInfo) -> Iterator[None]:
        file = file_for_map(self._given, path)
        try:
            self._one: WrittenMap | Raster = WrittenMap(file, with_confidence=False)
        except RasterError:  # of another program
            self._one = open_raster(file, (1,))
        with self._one:
            self._names = ()
            if isinstance(self._one, WrittenMap):
                self._names = tuple(each.name for each in self._one.classes)
            check_same_grid(info, self._one.info)
            if np.dtype(self._one.info.dtype).kind not in "ui":
                raise DatasetError(file, expected="strata as whole numbers", got=self._one.info.dtype)
            if self._known not in (None, self._names):
                raise DatasetError(file, expected="the classes of the other strata", got=self._names)
            self._known = self._names
            yield

    def read(self, window: Window, mapped_HW: Ids) -> Ids:
        if isinstance(self._one, WrittenMap):
            return _ids(self._one, window)
        raw, valid = self._one.read(window)
        codes = np.where(valid, raw[..., 0], 0)
        low, high = int(codes.min()), int(codes.max())
        if low < 0 or high >= _CODES:
            raise DatasetError(
                self._one.info.path, expected=f"strata from 0 to {_CODES - 1}", got=f"{low} to {high}"
            )
        return np.where(valid, codes.astype(np.int64), -1)


class GridStrata(Strata):
    """Cells of a grid as strata, counted from the upper left corner of each map.

    Args:
        side: of a cell, in metres; in pixels for maps without georeference.
    """

    def __init__(self, side: float, infos: Sequence[RasterInfo]) -> None:
        self._infos, self._number = infos, 0
        self._cells = [_cell(side, info) for info in infos]
        pairs = list(zip(infos, self._cells, strict=True))
        self._across = [-(-info.size.width // cell.width) for info, cell in pairs]
        down = [-(-info.size.height // cell.height) for info, cell in pairs]
        self._first = [0, *np.cumsum(np.multiply(self._across, down)).tolist()]
        self.count = self._first[-1]
        if self.count > _MOST_CELLS:
            raise DatasetError(
                "--grid",
                expected=f"at most {_MOST_CELLS:,} cells",
                got=f"{self.count:,}",
                remedy="take larger",
            )

    @contextlib.contextmanager
    def open_map(self, number: int, path: Path, info: RasterInfo) -> Iterator[None]:
        self._number = number
        yield

    def read(self, window: Window, mapped_HW: Ids) -> Ids:
        cell, first = self._cells[self._number], self._first[self._number]
        down = (window.row + np.arange(window.height)) // cell.height * self._across[self._number]
        across = (window.col + np.arange(window.width)) // cell.width
        cells: Ids = first + down[:, np.newaxis] + across
        return cells

    def name(self, stratum: int) -> str:
        number = int(np.searchsorted(self._first, stratum, side="right")) - 1
        down, across = divmod(stratum - self._first[number], self._across[number])
        return f"{self._infos[number].path.stem} row {down} column {across}"


def _cell(side: float, info: RasterInfo) -> Size:
    down, across = pixel_sides(info) or (1.0, 1.0)
    return Size(max(1, round(side / down)), max(1, round(side / across)))
