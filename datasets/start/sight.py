"""Sight of raster files: headers, and how far their values look like labels or like measurements."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.base.finding import is_vector
from segmenter.grid.geometry import Window
from segmenter.grid.labels import packed
from segmenter.raster import LabelRaster, RasterInfo, open_raster

RASTERS = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jp2")
_WINDOW = 1024
"""Side of the window whose values are looked at."""
_FREQUENT, _LABEL_SHARE, _LABEL_FLAT = 32, 0.9, 0.6
"""Labels have few values: shares of pixels with one of the most frequent ones, and of equal neighbours."""
_SAMPLES, _MOST_GROUPS, _PURE = 6, 60, 0.97
"""Files looked at in a group, groups, and the share that agrees from which no other grouping is tried."""


@dataclass(frozen=True)
class Sight:
    """One raster file.

    Attributes:
        info: its header; None if it cannot be read.
        is_label: the values look like classes.
        values: number of values, if they do.
        error: why it cannot be read.
    """

    info: RasterInfo | None
    is_label: bool = False
    values: int = 0
    error: str = ""


def drivers_of(path: str) -> tuple[str, ...]:
    """Return the GDAL drivers that must be named for a file."""
    return ("JP2OpenJPEG",) if path.lower().endswith(".jp2") else ()


def look_at(root: Path, path: str) -> Sight:
    """Return the sight of one file; a fault is part of it."""
    file, drivers = root / path, drivers_of(path)
    try:
        with open_raster(file, (1,), drivers=drivers) as raster:
            info = raster.info
        bands, kind = info.count - len(info.alpha), np.dtype(info.dtype).kind
        if info.count > 4 or bands == 2 or kind not in "uibf" or (bands > 2 and info.dtype != "uint8"):
            return Sight(info)  # colours have 8 bits
        with LabelRaster(file, drivers=drivers) as label:
            height, width = (min(side, _WINDOW) for side in (info.size.height, info.size.width))
            top, left = (info.size.height - height) // 2, (info.size.width - width) // 2
            raw, _ = label.stored(Window(top, left, height, width))
    except SegmenterError as error:
        return Sight(None, error=str(error))
    values = packed(raw)
    counts = np.sort(np.unique(values, return_counts=True)[1])
    flat = float((values[:, 1:] == values[:, :-1]).mean()) if values.shape[1] > 1 else 1.0
    frequent = float(counts[-_FREQUENT:].sum() / values.size)
    is_label = frequent >= _LABEL_SHARE and flat >= _LABEL_FLAT
    return Sight(info, is_label, len(counts) * is_label)


def in_hash_order(paths: Sequence[str]) -> list[str]:
    """Return paths in an order that is arbitrary but the same on every machine."""
    return sorted(paths, key=lambda path: hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest())


# ---------------------------------------------------------------------------------------------- labels or not


@dataclass(frozen=True)
class Sorted:
    """Files of a folder by what they look like.

    Attributes:
        images, labels: relative paths of rasters.
        vectors: relative paths of polygon files.
        looked: sight of the files looked at, by path.
    """

    images: tuple[str, ...]
    labels: tuple[str, ...]
    vectors: tuple[str, ...]
    looked: dict[str, Sight]

    @property
    def unreadable(self) -> list[str]:
        """Files looked at that cannot be read."""
        return [path for path, sight in self.looked.items() if sight.info is None]


def sort_files(root: Path, paths: Sequence[str], is_label: Callable[[str], bool] | None = None) -> Sorted:
    """Sort files into images and labels, looking at a few of each group of like names.

    Several ways to group are tried: by folder, by the last or first part of the name, by the whole name; its
    numbers do not count. The first one whose groups are each of one kind is used.

    Args:
        is_label: tells the labels, if the user named them; then only images are looked at.

    Raises:
        DatasetError: no raster can be read.
    """
    rasters = [path for path in paths if PurePosixPath(path).suffix.lower() in RASTERS]
    named = [path for path in rasters if is_label is not None and is_label(path)]
    looked: dict[str, Sight] = {}
    rest = sorted(set(rasters) - set(named))
    kinds = _kinds(root, rest, looked)
    images = [path for path in rest if kinds.get(path) is False]
    labels = named if is_label is not None else [path for path in rest if kinds.get(path)]
    vectors = tuple(path for path in paths if is_vector(path) and (is_label is None or is_label(path)))
    return Sorted(tuple(rest if named and not images else images), tuple(labels), vectors, looked)


def _kinds(root: Path, rasters: Sequence[str], looked: dict[str, Sight]) -> dict[str, bool]:
    """Return for each file whether it holds labels; without files of groups that cannot be read."""
    best, best_pure = dict[str, bool](), -1.0
    for groups in _groupings(rasters):
        kinds, agreeing, seen = dict[str, bool](), 0, 0
        for members in groups:
            votes: list[bool] = []
            for path in in_hash_order(members):
                looked[path] = looked.get(path) or look_at(root, path)
                votes += [looked[path].is_label] * (looked[path].info is not None)
                if len(votes) == _SAMPLES:
                    break
            kinds |= dict.fromkeys(members if votes else (), 2 * sum(votes) >= len(votes))
            agreeing, seen = agreeing + max(sum(votes), len(votes) - sum(votes)), seen + len(votes)
        pure = agreeing / max(1, seen) + (len(set(kinds.values())) == 2)
        if pure > best_pure:
            best, best_pure = kinds, pure
        if pure >= 1 + _PURE:
            break
    if rasters and not best:
        first = next(iter(looked.values()))
        raise DatasetError(f"{root}: none of {len(looked)} rasters looked at can be read; {first.error}")
    return best


def _groupings(paths: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield groupings of paths of at most `_MOST_GROUPS` groups; numbers of names divide none."""
    stems = {path: re.sub(r"\d+", "#", PurePosixPath(path).stem) for path in paths}
    words = {path: re.split(r"[_\-. ]", stem) for path, stem in stems.items()}
    often = {end: Counter(each[end] for each in words.values()) for end in (-1, 0)}
    least = max(2, len(paths) // 20)

    def word(path: str, end: int) -> str:
        return words[path][end] if often[end][words[path][end]] >= least else ""

    ways: tuple[Callable[[str, PurePosixPath], Hashable], ...] = (
        lambda path, pure: pure.parent,
        lambda path, pure: pure.parent.name,
        lambda path, pure: word(path, -1),
        lambda path, pure: word(path, 0),
        lambda path, pure: stems[path],
        lambda path, pure: (pure.parent, word(path, -1)),
        lambda path, pure: re.sub(r"\d+", "#", path),
    )
    for way in ways:
        groups: dict[Hashable, list[str]] = {}
        for path in paths:
            pure = PurePosixPath(path)
            groups.setdefault((way(path, pure), pure.suffix.lower()), []).append(path)
        if len(groups) <= _MOST_GROUPS:
            yield list(groups.values())
