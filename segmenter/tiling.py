"""Windows over a raster: which pixels are read together, and which of them are kept.

The law of this module: **every pixel of the raster is kept exactly once.**
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from segmenter.geometry import Size, Window


@dataclass(frozen=True)
class Placement:
    """One window of a tiling: `read` is what the model sees, `keep` the part of it that is its own."""

    read: Window
    keep: Window


def _axis(length: int, window: int, step: int) -> list[tuple[int, int, int]]:
    """(start, first kept, after last kept) along one axis of `length`, windows clipped to it.

    Windows lie `step` apart; the last is moved back to end at the border, so that none is smaller than
    the others. Where two overlap, the border between their kept parts lies in the middle of the overlap.
    """
    if length <= window:
        return [(0, 0, length)]
    starts = [*range(0, length - window, step), length - window]
    cuts = [0, *((a + window + b) // 2 for a, b in pairwise(starts)), length]
    return [(start, cuts[i], cuts[i + 1]) for i, start in enumerate(starts)]


def grid(size: Size, tile: Size, overlap: int = 0) -> Iterator[Placement]:
    """Tiles of `tile` pixels that cover a scene of `size`, neighbours sharing at least `overlap` pixels.

    A scene smaller than the tile gives one window of the tile's size that reaches beyond the scene; its
    `keep` is the scene. Order: row by row.
    """
    if not 0 <= overlap < min(tile.height, tile.width):
        raise ValueError(f"overlap must lie in 0 … {min(tile.height, tile.width) - 1} pixels, got {overlap}")
    for top, keep_top, keep_bottom in _axis(size.height, tile.height, tile.height - overlap):
        for left, keep_left, keep_right in _axis(size.width, tile.width, tile.width - overlap):
            keep = Window(keep_top, keep_left, keep_bottom - keep_top, keep_right - keep_left)
            yield Placement(Window(top, left, tile.height, tile.width), keep)


def halo_windows(area: Size, window: Size, halo: int, stride: int) -> Iterator[Placement]:
    """Windows for exact tiled prediction: law 4, *tiles disappear*.

    Args:
        area: the raster in pixels; it is thought of as padded below and right to a multiple of `stride`.
        window: the largest window; rounded up to a multiple of `stride`.
        halo: pixels next to an inner border of a window that are not kept, at least the model's
            receptive-field radius.
        stride: the model's total stride; every window starts and ends on its grid.

    A window never reaches beyond the padded raster: there, the model's own padding must act where it
    would act on the whole raster. Windows all have one shape unless the raster is smaller than one.
    """
    padded, window = area.round_up(stride), window.round_up(stride)
    halo = -(-halo // stride) * stride
    if min(window.height, window.width) <= 2 * halo:
        raise ValueError(f"a window of {window} pixels keeps nothing inside a halo of {halo}")
    for top, keep_top, keep_bottom in _axis(padded.height, window.height, window.height - 2 * halo):
        for left, keep_left, keep_right in _axis(padded.width, window.width, window.width - 2 * halo):
            read = Window(top, left, min(window.height, padded.height), min(window.width, padded.width))
            keep = Window(keep_top, keep_left, keep_bottom - keep_top, keep_right - keep_left)
            yield Placement(read, keep.intersection(Window.of(area)))
