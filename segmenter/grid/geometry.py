"""Sizes and windows, immutable, in (row, col) order; no bare pair of numbers crosses a module border."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Size:
    """Height and width in pixels; printed as width × height."""

    height: int
    width: int

    def __post_init__(self) -> None:
        if self.height < 0 or self.width < 0:
            raise ValueError(f"a size has no negative side, got {self}")

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.height * self.width

    def round_up(self, multiple: int) -> Size:
        """Return the smallest size, not below this one, whose sides are multiples of `multiple`."""
        return Size(-(-self.height // multiple) * multiple, -(-self.width // multiple) * multiple)

    def at_most(self, side: int) -> Size:
        """Return the size with no side longer than `side`."""
        return Size(min(self.height, side), min(self.width, side))

    def __str__(self) -> str:
        return f"{self.width}×{self.height}"


@dataclass(frozen=True, order=True)
class Window:
    """A rectangle of pixels: top row, left column (both may be negative: outside the raster) and extent."""

    row: int
    col: int
    height: int
    width: int

    def __post_init__(self) -> None:
        if self.height < 0 or self.width < 0:
            raise ValueError(f"a window has no negative side, got {self!r}")

    @classmethod
    def of(cls, size: Size) -> Window:
        """Return the window that covers a whole raster of `size`."""
        return cls(0, 0, size.height, size.width)

    @classmethod
    def middle(cls, size: Size, side: int) -> Window:
        """Return the window in the middle of a raster, no side longer than `side`."""
        part = size.at_most(side)
        return cls((size.height - part.height) // 2, (size.width - part.width) // 2, part.height, part.width)

    @classmethod
    def around(cls, windows: Iterable[Window]) -> Window:
        """Return the smallest window that contains all `windows`; at least one is required."""
        edges = [(w.row, w.col, w.row_stop, w.col_stop) for w in windows]
        row, col = (min(edge[i] for edge in edges) for i in (0, 1))
        return cls(row, col, max(e[2] for e in edges) - row, max(e[3] for e in edges) - col)

    @property
    def size(self) -> Size:
        """Extent in pixels."""
        return Size(self.height, self.width)

    @property
    def row_stop(self) -> int:
        """First row below the window."""
        return self.row + self.height

    @property
    def col_stop(self) -> int:
        """First column right of the window."""
        return self.col + self.width

    def slices(self) -> tuple[slice, slice]:
        """Return row and column slices into an array whose origin is the raster's."""
        return slice(self.row, self.row_stop), slice(self.col, self.col_stop)

    def shifted(self, rows: int, cols: int) -> Window:
        """Return the same extent, moved down by `rows` and right by `cols`."""
        return Window(self.row + rows, self.col + cols, self.height, self.width)

    def relative_to(self, other: Window) -> Window:
        """Return this window in the coordinates of an array that covers `other`."""
        return self.shifted(-other.row, -other.col)

    def intersection(self, other: Window) -> Window:
        """Return the common part of both windows; its height or width is 0 if they do not overlap."""
        row, col = max(self.row, other.row), max(self.col, other.col)
        height = max(0, min(self.row_stop, other.row_stop) - row)
        width = max(0, min(self.col_stop, other.col_stop) - col)
        return Window(row, col, height, width)

    def contains(self, other: Window) -> bool:
        """Return whether every pixel of `other` lies in this window."""
        return self.intersection(other) == other

    def __str__(self) -> str:
        return f"rows {self.row}–{self.row_stop - 1}, columns {self.col}–{self.col_stop - 1}"
