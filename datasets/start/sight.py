"""Sight of raster files: headers, and how far their values look like labels or like measurements."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.base.finding import is_vector
from segmenter.grid.geometry import Window
from segmenter.raster import LabelRaster, RasterInfo, open_raster

RASTERS = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jp2")
_WINDOW = 1024
"""Side of the window whose values are looked at."""
_FREQUENT = 32
"""Values that nearly all pixels of a label raster have."""
_LABEL_SHARE, _LABEL_FLAT = 0.9, 0.6
"""Shares from which a raster looks like labels: of pixels with a frequent value, and of equal neighbours."""
_SAMPLES, _MOST_GROUPS = 6, 60
_PURE = 0.97
"""Share of the files looked at that agree in their groups, from which no other grouping is tried."""


@dataclass(frozen=True)
class Sight:
    """One raster file.

    Attributes:
        path: relative to the root.
        info: its header; None if it cannot be read.
        frequent: share of pixels that have one of the most frequent values.
        flat: share of horizontal neighbours that are equal.
        error: why it cannot be read.
    """

    path: str
    info: RasterInfo | None
    frequent: float = 0.0
    flat: float = 0.0
    error: str = ""

    @property
    def is_label(self) -> bool:
        """True if the values look like classes."""
        return self.frequent >= _LABEL_SHARE and self.flat >= _LABEL_FLAT


def drivers_of(path: str) -> tuple[str, ...]:
    """Return the GDAL drivers that a file needs to be named."""
    return ("JP2OpenJPEG",) if path.lower().endswith(".jp2") else ()


def look_at(root: Path, path: str) -> Sight:
    """Return the sight of one file; a fault is part of it."""
    file, drivers = root / path, drivers_of(path)
    try:
        with open_raster(file, (1,), drivers=drivers) as raster:
            info = raster.info
        plain = info.count - len(info.alpha)
        if info.count > 4 or plain == 2 or np.dtype(info.dtype).kind not in "uib":
            return Sight(path, info)
        with LabelRaster(file, drivers=drivers) as label:
            size = info.size
            height, width = min(size.height, _WINDOW), min(size.width, _WINDOW)
            middle = Window((size.height - height) // 2, (size.width - width) // 2, height, width)
            raw, _ = label.stored(middle)
    except SegmenterError as error:
        return Sight(path, None, error=str(error))
    if raw.ndim == 3:
        r, g, b = (raw[..., i].astype(np.int64) for i in range(3))
        raw = (r << 32) | (g << 16) | b
    _, counts = np.unique(raw, return_counts=True)
    frequent = np.sort(counts)[::-1][:_FREQUENT].sum() / raw.size
    flat = float((raw[:, 1:] == raw[:, :-1]).mean()) if raw.shape[1] > 1 else 1.0
    return Sight(path, info, float(frequent), flat)


def in_hash_order(paths: Sequence[str]) -> list[str]:
    """Return paths in an order that is arbitrary but the same on every machine."""
    return sorted(paths, key=lambda path: hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest())


def is_raster(path: str) -> bool:
    """Return whether a file has the ending of a raster."""
    return PurePosixPath(path).suffix.lower() in RASTERS


# ----------------------------------------------------------------------------------------------- labels or not


@dataclass(frozen=True)
class Sorted:
    """Files of a folder by what they look like.

    Attributes:
        images, labels: relative paths of rasters.
        vectors: relative paths of polygon files.
        unreadable: faults of the files looked at, by path.
        looked: sight of the files looked at, by path.
    """

    images: tuple[str, ...]
    labels: tuple[str, ...]
    vectors: tuple[str, ...]
    unreadable: dict[str, str]
    looked: dict[str, Sight]


def sort_files(root: Path, paths: Sequence[str], labels: Callable[[str], bool] | None = None) -> Sorted:
    """Sort files into images and labels, looking at a few of each group of like names.

    Several ways to group are tried: by folder, by the last or first part of the name, by the whole name. The
    first one whose groups are each of one kind is used.

    Args:
        labels: tells the labels, if the user named them; then only images are looked at.

    Raises:
        DatasetError: no raster of a group can be read.
    """
    rasters = [path for path in paths if is_raster(path)]
    vectors = tuple(path for path in paths if is_vector(path))
    looked: dict[str, Sight] = {}
    if labels is not None:
        named = tuple(path for path in rasters if labels(path))
        rest = [path for path in rasters if not labels(path)]
        kinds = _kinds(root, rest, looked)
        images = tuple(path for path in rest if not kinds.get(path)) or tuple(rest)
        return Sorted(images, named, tuple(filter(labels, vectors)), _faults(looked), looked)
    kinds = _kinds(root, rasters, looked)
    readable = [path for path in rasters if path in kinds]
    return Sorted(
        tuple(path for path in readable if not kinds[path]),
        tuple(path for path in readable if kinds[path]),
        vectors,
        _faults(looked),
        looked,
    )


def _faults(looked: dict[str, Sight]) -> dict[str, str]:
    return {path: sight.error for path, sight in looked.items() if sight.info is None}


def _kinds(root: Path, rasters: Sequence[str], looked: dict[str, Sight]) -> dict[str, bool]:
    """Return for each file whether it holds labels; without files of groups that cannot be read."""
    best, best_pure = dict[str, bool](), -1.0
    for groups in _groupings(rasters):
        kinds, agreeing, seen = dict[str, bool](), 0, 0
        for members in groups:
            sights = []
            for path in in_hash_order(members):
                looked.setdefault(path, look_at(root, path))
                sights += [looked[path]] if looked[path].info is not None else []
                if len(sights) == _SAMPLES:
                    break
            if not sights:
                continue
            votes = sum(sight.is_label for sight in sights)
            kinds |= dict.fromkeys(members, 2 * votes > len(sights))
            agreeing, seen = agreeing + max(votes, len(sights) - votes), seen + len(sights)
        both = len(set(kinds.values())) == 2
        pure = agreeing / max(1, seen) + both
        if pure > best_pure:
            best, best_pure = kinds, pure
        if pure >= 1 + _PURE:
            break
    if rasters and not best:
        first = next(sight for sight in looked.values())
        raise DatasetError(f"{root}: none of {len(looked)} rasters looked at can be read; {first.error}")
    return best


def _groupings(paths: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield groupings of paths, of at most `_MOST_GROUPS` groups; at last single files, if they are few."""
    pure = [PurePosixPath(path) for path in paths]
    tails = Counter(_tail(path.stem) for path in pure)
    heads = Counter(_head(path.stem) for path in pure)
    least = max(2, len(paths) // 20)

    def often(counts: Counter[str], part: Callable[[str], str], path: PurePosixPath) -> str:
        return part(path.stem) if counts[part(path.stem)] >= least else ""

    ways: tuple[Callable[[PurePosixPath], object], ...] = (
        lambda path: (path.parent, path.suffix.lower()),
        lambda path: (path.parent.name, path.suffix.lower()),
        partial(lambda path: (often(tails, _tail, path), path.suffix.lower())),
        partial(lambda path: (often(heads, _head, path), path.suffix.lower())),
        lambda path: (path.stem, path.suffix.lower()),
        lambda path: (path.parent, often(tails, _tail, path), path.suffix.lower()),
        lambda path: path,
    )
    for way in ways:
        groups: dict[object, list[str]] = {}
        for path in pure:
            groups.setdefault(way(path), []).append(path.as_posix())
        if len(groups) <= _MOST_GROUPS:
            yield list(groups.values())


def _tail(stem: str) -> str:
    return re.split(r"[_\-. ]", stem)[-1]


def _head(stem: str) -> str:
    return re.split(r"[_\-. ]", stem)[0]
