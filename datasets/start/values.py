"""Values of all label files: codes or colours, their pixels, and their palette."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from segmenter.base.errors import LabelError, SegmenterError
from segmenter.base.threads import in_threads
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import Colour, Encoding
from segmenter.raster import LabelRaster, RasterInfo, open_raster

from ..pixels import in_turn, pieces
from .legends import as_colour
from .sight import drivers_of, in_hash_order, packed

_MOST_FILES, _LOOKED_AT = 20_000, 40
"""Labels that are read whole; those whose palettes are compared, or that show where a value lies."""
_MOST_VALUES = 10_000
"""Values after which no further label is read: no classes have so many."""
_MOST_PIXELS, _SIDE, _THUMB = 1 << 27, 8192, 512
"""Pixels from which every n-th is read, this many along a side; and along that of a small picture."""
_FRAME = 0.02
"""Share of an image's side that counts as its border."""


@dataclass(frozen=True)
class LabelValues:
    """Values of label rasters.

    Attributes:
        encoding: codes, or colours as numbers 0xrrggbb.
        why: reason for the encoding.
        pixels: pixels of each value, by value.
        palette: colour of each code, where all files have the same palette.
        void: pixels that the files mark as unlabelled, by nodata value, mask or transparency.
        read: number of files read.
        lossy: the files are JPEGs, whose values are nearly those that were meant.
    """

    encoding: Encoding
    why: str
    pixels: dict[int, int]
    palette: dict[int, Colour]
    void: int
    read: int
    lossy: bool

    @property
    def total(self) -> int:
        """Pixels with a value."""
        return sum(self.pixels.values())

    def share(self, value: int) -> float:
        """Return the share of the pixels that have a value."""
        return self.pixels.get(value, 0) / max(1, self.total)

    def common(self, share: float) -> list[int]:
        """Return the values of at least a share of the pixels."""
        return [value for value in self.pixels if self.share(value) >= share]


def count_values(root: Path, infos: dict[str, RasterInfo]) -> LabelValues:
    """Return the values of label rasters; reads them whole, with a bar.

    Args:
        infos: header of each label, by relative path.

    Raises:
        LabelError: a label has no whole numbers, or none has a labelled pixel.
        RasterError: a label cannot be read.
    """
    labels = in_hash_order(list(infos))
    encoding, palette, why = _encoding(root, {label: infos[label] for label in labels})
    pixels, void, read = Counter[int](), 0, 0
    lossy = labels[0].lower().endswith((".jpg", ".jpeg"))
    count = partial(_count, root, infos, encoding == "colours")
    for counts, blank in in_threads(count, labels[:_MOST_FILES], description="values of labels", unit="file"):
        pixels.update(counts)
        void, read = void + blank, read + 1
        if len(pixels) > _MOST_VALUES:
            break
    if not pixels:
        raise LabelError(root, f"none of {len(labels)} label files has a labelled pixel")
    return LabelValues(encoding, why, dict(sorted(pixels.items())), palette, void, read, lossy)


def _encoding(root: Path, infos: dict[str, RasterInfo]) -> tuple[Encoding, dict[int, Colour], str]:
    """Return what label files hold, the common palette, and the reason."""
    bands = sum(info.count >= 3 for info in infos.values())
    painted = [path for path, info in infos.items() if info.has_palette]
    seen: dict[int, set[Colour]] = {}
    for path in painted[:_LOOKED_AT]:
        for code, colour in _palette(root / path, infos[path]):
            seen.setdefault(code, set()).add(colour)
    if bands:
        more = f", {len(painted)} have a palette" if painted else ""
        return "colours", {}, f"{bands} of {len(infos)} label files have three bands{more}"
    if any(len(colours) > 1 for colours in seen.values()):
        return "colours", {}, f"the palettes of {len(painted)} files differ, so only their colours tell"
    more = f" and, in {len(painted)} files, one palette" if painted else ""
    return "codes", {code: min(colours) for code, colours in seen.items()}, f"labels have one band{more}"


def _palette(path: Path, info: RasterInfo) -> Iterator[tuple[int, Colour]]:
    """Yield codes and colours of a label's pixels."""
    with LabelRaster(path) as codes, LabelRaster(path, expand_palette=True) as shown:
        both = [each.stored(shape=_thinned(info.size, _MOST_PIXELS))[0] for each in (codes, shown)]
    values, first = np.unique(both[0], return_index=True)
    colours = packed(both[1]).reshape(-1)[first]
    yield from ((int(value), as_colour(int(colour))) for value, colour in zip(values, colours, strict=True))


def _thinned(size: Size, most: int, side: int = _SIDE) -> Size | None:
    """Return a coarser grid for a raster of more pixels; None for others."""
    return Size(min(size.height, side), min(size.width, side)) if size.pixels > most else None


def _count(root: Path, infos: dict[str, RasterInfo], colours: bool, path: str) -> tuple[dict[int, int], int]:
    """Return the pixels of each value of a label, and those without one."""
    counts, void, size = Counter[int](), 0, infos[path].size
    shape = _thinned(size, _MOST_PIXELS)
    with in_turn(size), LabelRaster(root / path, expand_palette=colours, drivers=drivers_of(path)) as label:
        for window in [Window.of(size)] if shape else pieces(size):
            raw, blank = label.stored(window, shape=shape)
            values = packed(raw) if blank is None else packed(raw)[~blank]
            if values.dtype.kind == "f" and (values != np.rint(values)).any():
                raise LabelError(root / path, expected="whole numbers as codes", got="fractions")
            distinct, pixels = np.unique(values, return_counts=True)
            counts.update(dict(zip(map(int, distinct.tolist()), pixels.tolist(), strict=True)))
            void += 0 if blank is None else int(blank.sum())
    return counts, void


def empty_share(
    root: Path, pairs: Sequence[tuple[str, str]], value: int, *, colours: bool
) -> tuple[float, float]:
    """Return the shares of a value's pixels where the image is empty (no data, or zero), and at its border.

    Both are estimated from a few pairs of equal size that show the value.
    """
    images = {label: image for image, label in pairs}
    sums, shown = np.zeros(3), 0
    for label in in_hash_order(list(images)):
        try:
            with LabelRaster(root / label, expand_palette=colours, drivers=drivers_of(label)) as raster:
                size = raster.info.size
                shape = _thinned(size, 0, _THUMB) or size
                held = packed(raster.stored(shape=shape)[0]) == value
            if not held.any():
                continue
            with open_raster(root / images[label], (1,), drivers=drivers_of(images[label])) as image:
                light, valid = image.thinned(Window.of(image.info.size), shape)
        except SegmenterError:
            continue  # its pair is left out, by name
        rows, cols = (max(1, int(_FRAME * side)) for side in held.shape)
        border = np.ones_like(held)
        border[rows:-rows, cols:-cols] = False
        sums += held.sum(), (held & (~valid | (light[..., 0] == 0))).sum(), (held & border).sum()
        if (shown := shown + 1) == _LOOKED_AT:
            break
    return float(sums[1] / max(1, sums[0])), float(sums[2] / max(1, sums[0]))
