"""Values of all label files: codes or colours, their pixels, and their palette."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import LabelError, RasterError, SegmenterError
from segmenter.base.threads import in_threads
from segmenter.grid.geometry import Window
from segmenter.grid.labels import Encoding, pack_colours
from segmenter.raster import KnownRasters, LabelRaster, RasterInfo, open_raster
from segmenter.raster.placement import LabelPart

from ..contents import in_turn, pieces
from ..files import in_hash_order
from .legends import GREY
from .sight import drivers_of

_MOST_FILES, _LOOKED_AT = 20_000, 40
"""Labels that are read whole; those whose palettes are compared, or that show where a value lies."""
_MOST_VALUES = 10_000
"""Values after which no further label is read: no classes have so many."""
_PALETTE, _THUMB = 8192, 512
"""Pixels along a side at which colours of codes are looked up, and where a value lies."""
_FILES = 3
"""Files of a scene of several that show where it is empty."""
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
        damaged: files whose pixels cannot be read, with the reason.
    """

    encoding: Encoding
    why: str
    pixels: dict[int, int]
    palette: dict[int, int]
    void: int
    read: int
    lossy: bool
    damaged: dict[str, str] = field(default_factory=dict)

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


Tally = tuple[dict[int, int], int]
"""Pixels of each value as it is stored, and pixels without one."""


def count_values(
    root: Path,
    infos: dict[str, RasterInfo],
    tallies: Mapping[str, Tally] = MappingProxyType({}),
    files: KnownRasters | None = None,
    parts: Mapping[str, Sequence[LabelPart]] = MappingProxyType({}),
) -> LabelValues:
    """Return the values of label rasters; reads them, with a bar.

    Args:
        infos: header of each label, by relative path.
        tallies: those of labels that were read with their header.
        parts: those of labels that images lie on; of others all is counted.
        files: opener that knows labels which were read before; None: none was.

    Raises:
        LabelError: a label has no whole numbers, or none has a labelled pixel.
        RasterError: none can be read.
    """
    labels = in_hash_order(infos)
    encoding, palette, why = _encoding(root, {label: infos[label] for label in labels})
    pixels, void, read, damaged = Counter[int](), 0, 0, dict[str, str]()
    lossy = labels[0].lower().endswith((".jpg", ".jpeg"))
    as_stored = {path for path in tallies if encoding == "codes" or infos[path].count > 2}
    known = {path: tallies[path] for path in as_stored - parts.keys()}
    count = partial(_count, root, infos, encoding == "colours", known, files or KnownRasters(), parts)
    some = labels[:_MOST_FILES]
    found = in_threads(count, some, description="values of labels", unit="file")
    for label, (counts, blank) in zip(some, found, strict=True):
        if isinstance(counts, RasterError):
            damaged[label] = str(counts)
            continue
        pixels.update(counts)
        void, read = void + blank, read + 1
        if len(pixels) > _MOST_VALUES:
            break
    if len(damaged) == len(labels):
        raise RasterError(root, f"none of {len(labels)} label files can be read; {damaged[labels[0]]}")
    if not pixels:
        raise LabelError(root, f"none of {len(labels)} label files has a labelled pixel")
    return LabelValues(encoding, why, dict(sorted(pixels.items())), palette, void, read, lossy, damaged)


def palette_of_any(infos: Mapping[str, RasterInfo]) -> bool:
    """Return whether a label has a palette, so that its stored values are not its colours."""
    return any(info.has_palette for info in infos.values())


def _encoding(root: Path, infos: dict[str, RasterInfo]) -> tuple[Encoding, dict[int, int], str]:
    """Return what label files hold, the common palette, and the reason."""
    bands = sum(info.count >= 3 for info in infos.values())
    painted = [path for path, info in infos.items() if info.has_palette]
    seen: dict[int, set[int]] = {}
    for path in painted[:_LOOKED_AT]:
        shape = infos[path].size.at_most(_PALETTE)
        with suppress(RasterError):  # a damaged file, which is left out
            with LabelRaster(root / path) as codes, LabelRaster(root / path, expand_palette=True) as shown:
                raw, colours = (
                    pack_colours(each.stored_values(shape=shape)[0]).reshape(-1) for each in (codes, shown)
                )
            for code, at in zip(*(each.tolist() for each in np.unique(raw, return_index=True)), strict=True):
                seen.setdefault(code, set()).add(int(colours[at]))
    if bands:
        more = f", {len(painted)} have a palette" if painted else ""
        return "colours", {}, f"{bands} of {len(infos)} label files have three bands{more}"
    if any(len(colours) > 1 for colours in seen.values()):
        return "colours", {}, f"the palettes of {len(painted)} files differ, so only their colours tell"
    more = f" and, in {len(painted)} files, one palette" if painted else ""
    return "codes", {code: min(colours) for code, colours in seen.items()}, f"labels have one band{more}"


