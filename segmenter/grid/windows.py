"""Windows over a raster: the pixels read together, and the part of each window that is kept.

The law of this module: **every pixel of the raster is kept exactly once.**
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from segmenter.grid.geometry import Size, Window

COLUMN = 1 << 16
"""Width in pixels of a column, mapped from top to bottom before the next one; wider than most rasters."""

SAMPLE_SIDE, _SAMPLED_ACROSS = 64, 4
"""Windows of a sample: side in pixels, and number in each direction."""
_SMALL_PIXELS = 1 << 18
"""Pixels up to which a sample is all of a part: it is decoded whole for any window."""
_ALIGNED = 512
"""A column begins with a block of the map's file (`raster.write.BLOCK`)."""


@dataclass(frozen=True)
class Placement:
    """One window of a tiling: the model sees `read`; only `keep` goes into the result."""

    read: Window
    keep: Window


@dataclass(frozen=True)
class Columns:
    """Part of a raster, cut into columns that are mapped one after the other, each from top to bottom.

    Memory thus depends on a column's width, not on the raster's. Rows are counted through all columns: in a
    part of 100 rows, row 130 is row 30 of the second column.

    Attributes:
        part: the whole part.
        width: maximum width of a column in pixels.
    """

    part: Window
    width: int

    @property
    def step(self) -> int:
        """Pixels from one column to the next: nearly equal, and multiples of a file's blocks."""
        count = max(1, -(-self.part.width // self.width))
        return min(self.width, max(1, round_up(-(-self.part.width // count), math.gcd(self.width, _ALIGNED))))

    def remaining(self, done_rows: int) -> Iterator[Window]:
        """Yield the columns that remain after the first `done_rows` rows."""
        if not self.part.size.pixels:
            return
        index, rows = divmod(done_rows, self.part.height)
        for start in range(index * self.step, self.part.width, self.step):
            width = min(self.step, self.part.width - start)
            yield Window(self.part.row + rows, self.part.col + start, self.part.height - rows, width)
            rows = 0

    def pixels(self, done_rows: int) -> int:
        """Return the number of pixels in the first `done_rows` rows."""
        if not self.part.height:
            return 0
        index, rows = divmod(done_rows, self.part.height)
        whole, here = min(index * self.step, self.part.width), next(self.remaining(done_rows), None)
        return whole * self.part.height + (0 if here is None else rows * here.width)


def _axis(length: int, window: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, first kept, after last kept) along one axis of `length`, windows clipped to it.

    Windows lie `step` apart; the last is moved back to end at the border, so that none is smaller than
    the others. Where two overlap, the border between their kept parts lies in the middle of the overlap.
    """
    kept, last = 0, length - window
    if last <= 0:
        yield 0, 0, length
        return
    for start, after in pairwise(chain(range(0, last, step), (last,))):
        cut = (start + window + after) // 2
        yield start, kept, cut
        kept = cut
    yield last, kept, length


def grid(size: Size, tile: Size, overlap: int = 0) -> Iterator[Placement]:
    """Yield tiles that cover a scene of `size`, neighbours sharing at least `overlap` pixels.

    A scene smaller than the tile gives one window of the tile's size that reaches beyond the scene; its
    `keep` is the scene. Order: row by row.
    """
    if not 0 <= overlap < min(tile.height, tile.width):
        raise ValueError(f"overlap must lie in 0 … {min(tile.height, tile.width) - 1} pixels, got {overlap}")
    for top, keep_top, keep_bottom in _axis(size.height, tile.height, tile.height - overlap):
        for left, keep_left, keep_right in _axis(size.width, tile.width, tile.width - overlap):
            keep = Window(keep_top, keep_left, keep_bottom - keep_top, keep_right - keep_left)
            yield Placement(Window(top, left, tile.height, tile.width), keep)


def halo_windows(
    area: Size | Window, window: Size, halo: int, stride: int, part: Window | None = None
) -> Iterator[Placement]:
    """Yield windows for exact tiled prediction: law 4, *tiles disappear*.

    Args:
        area: the raster in pixels; treated as padded below and right to a multiple of `stride`. For a mosaic,
            its rectangle in the coordinates of the windows.
        window: the largest window; rounded up to a multiple of `stride`.
        halo: pixels next to an inner border of a window that are not kept, at least the model's
            receptive-field radius.
        stride: the model's total stride; every window starts and ends on its grid, which begins at the area's
            corner.
        part: part of the area to keep; None: all of it.

    A window never reaches beyond the padded area: beyond it, the model's own padding must act as on the whole
    raster. All windows have one shape, the smallest that needs no more windows.
    """
    extent = area if isinstance(area, Window) else Window.of(area)
    wanted = (extent if part is None else part.intersection(extent)).relative_to(extent)
    padded, window = extent.size.round_up(stride), window.round_up(stride)
    halo = round_up(halo, stride)
    if min(window.height, window.width) <= 2 * halo:
        raise ValueError(f"a window of {window} pixels keeps nothing inside a halo of {halo}")
    # Counted off row by row: a list of them would grow with the raster.
    for top, bottom, keep_top, keep_bottom in _halo_axis(
        padded.height, (wanted.row, wanted.row_stop), window.height, halo, stride
    ):
        for left, right, keep_left, keep_right in _halo_axis(
            padded.width, (wanted.col, wanted.col_stop), window.width, halo, stride
        ):
            read = Window(top, left, bottom - top, right - left)
            keep = Window(keep_top, keep_left, keep_bottom - keep_top, keep_right - keep_left)
            keep = keep.intersection(wanted)
            if keep.size.pixels:
                yield Placement(read.shifted(extent.row, extent.col), keep.shifted(extent.row, extent.col))


def _halo_axis(
    padded: int, wanted: tuple[int, int], window: int, halo: int, stride: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, stop, first kept, after last kept) along one axis, windows inside 0 … `padded`."""
    first = max(0, wanted[0] // stride * stride - halo)
    last = min(padded, round_up(wanted[1], stride) + halo)
    side = least_window(last - first, window, halo, stride)
    for start, keep, stop in _axis(last - first, side, side - 2 * halo):
        yield first + start, first + start + min(side, last - first), first + keep, first + stop


def least_window(length: int, window: int, halo: int, stride: int) -> int:
    """Return the smallest side with which as few windows cover `length` pixels as with `window`.

    n windows that share 2 · halo with each neighbour cover n · (side − 2 halo) + 2 halo pixels.
    """
    if length <= window:
        return window
    count = -(-(length - 2 * halo) // (window - 2 * halo))
    return min(window, round_up(-(-(length - 2 * halo) // count) + 2 * halo, stride))


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def window_for(size: int, radius: int, stride: int) -> Size:
    """Return a square window of `size` pixels, enlarged if less than half of its side would be kept."""
    halo = -(-radius // stride) * stride
    side = size if size > 2 * halo else 4 * halo
    return Size(side, side).round_up(stride)


def row_strips(size: Size, pixels: int) -> Iterator[Window]:
    """Yield full-width windows of at most `pixels` pixels (but one row at least), from top to bottom."""
    step = max(1, pixels // max(1, size.width))
    for row in range(0, size.height, step):
        yield Window(row, 0, min(step, size.height - row), size.width)


def sample_windows(part: Window) -> list[Window]:
    """Return 16 small windows evenly over a part, from the top; a small part as a whole."""
    if part.size.pixels <= _SMALL_PIXELS:
        return [part]
    height, width, last = min(SAMPLE_SIDE, part.height), min(SAMPLE_SIDE, part.width), _SAMPLED_ACROSS - 1
    rows = sorted({(part.height - height) * i // last for i in range(_SAMPLED_ACROSS)})
    cols = sorted({(part.width - width) * i // last for i in range(_SAMPLED_ACROSS)})
    return [Window(part.row + row, part.col + col, height, width) for row in rows for col in cols]
