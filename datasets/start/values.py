"""Values of all label files: codes or colours, their pixels, and their palette."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import LabelError, SegmenterError
from segmenter.base.threads import in_threads
from segmenter.grid.geometry import Window
from segmenter.grid.labels import Encoding, packed
from segmenter.raster import LabelRaster, RasterInfo, open_raster

from ..files import in_hash_order
from ..leaks import in_turn, pieces
from .legends import GREY
from .sight import drivers_of

_MOST_FILES, _LOOKED_AT = 20_000, 40
"""Labels that are read whole; those whose palettes are compared, or that show where a value lies."""
_MOST_VALUES = 10_000
"""Values after which no further label is read: no classes have so many."""
_PALETTE, _THUMB = 8192, 512
"""Pixels along a side at which colours of codes are looked up, and where a value lies."""
_FRAME = 0.02
"""Share of an image's side that counts as its border."""


@dataclass(frozen=True)
class LabelValues:
    """Values of label rasters.

    Attributes:
        encoding: codes, or colours as numbers 0xrrggbb.
        why: reason for the encoding.
        pixels: pixels of each value, by value.
        palette: colour 0xrrggbb of each code, where all files have the same palette.
        void: pixels that the files mark as unlabelled, by nodata value, mask or transparency.
        read: number of files read.
        lossy: the files are JPEGs, whose values are nearly those that were meant.
    """

    encoding: Encoding
    why: str
    pixels: dict[int, int]
    palette: dict[int, int]
    void: int
    read: int
    lossy: bool

    @cached_property
    def total(self) -> int:
        """Pixels with a value."""
        return sum(self.pixels.values())

    def as_codes(self) -> LabelValues:
        """Return the codes of colours that all are greys, three equal bands; others as they are."""
        if self.encoding == "codes" or any(value % GREY for value in self.pixels):
            return self
        codes = {value // GREY: pixels for value, pixels in self.pixels.items()}
        return replace(self, encoding="codes", pixels=codes, why=f"{self.why}, all equal, as of codes")

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
    labels = in_hash_order(infos)
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


def _encoding(root: Path, infos: dict[str, RasterInfo]) -> tuple[Encoding, dict[int, int], str]:
    """Return what label files hold, the common palette, and the reason."""
    bands = sum(info.count >= 3 for info in infos.values())
    painted = [path for path, info in infos.items() if info.has_palette]
    seen: dict[int, set[int]] = {}
    for path in painted[:_LOOKED_AT]:
        shape = infos[path].size.at_most(_PALETTE)
        with LabelRaster(root / path) as codes, LabelRaster(root / path, expand_palette=True) as shown:
            raw, colours = (packed(each.stored(shape=shape)[0]).reshape(-1) for each in (codes, shown))
        for code, at in zip(*(each.tolist() for each in np.unique(raw, return_index=True)), strict=True):
            seen.setdefault(code, set()).add(int(colours[at]))
    if bands:
        more = f", {len(painted)} have a palette" if painted else ""
        return "colours", {}, f"{bands} of {len(infos)} label files have three bands{more}"
    if any(len(colours) > 1 for colours in seen.values()):
        return "colours", {}, f"the palettes of {len(painted)} files differ, so only their colours tell"
    more = f" and, in {len(painted)} files, one palette" if painted else ""
    return "codes", {code: min(colours) for code, colours in seen.items()}, f"labels have one band{more}"


def _count(root: Path, infos: dict[str, RasterInfo], colours: bool, path: str) -> tuple[Counter[int], int]:
    """Return the pixels of each value of a label, and those without one."""
    counts, void, size = Counter[int](), 0, infos[path].size
    with in_turn(size), LabelRaster(root / path, expand_palette=colours, drivers=drivers_of(path)) as label:
        for window in pieces(size):
            raw, blank = label.stored(window)
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

    Both are estimated from a few pairs that show the value.
    """
    images = {label: image for image, label in pairs}

    def where(label: str) -> NDArray[np.int64]:
        with suppress(SegmenterError):  # a finding of the check
            with LabelRaster(root / label, expand_palette=colours, drivers=drivers_of(label)) as raster:
                shape = raster.info.size.at_most(_THUMB)
                held = np.isin(packed(raster.stored(shape=shape)[0]), (value, value * GREY))
            with open_raster(root / images[label], (1,), drivers=drivers_of(images[label])) as image:
                light, valid = image.thinned(Window.of(image.info.size), shape)
            rows, cols = (max(1, int(_FRAME * side)) for side in held.shape)
            border = np.ones_like(held)
            border[rows:-rows, cols:-cols] = False
            return np.array(
                [held.sum(), (held & (~valid | (light[..., 0] == 0))).sum(), (held & border).sum()]
            )
        return np.zeros(3, np.int64)

    shown = islice(filter(np.any, map(where, in_hash_order(images))), _LOOKED_AT)
    held, empty, border = np.sum([np.zeros(3, np.int64), *shown], axis=0).tolist()
    return empty / max(1, held), border / max(1, held)
