"""Names of bands, as files give them, and the order in which they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from segmenter.raster.header import RasterInfo

_NO_NAMES = {"gray", "grey", "undefined", "palette", "alpha", ""}
"""Interpretations that tell no band from another."""

Names = tuple[str | None, ...]


def names_of(info: RasterInfo) -> Names:
    """Return the name of each band of a file, in small letters; None of one without, or with another's name.

    A description goes first. Where no band has one, it is the colour that the file gives it.
    """
    texts = [" ".join((text or "").split()).casefold() for text in info.descriptions]
    if not any(texts):
        texts = ["" if each.casefold() in _NO_NAMES else each.casefold() for each in info.interpretations]
    counts = Counter(texts)
    return tuple(text if text and counts[text] == 1 else None for text in texts)


def used_names(info: RasterInfo, bands: Sequence[int]) -> Names:
    """Return the names of the bands that are read, in that order; empty where none has one."""
    names = names_of(info)
    used = tuple(names[band - 1] for band in bands)
    return used if any(used) else ()


def order_of(wanted: Names, names: Names, bands: Sequence[int]) -> tuple[int, ...] | None:
    """Return the bands of a file, from 1, that have the wanted names, where `bands` are others.

    Args:
        wanted: name of each band that a model takes; empty where none is known.
        names: of all bands of the file.
        bands: that are read, from 1.

    Returns:
        None where no name contradicts: all fit, or the names wanted are nowhere in the file. () where one
        does, and not all names wanted are there.
    """
    if len(wanted) != len(bands):
        return None
    taken = [names[band - 1] for band in bands]
    elsewhere = [want for want, got in zip(wanted, taken, strict=True) if want != got and want in names]
    if not [want for want in elsewhere if want is not None]:
        return None
    if None in wanted or not set(wanted) <= set(names):
        return ()
    return tuple(names.index(want) + 1 for want in wanted)