def _count(
    root: Path,
    infos: dict[str, RasterInfo],
    colours: bool,
    tallies: Mapping[str, Tally],
    files: KnownRasters,
    parts: Mapping[str, Sequence[LabelPart]],
    path: str,
) -> tuple[dict[int, int] | RasterError, int]:
    """Return the pixels of each value of a label, and those without one; or why it cannot be read."""
    if (known := tallies.get(path)) is not None:
        return known
    try:
        opened = files.label(root / path, expand_palette=colours, drivers=drivers_of(path))
        with in_turn(infos[path].size), opened as label:
            return tally_of(label, parts.get(path))
    except RasterError as error:
        return error, 0


def tally_of(label: LabelRaster, parts: Sequence[LabelPart] | None = None) -> Tally:
    """Return the pixels of each value of an open label, or of parts of it, and those without one.

    Raises:
        LabelError: a value is no whole number.
        RasterError: it cannot be read.
    """
    counts, void = Counter[int](), 0
    whole = Window.of(label.info.size)
    boxes = [(whole, None)] if parts is None else [(part.window, part) for part in parts]
    for window, part in (
        (piece.shifted(box.row, box.col), part) for box, part in boxes for piece in pieces(box.size)
    ):
        raw, blank = label.stored_values(window)
        values = pack_colours(raw)
        if part is not None:
            inside = part.covers(window)
            values, blank = values[inside], None if blank is None else blank[inside]
        values = values if blank is None else values[~blank]
        if values.dtype.kind == "f" and (values != np.rint(values)).any():
            raise LabelError(label.info.path, expected="whole numbers as codes", got="fractions")
        counts.update(_count_values(values))
        void += 0 if blank is None else int(blank.sum())
    return dict(counts), void


def _count_values(values: NDArray[Any]) -> dict[int, int]:
    """Return the pixels of each value; bytes are counted without sorting them."""
    if values.dtype == np.uint8:
        counts = np.bincount(values.reshape(-1), minlength=256)
        there = np.flatnonzero(counts)
        return dict(zip(there.tolist(), counts[there].tolist(), strict=True))
    distinct, pixels = np.unique(values, return_counts=True)
    return dict(zip(map(int, distinct.tolist()), pixels.tolist(), strict=True))


@dataclass(frozen=True)
class Whereabouts:
    """Shares of a value's pixels.

    Attributes:
        void: where the image has no data, as it declares.
        empty: there, or where all bands of an image that declares nothing are 0.
        border: at the image's border.
        bands: bands of the images.
    """

    void: float = 0.0
    empty: float = 0.0
    border: float = 0.0
    bands: int = 0


def whereabouts(
    root: Path,
    pairs: Sequence[tuple[Sequence[str], str]],
    value: int,
    *,
    colours: bool,
    tallies: Mapping[str, Tally],
    files: KnownRasters,
) -> Whereabouts:
    """Return where a value lies in images, estimated from a few pairs that show it.

    Of an image that declares nodata, a mask or alpha, 0 is a measurement.

    Args:
        pairs: files of the image, and the label.
        tallies, files: see `count_values`.
    """
    images = {label: own for own, label in pairs}
    lacking = {label for label, (pixels, _) in tallies.items() if not {value, value * GREY} & pixels.keys()}
    lacking = set() if colours else lacking  # whose values are not those that were counted

    def where(label: str) -> NDArray[np.int64]:
        with suppress(SegmenterError):  # a finding of the check
            with files.label(root / label, expand_palette=colours, drivers=drivers_of(label)) as raster:
                shape = raster.info.size.at_most(_THUMB)
                held = np.isin(pack_colours(raster.stored_values(shape=shape)[0]), (value, value * GREY))
            if not held.any():
                return np.zeros(5, np.int64)
            void, dark, bands = np.zeros_like(held), np.ones_like(held), 0
            for path in images[label][:: max(1, len(images[label]) // _FILES)]:
                with open_raster(root / path, drivers=drivers_of(path)) as image:
                    light, valid = image.thinned(Window.of(image.info.size), shape)
                    measured = any(each is not None for each in image.info.nodata) or image.info.alpha
                    declares = bool(measured) or not valid.all()
                void, bands = void | ~valid, bands + light.shape[2]
                dark &= np.False_ if declares else (light == 0).all(axis=2)
            rows, cols = (max(1, int(_FRAME * side)) for side in held.shape)
            border = np.ones_like(held)
            border[rows:-rows, cols:-cols] = False
            parts = held, held & void, held & (void | dark), held & border
            return np.array([*(int(part.sum()) for part in parts), bands])
        return np.zeros(5, np.int64)

    shown = list(islice(filter(np.any, map(where, in_hash_order(images.keys() - lacking))), _LOOKED_AT))
    held, void, empty, border, _ = np.sum([np.zeros(5, np.int64), *shown], axis=0).tolist()
    bands = max((int(counts[4]) for counts in shown), default=0)
    least = max(1, held)
    return Whereabouts(void / least, empty / least, border / least, bands)
