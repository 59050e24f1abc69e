"""Values of all label files: codes or colours, with pixels, files and palette."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import LabelError, SegmenterError
from segmenter.base.threads import in_threads
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import Colour
from segmenter.raster import LabelRaster, RasterInfo, open_raster

from ..pixels import in_turn, pieces
from .sight import drivers_of, in_hash_order

_MOST_FILES = 20_000
"""Labels that are read whole; of more, an arbitrary selection."""
_LOOKED_AT = 40
"""Files whose palettes are compared, and those that are looked at for where a value lies."""
_MOST_PIXELS = 1 << 27
_SIDE = 8192
"""Of a larger raster, every n-th pixel is read, this many along a side."""
_FRAME = 0.02
"""Share of an image's side that counts as its border."""


@dataclass(frozen=True)
class LabelValues:
    """Values of label rasters.

    Attributes:
        encoding: codes, or colours as numbers 0xrrggbb.
        pixels: pixels of each value, by value.
        files: number of files with each value.
        palette: colour of each code, where all files have the same palette.
        void: pixels that the files mark as unlabelled, by nodata value, mask or transparency.
        read: number of files read.
        why: reason for the encoding.
    """

    encoding: Literal["codes", "colours"]
    pixels: dict[int, int]
    files: dict[int, int]
    palette: dict[int, Colour]
    void: int
    read: int
    why: str

    @property
    def total(self) -> int:
        """Pixels with a value."""
        return sum(self.pixels.values())

    def share(self, value: int) -> float:
        """Return the share of the pixels that have a value."""
        return self.pixels.get(value, 0) / max(1, self.total)


def as_colour(value: int) -> Colour:
    """Return 0xrrggbb as three values."""
    return value >> 16, value >> 8 & 255, value & 255


def count_values(root: Path, infos: dict[str, RasterInfo]) -> LabelValues:
    """Return the values of label rasters; reads them whole, with a bar.

    Args:
        infos: header of each label, by relative path.

    Raises:
        LabelError: no label can be read, or values are no codes.
    """
    encoding, palette, why = _encoding(root, infos)
    labels = in_hash_order(list(infos))[:_MOST_FILES]

    def count(path: str) -> tuple[Counter[int], int] | None:
        try:
            return _count(root / path, path, infos[path], encoding == "colours")
        except SegmenterError:
            return None  # its pair is left out, by name

    pixels, files, void, read = Counter[int](), Counter[int](), 0, 0
    for found in in_threads(count, labels, description="values of labels", unit="file"):
        if found is not None:
            pixels += found[0]
            files.update(found[0].keys())
            void, read = void + found[1], read + 1
    if not pixels:
        raise LabelError(f"{root}: none of {len(labels)} label files has a labelled pixel")
    return LabelValues(encoding, dict(sorted(pixels.items())), dict(files), palette, void, read, why)


def _encoding(
    root: Path, infos: dict[str, RasterInfo]
) -> tuple[Literal["codes", "colours"], dict[int, Colour], str]:
    """Return what label files hold, the common palette, and the reason."""
    bands = Counter("3" if info.count >= 3 else "1" for info in infos.values())
    painted = [path for path in in_hash_order(list(infos)) if infos[path].has_palette]
    colours: dict[int, set[Colour]] = {}
    for path in painted[:_LOOKED_AT]:
        for code, colour in _palette(root / path, infos[path]):
            colours.setdefault(code, set()).add(colour)
    mixed = any(len(seen) > 1 for seen in colours.values())
    if bands["3"] and painted:
        return "colours", {}, f"{bands['3']} labels have three bands of colours, {len(painted)} a palette"
    if bands["3"]:
        return "colours", {}, f"labels have three bands, of {bands['3']} files"
    if mixed:
        return "colours", {}, f"the palettes of {len(painted)} files differ, so only their colours tell"
    why = "labels have one band"
    if painted:
        why += f" and, in {len(painted)} files, one palette"
    return "codes", {code: next(iter(seen)) for code, seen in colours.items()}, why


def _palette(path: Path, info: RasterInfo) -> Iterator[tuple[int, Colour]]:
    """Yield codes and colours of a label's pixels."""
    shape = _shape(info)
    with LabelRaster(path) as codes, LabelRaster(path, expand_palette=True) as shown:
        code_HW, colour_HWC = codes.stored(shape=shape)[0], shown.stored(shape=shape)[0]
    values, first = np.unique(code_HW, return_index=True)
    for value, colour in zip(values, colour_HWC.reshape(-1, 3)[first], strict=True):
        yield int(value), (int(colour[0]), int(colour[1]), int(colour[2]))


def _shape(info: RasterInfo) -> Size | None:
    """Return a coarser grid for a large raster; None for others."""
    size = info.size
    if size.pixels <= _MOST_PIXELS:
        return None
    return Size(min(size.height, _SIDE), min(size.width, _SIDE))


def _count(path: Path, name: str, info: RasterInfo, colours: bool) -> tuple[Counter[int], int]:
    """Return the pixels of each value of a label, and those without one."""
    counts, void = Counter[int](), 0
    with in_turn(info.size), LabelRaster(path, expand_palette=colours, drivers=drivers_of(name)) as label:
        shape = _shape(info)
        for window in [None] if shape is not None else pieces(info.size):
            raw, blank = label.stored(window, shape=shape)
            packed = packed_values(raw, name)
            if blank is not None:
                void += int(blank.sum())
                packed = packed[~blank]
            values, pixels = np.unique(packed, return_counts=True)
            counts.update(dict(zip(values.tolist(), pixels.tolist(), strict=True)))
    return counts, void


def packed_values(raw: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Return whole numbers of (H, W) codes or (H, W, 3) colours.

    Raises:
        LabelError: values are no whole numbers.
    """
    if raw.ndim == 3:
        r, g, b = (raw[..., i].astype(np.int64) for i in range(3))
        packed: NDArray[np.int64] = (r << 16) | (g << 8) | b
        return packed
    if raw.dtype.kind == "f":
        raw = np.where(np.isfinite(raw), raw, -1)
        if (raw != np.rint(raw)).any():
            raise LabelError(f"{name}: expected whole numbers as codes, got fractions")
    return raw.astype(np.int64)


def empty_share(
    root: Path, pairs: Sequence[tuple[str, str]], value: int, *, colours: bool
) -> tuple[float, float]:
    """Return the shares of a value's pixels where the image is empty (without data, or zero), and at its border.

    Both are estimated from a few pairs of equal size that show the value.
    """
    seen = empty = border = 0
    order = {label: image for image, label in pairs}
    for label in in_hash_order(list(order)):
        try:
            with LabelRaster(root / label, expand_palette=colours) as raster:
                size = raster.info.size
                shape = Size(min(size.height, 512), min(size.width, 512))
                held = packed_values(raster.stored(shape=shape)[0], label) == value
            if not held.any():
                continue
            with open_raster(root / order[label], (1,), drivers=drivers_of(order[label])) as image:
                if image.info.size != size:
                    continue
                light, valid = image.thinned(Window.of(size), shape)
        except SegmenterError:
            continue
        rows, cols = (max(1, int(_FRAME * side)) for side in held.shape)
        inner = np.zeros_like(held)
        inner[rows:-rows, cols:-cols] = True
        empty += int((held & (~valid | (light[..., 0] == 0))).sum())
        border += int((held & ~inner).sum())
        seen += int(held.sum())
        if seen > _LOOKED_AT * 1000:
            break
    return empty / max(1, seen), border / max(1, seen)
