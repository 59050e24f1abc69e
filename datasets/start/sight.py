"""Sight of a folder's files: headers, and how far their values look like labels or like measurements."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, LabelError, SegmenterError
from segmenter.base.files import compose_accents, is_vector
from segmenter.config.layouts import pattern_regex
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import pack_colours
from segmenter.raster import LabelRaster, RasterInfo, open_raster
from segmenter.raster.masks import Masks

from ..files import files_under, in_hash_order, stored_names

_RASTERS = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jp2")
_QUALITY = re.compile(
    r"(^|/)(QI_DATA|SCL|B?QA\d*|UDM2?|FMASK)/|(?<![^\W_])(SCL|B?QA\d*|UDM2?|FMASK)(?![^\W_])[^/]*$",
    re.IGNORECASE,
)
"""Layers of a satellite's product that tell which pixels are good: by their name, or their folder's."""
_WINDOW, _THINNED = 1024, 256
"""Side of the window whose values are looked at, and of an image that is compared with others."""
_FREQUENT, _LABEL_SHARE, _LABEL_FLAT = 32, 0.9, 0.6
"""Labels have few values: shares of pixels with one of the most frequent ones, and of equal neighbours."""
_SAMPLES, _MOST_GROUPS, _PURE = 6, 60, 0.97
"""Files looked at in a group, groups, and the share that agrees from which no other grouping is tried."""


@dataclass(frozen=True)
class DataPlace:
    """Location of the files.

    Attributes:
        text: `dataset.root` as the user typed it.
        stored: path as it is stored, by its composed spelling (`stored_names`), of all files.
        labels: expression for the relative paths of labels, if the user named them.
        looked: sight of the files looked at, by path.
        first: file of the first band of scenes of several files.
        findings: what files tell that no setting takes in.
    """

    text: str
    stored: dict[str, str]
    labels: re.Pattern[str] | None = None
    looked: dict[str, Sight] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """Return the folder that patterns start from."""
        return Path(self.text)

    @property
    def paths(self) -> list[str]:
        """Return relative paths of all files, sorted."""
        return sorted(self.stored)

    def file(self, path: str) -> Path:
        """Return the file of a relative path."""
        return self.root / self.stored[path]

    def is_named(self, path: str) -> bool:
        """Return whether the user named a file as one of labels."""
        return self.labels is not None and self.labels.fullmatch(path) is not None

    def sight(self, path: str) -> Sight:
        """Return the sight of a file, or of a scene by its first band; each is looked at once."""
        path = self.first.get(path, path)
        if path not in self.looked:
            self.looked[path] = _look_at(self.file(path))
        return self.looked[path]

    def thinned(self, path: str) -> NDArray[Any]:
        """Return all bands of an image, or of the first file of a scene, on a grid of (256, 256).

        Raises:
            SegmenterError: it cannot be read.
        """
        path = self.first.get(path, path)
        with open_raster(self.file(path), drivers=drivers_of(path)) as raster:
            shape = Size(_THINNED, _THINNED)
            return raster.thinned(Window.of(raster.info.size), shape)[0]

    def codes(self, path: str) -> NDArray[np.int64]:
        """Return the (H, W) codes or colours in the middle of a label; −1: no label.

        Raises:
            SegmenterError: it cannot be read.
        """
        with LabelRaster(self.file(path), drivers=drivers_of(path)) as label:
            raw, blank = label.stored_values(Window.middle(label.info.size, _WINDOW))
        values = pack_colours(raw).astype(np.int64)
        return values if blank is None else np.where(blank, -1, values)


def place_of(data: Path, labels: Path | None) -> DataPlace:
    """Return the files below a folder, and those of labels beside it.

    Args:
        labels: folder, file, or pattern of files below `data`, as in a recipe.

    Raises:
        ConfigError: the pattern is invalid.
        DatasetError: there is no such folder or file, or both have no folder in common.
    """
    if labels is not None and re.search("[*{]", str(labels)) and not labels.exists():
        below = labels.relative_to(data) if labels.is_relative_to(data) else labels
        place = replace(place_of(data, None), labels=pattern_regex(f"**/{below.as_posix()}", "--labels"))
        if not any(map(place.is_named, place.paths)):
            wanted = f"a folder, a file, or a pattern of files below {data}"
            raise DatasetError(f"--labels {labels}", expected=wanted, got="no file like it")
        return place
    asked = [data] if labels is None else [data, labels]
    if missing := [each for each in asked if not each.exists()]:
        raise DatasetError(missing[0], expected=f"a folder or file, there is none (from {Path.cwd()})")
    if data.is_file() and labels is None:
        raise DatasetError(data, expected="a folder", remedy="of one image, --labels names its own")
    folders = [each if each.is_dir() else each.parent for each in asked]
    root = Path(os.path.commonpath(list(map(os.path.abspath, folders))))  # of "../a" and "b" it is ".."
    if not any(map(os.path.isabs, folders)):
        root = Path(os.path.relpath(root))
    if root.resolve() == Path(root.resolve().anchor):
        raise DatasetError(
            labels, expected=f"labels below a folder with {data}", remedy="link them there (ln -s)"
        )
    paths: set[str] = set()
    for each in asked:
        at = Path(os.path.relpath(each, root))
        paths |= {at.as_posix()} if each.is_file() else {(at / path).as_posix() for path in files_under(each)}
    at = Path(os.path.relpath(labels or root, root))
    named = (
        None
        if labels is None
        else re.compile(rf"{re.escape(compose_accents(at.as_posix()))}(/.*)?", re.DOTALL)
    )
    return DataPlace(root.as_posix(), stored_names(paths), named)


@dataclass(frozen=True)
class Sight:
    """One raster file.

    Attributes:
        info: its header; None if it cannot be read.
        values: number of values if they look like classes, else 0.
        masks: its bands are masks, of a class each.
        error: why it cannot be read.
    """

    info: RasterInfo | None
    values: int = 0
    masks: bool = False
    error: str = ""


def drivers_of(path: str) -> tuple[str, ...]:
    """Return the GDAL drivers that must be named for a file."""
    return ("JP2OpenJPEG",) if path.lower().endswith(".jp2") else ()


def _look_at(file: Path) -> Sight:
    """Return the sight of one file; a fault is part of it."""
    drivers = drivers_of(file.name)
    try:
        with open_raster(file, (1,), drivers=drivers) as raster:
            info, window = raster.info, Window.middle(raster.info.size, _WINDOW)
            several = info.count > 2 or (info.count == 2 and not info.alpha)
            first = np.unique(raster.read(window)[0]).tolist() if several else []
        bands, kind = info.count - len(info.alpha), np.dtype(info.dtype).kind
        if 0 < len(first) <= 2 and kind in "uibf" and (info.count != 3 or first[-1] == 1):  # no pure colours
            with suppress(LabelError), Masks([(0, file)], drivers) as masks:
                kinds = np.unique(masks.read(window)).tolist()  # an opaque alpha is set as others are
                if any(kinds) and (not masks.several or (info.count > 4 and len(kinds) > 1)):
                    return Sight(info, len(kinds), masks=True)
        if info.count > 4 or bands == 2 or kind not in "uibf" or (bands > 2 and info.dtype != "uint8"):
            return Sight(info)  # colours have 8 bits
        with LabelRaster(file, drivers=drivers) as label:
            raw, _ = label.stored_values(window)
    except SegmenterError as error:
        return Sight(None, error=str(error))
    values = pack_colours(raw)
    counts = np.sort(np.unique(values, return_counts=True)[1])
    flat = float((values[:, 1:] == values[:, :-1]).mean()) if values.shape[1] > 1 else 1.0
    frequent = float(counts[-_FREQUENT:].sum() / values.size)
    return Sight(info, len(counts) * (frequent >= _LABEL_SHARE and flat >= _LABEL_FLAT))


# ---------------------------------------------------------------------------------------------- labels or not


def sort_files(place: DataPlace) -> tuple[list[str], list[str], list[str]]:
    """Return the paths of images, of label rasters and of polygons, by a look at a few of each kind of names.

    Several ways to group are tried: by folder, by the last or first part of the name, by the whole name; its
    numbers do not count. The first one whose groups are each of one kind is used. Labels that the user named
    are not looked at, nor a product's layers of quality, unless all files seem to be such.

    Raises:
        DatasetError: no raster can be read.
    """
    rasters = [path for path in place.paths if PurePosixPath(path).suffix.lower() in _RASTERS]
    vectors = [path for path in place.paths if is_vector(path)]
    unnamed = [path for path in rasters if not place.is_named(path)]
    rest = [path for path in unnamed if not _QUALITY.search(path)] or unnamed
    kinds = _kinds(place, rest)
    images = [path for path in rest if kinds.get(path) is False]
    if place.labels is None:
        return images, [path for path in rest if kinds.get(path)], vectors
    return images or rest, list(filter(place.is_named, rasters)), list(filter(place.is_named, vectors))


def _kinds(place: DataPlace, rasters: Sequence[str]) -> dict[str, bool]:
    """Return for each file whether it holds labels; without files of groups that cannot be read."""
    best, best_pure = dict[str, bool](), -1.0
    for groups in _groupings(rasters):
        kinds, agreeing, seen = dict[str, bool](), 0, 0
        for members in groups:
            sights = filter(lambda sight: sight.info, map(place.sight, in_hash_order(members)))
            votes = [sight.values > 0 for sight in islice(sights, _SAMPLES)]
            kinds |= dict.fromkeys(members if votes else (), 2 * sum(votes) >= len(votes))
            agreeing, seen = agreeing + max(sum(votes), len(votes) - sum(votes)), seen + len(votes)
        pure = agreeing / max(1, seen) + (len(set(kinds.values())) == 2)
        if pure > best_pure:
            best, best_pure = kinds, pure
        if pure >= 1 + _PURE:
            break
    if rasters and not best:
        first, count = next(iter(place.looked.values())), len(place.looked)
        raise DatasetError(place.root, f"none of {count} rasters looked at can be read; {first.error}")
    return best


def _groupings(paths: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield groupings of paths of at most `_MOST_GROUPS` groups; numbers of names divide none."""
    words = {path: re.split(r"[_\-. ]", re.sub(r"\d+", "#", PurePosixPath(path).stem)) for path in paths}
    often = {end: Counter(each[end] for each in words.values()) for end in (-1, 0)}
    least = max(2, len(paths) // 20)

    def word(path: str, end: int) -> str:
        return words[path][end] if often[end][words[path][end]] >= least else ""

    ways: tuple[Callable[[str], Hashable], ...] = (
        lambda path: PurePosixPath(path).parent,
        lambda path: PurePosixPath(path).parent.name,
        lambda path: word(path, -1),
        lambda path: word(path, 0),
        lambda path: re.sub(r"\d+", "#", path),
    )
    for way in ways:
        groups: dict[Hashable, list[str]] = {}
        for path in paths:
            groups.setdefault((way(path), PurePosixPath(path).suffix.lower()), []).append(path)
        if len(groups) <= _MOST_GROUPS:
            yield list(groups.values())
