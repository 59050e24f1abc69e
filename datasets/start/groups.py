"""Groups of scenes that show one place: by common ground, or by numbered pieces of a name."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError, counted
from segmenter.base.threads import in_threads
from segmenter.grid.scenes import Scene
from segmenter.raster import RasterInfo, outlines
from segmenter.raster.ground import meeting

from ..contents import Contents, ImageContent
from ..landmarks import NONE
from ..leaks import AuditedScene, common_parts
from ..neighbours import pictures_of
from .names import common_start

Points = NDArray[np.float64]
ENOUGH = 5
"""Groups from which whole ones can be held out; of fewer, a part is more than a fifth."""
_LARGEST, _LEAST = 0.5, 3
"""Share of the scenes in one group up to which groups are of use; least number of groups by names."""
_CELLS, _FEW_CELLS = 20, 8
"""Cells that a mosaic of many tiles is cut into, as wide as tiles or more: of larger ones fewer tiles touch
others; and number of cells below which they are taken smaller."""
_WINDOWS, _STRIPS = 30, 10
"""Scenes from which overlapping ones are windows of a mosaic, and the strips that they are dealt in."""
_LETTER = r"(?:[A-Za-z]|row|col)?[_-]?(?<!\d)"
_FORMS = (
    (1, r"^([^/]+)/"),
    (4, r"([^/]+?)" + r"[_-]\d+" * 4),
    (2, rf"([^/]+?)[_-]{_LETTER}\d+[_-]?{_LETTER}\d+"),
    (1, r"([^/]+?)[_-]?(?<!\d)\d+"),
    (1, r"^(.+?)[_-]?(?<!\d)\d+"),
    (0, r"^(.*\d)"),
    (0, r"([^/]*\d)"),
)
"""Numbers of a piece, and expression for its group: first folder, name before a window's bounds or row and
column, name or path before one number; at last path or name up to a number, for several images of a place."""
_MONTH, _DAY = "(?:0[1-9]|1[0-2])", "(?:0[1-9]|[12][0-9]|3[01])"
_YEAR, _ALONE = "(?:19|20)[0-9]{2}", r"(?![^\W_])"
_WHOLE_DATE = "|".join(rf"(?<!\d){_YEAR}{s}{_MONTH}{s}{_DAY}(?!\d)(?:T\d+Z?)?" for s in ("", "-", "_"))
_MONTHLY = rf"(?<![^\W_]){_YEAR}[-_]?{_MONTH}{_ALONE}"
_YEARLY = rf"(?<![^\W_]){_YEAR}{_ALONE}"
_DATES = (
    f"{_WHOLE_DATE}|{_MONTHLY}|{_YEARLY}",
    *(f"{_WHOLE_DATE}|{_YEARLY}", _WHOLE_DATE, _MONTHLY, _YEARLY),
)
"""Readings of the dates in paths: a number behind a year may be a month or a day, or count something else."""


@dataclass(frozen=True)
class Groups:
    """Group of each scene.

    Attributes:
        of_S: number of each scene's group, from 0 in the order of the scenes.
        how: sentence on how they were found.
        regex: for `split.group`; empty: it is given; None: names of scenes say the split.
        names: name of each group, as `split.validation` takes it; empty without `regex`.
        other: the other reading, where files do not tell.
        asked: groups of the other reading, if the answer is asked for.
        ground: corners (S, 4, 2) of the scenes, if some overlap scenes of other groups; else None.
    """

    of_S: NDArray[np.int64]
    how: str
    regex: str | None = None
    names: tuple[str, ...] = ()
    other: str = ""
    asked: Groups | None = None
    ground: Points | None = None

    @property
    def count(self) -> int:
        """Number of groups."""
        return int(self.of_S.max()) + 1

    @property
    def alone(self) -> bool:
        """True if each scene is a group."""
        return self.count == len(self.of_S)


def groups_of(
    root: Path,
    scenes: Sequence[Scene],
    infos: Sequence[RasterInfo],
    apart: float,
    bands: tuple[int, ...] | None = None,
    contents: Contents | None = None,
) -> Groups:
    """Return the groups of scenes: as given, by ground where they lie somewhere, by names, else each alone.

    Without georeference, scenes that show parts of one picture lie where their pixels say; so do tiles whose
    borders fit. Names count if they tear no such scenes apart.

    Args:
        apart: pixels over which labels are alike.
        bands: bands that are compared; None: all that are data.
        contents: what was read before of the images; None: nothing.
    """
    given = [scene.group for scene in scenes]
    if given != [scene.name for scene in scenes]:
        names = tuple(dict.fromkeys(given))
        return Groups(_number_keys(given), f"{counted(len(names), 'group')} as given", "", names)
    ground = [outline for outline in outlines(infos) if outline is not None]
    if len(ground) == len(scenes) > 1:
        return _by_ground(ground, infos, apart)
    paths = [(*scene.files, scene.image)[0].relative_to(root).as_posix() for scene in scenes]
    laid, picture, how = _laid_out(scenes, infos, bands, contents or Contents())
    places = np.arange(len(scenes)) if laid is None else meeting(laid.min(axis=1), laid.max(axis=1), 0.5)
    dated, unsure = _by_date(paths)
    by_name = (_by_name(paths, form, numbers, picture) for numbers, form in _FORMS)
    for groups in (dated, *by_name):
        if groups and _is_coarser(groups.of_S, places):
            return _ask_of_dates(groups, unsure)
    if laid is not None:
        groups = _by_ground(list(laid), infos, apart)
        return replace(groups, how=f"{how}: {groups.how}")
    how = f"each of {counted(len(scenes), 'scene')} is a place of its own"
    alone = Groups(np.arange(len(scenes)), how, other="scenes of one place would need dataset.split.group")
    return _ask_of_dates(alone, unsure)


def _is_coarser(of_S: NDArray[np.int64], finer_S: NDArray[np.int64]) -> bool:
    """Return whether groups tear none of the finer ones apart."""
    return len({*zip(finer_S.tolist(), of_S.tolist(), strict=True)}) == len({*finer_S.tolist()})


def _ask_of_dates(groups: Groups, dated: Groups | None) -> Groups:
    """Return groups with those by names without dates as the other reading, if these are torn apart."""
    return groups if dated is None or _is_coarser(groups.of_S, dated.of_S) else replace(groups, asked=dated)


def _by_date(paths: Sequence[str]) -> tuple[Groups | None, Groups | None]:
    """Return groups of scenes whose paths differ in dates alone, if most recur, and doubtful ones."""
    unsure = None
    for date in _DATES:
        left = Counter(re.sub(date, "", path) for path in paths)
        several = sum(count > 1 for count in left.values())
        if several and (groups := _by_text_beside(paths, date)):
            even = 2 * max(Counter(groups.of_S.tolist()).values()) <= len(paths)
            if even and min(several, groups.count) >= _LEAST and 2 * several >= len(left):
                return groups, unsure
            unsure = unsure or groups
    return None, unsure


def _by_text_beside(paths: Sequence[str], date: str) -> Groups | None:
    """Return groups by the text before, between or behind dates, whichever tells most places."""
    dates = [re.findall(date, path) for path in paths]
    if len({*map(len, dates)}) > 1:
        return None
    shapes = sorted({re.sub(r"\d+", lambda n: rf"\d{{{len(n[0])}}}", each) for own in dates for each in own})
    short = rf"(?<!\d){'|'.join(shapes).join(('(?:', ')') if len(shapes) > 1 else ('', ''))}(?!\d)"
    best: Groups | None = None
    for before in range(len(dates[0]) + 1):
        last = before == len(dates[0])
        form, easy = (_between_dates(each, before, last=last) for each in (f"(?:{date})", short))
        names, of_easy = ([m[1] if (m := re.search(f, path)) else "" for path in paths] for f in (form, easy))
        pairs = zip(paths, names, strict=True)
        empty = any(not name or path.endswith(f".{name}") or re.search(date, name) for path, name in pairs)
        count = len({*names})
        if not empty and count > (1 if best is None else best.count):
            how = f"{counted(len(paths), 'scene')} show {count} places at several dates ({names[0]}, …)"
            form = easy if names == of_easy else form
            other = "numbers may count anew at each date"
            best = Groups(_number_keys(names), how, form, tuple(dict.fromkeys(names)), other)
    return best


def _between_dates(date: str, before: int, *, last: bool) -> str:
    """Return the expression of the text behind this number of dates, up to the next one or the ending."""
    begin = rf"^(?:.*?{date}){{{before}}}" if before > 1 else f"^.*?{date}" if before else "^"
    return rf"{begin}[\W_]*(.+?)[\W_]*" + (r"(?:\.\w+)?$" if last else date)


def _laid_out(
    scenes: Sequence[Scene], infos: Sequence[RasterInfo], bands: tuple[int, ...] | None, contents: Contents
) -> tuple[Points | None, NDArray[np.int64] | None, str]:
    """Return the corners (S, 4, 2) of scenes that show parts of one picture, in its pixels, and the picture.

    Pictures lie far from each other. None: no two scenes belong together. The text tells the evidence.
    """

    def content(scene: Scene) -> ImageContent | None:
        with suppress(SegmenterError):
            return contents.image(scene.image, bands)
        return None

    found = list(in_threads(content, scenes, description="comparing images", unit="scene"))
    picture = np.arange(len(scenes))
    places = np.tile(np.eye(3), (len(scenes), 1, 1))  # from pixels of a scene to those of its picture
    seen = [
        AuditedScene(scene, None, info, landmarks=each.landmarks if each else NONE, bands=bands)
        for scene, info, each in zip(scenes, infos, found, strict=True)
    ]
    joined = 0
    at = {scene.name: i for i, scene in enumerate(scenes)}

    def are_apart(one: AuditedScene, other: AuditedScene) -> bool:
        return bool(picture[at[one.scene.name]] != picture[at[other.scene.name]])

    for one, other, common in common_parts(seen, are_apart):
        i, j = at[one.scene.name], at[other.scene.name]
        move = places[j] @ np.concatenate([common.matrix_23, [[0, 0, 1]]]) @ np.linalg.inv(places[i])
        own = picture == picture[i]
        places[own], picture[own], joined = move @ places[own], picture[j], joined + 1
    how = f"{counted(int(_several(picture).sum()), 'scene')} show parts of the same pictures, by their pixels"
    if not joined:
        borders = [None if each is None else each.borders for each in found]
        cells = pictures_of([scene.image for scene in scenes], borders)
        if cells is None:
            return None, None, ""
        picture = _number_keys(cells[0])
        places[:, 0, 2] = [cell[1] * info.size.width for cell, info in zip(cells[1], infos, strict=True)]
        places[:, 1, 2] = [cell[0] * info.size.height for cell, info in zip(cells[1], infos, strict=True)]
        how = f"tiles of {counted(int(picture.max()) + 1, 'picture')} continue each other: neighbours touch"
    sides = [(info.size.width, info.size.height) for info in infos]
    corners = np.array([[(0, 0, 1), (w, 0, 1), (w, h, 1), (0, h, 1)] for w, h in sides], np.float64)
    laid: Points = np.einsum("sij,skj->ski", places, corners)[:, :, :2]
    picture = _number_keys(picture.tolist())
    far = 2 * np.ptp(laid.reshape(-1, 2), axis=0).max() + 1
    laid[:, :, 1] += far * picture[:, None]
    return laid, picture, how


def _several(picture_S: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (S,) of scenes whose picture other scenes show, too."""
    several: NDArray[np.bool_] = np.bincount(picture_S)[picture_S] > 1
    return several


def _number_keys(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return a number for each key, from 0 in the order of their first occurrence."""
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys], np.int64)


def _by_name(
    paths: Sequence[str], form: str, numbers: int, picture_S: NDArray[np.int64] | None = None
) -> Groups | None:
    """Return groups by an expression, if they are series of numbered pieces, or several images of a place.

    Behind the numbers are words, or what all names end in, as `_10m.jp2`.

    Args:
        picture_S: picture of each scene, as pixels tell; groups of these need no even numbers.
    """
    end = common_start([path[::-1] for path in paths])[::-1].lstrip("0123456789")
    if not form.endswith("/"):
        form += r"[^\d/]*" + (re.escape(end) if re.search(r"\d", end) else "") + "$"
    names = [match[1] for path in paths if (match := re.search(form, path))]
    sizes = Counter(names)
    several, largest = sum(size > 1 for size in sizes.values()), max(sizes.values(), default=0)
    if len(names) < len(paths) or len(sizes) < _LEAST or not several or largest > _LARGEST * len(paths):
        return None
    pieces: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for path, name in zip(paths, names, strict=True):
        stem = path.removesuffix(end)
        found = [int(number) for number in re.findall(r"\d+", stem.rpartition("/")[2])]
        pieces[name][re.sub(r"\D+$", "", stem) if found else path] = tuple(found[-numbers:] or [-1])
    corners = Counter(tuple(map(min, zip(*own.values(), strict=True))) for own in pieces.values())
    pictures = () if picture_S is None else picture_S.tolist()
    seen = len({*zip(names, pictures, strict=False)}) == len(sizes) == len({*pictures})
    if numbers > 1 and 2 * max(corners.values()) < len(corners) and not seen:
        return None
    if not seen and not (all(map(_is_grid, pieces.values())) if numbers else 2 * several > len(sizes)):
        return None
    usual = round(float(np.median(list(sizes.values()))))
    what = "series of some {} numbered pieces" if numbers else "places with some {} images"
    how = f"{len(sizes)} {what.format(usual)} each ({names[0]}, …){', as their pixels show' * seen}"
    other = "" if seen else "the numbers may count places of their own"
    return Groups(_number_keys(names), how, form, tuple(sizes), other)


def _is_grid(pieces: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether pieces have different numbers, each mostly evenly spaced as those of frames are."""
    steps = [[b - a for a, b in pairwise(sorted(set(axis)))] for axis in zip(*pieces.values(), strict=True)]
    even = all(2 * max(map(each.count, each), default=0) >= len(each) for each in steps)
    return even and len(set(pieces.values())) == len(pieces)


def boxes(ground: Sequence[NDArray[np.float64]], infos: Sequence[RasterInfo]) -> tuple[Points, Points, float]:
    """Return the lower and upper corners (N, 2) of outlines, and the size of a pixel."""
    low, high = np.min(ground, axis=1), np.max(ground, axis=1)
    sides = [max(info.size.height, info.size.width) for info in infos]
    return low, high, float(np.median((high - low).max(axis=1) / sides))


def _by_ground(ground: Sequence[NDArray[np.float64]], infos: Sequence[RasterInfo], apart: float) -> Groups:
    """Return groups of scenes that touch or overlap; of a mosaic cells, or strips of windows."""
    low, high, pixel = boxes(ground, infos)
    touching = meeting(low, high, pixel)
    sizes = np.bincount(touching)
    if len(sizes) >= ENOUGH and sizes.max() <= _LARGEST * len(touching):
        how = f"scenes that touch or overlap on the ground: {len(sizes)} places"
        if len(sizes) == len(touching):
            how = f"none of {counted(len(touching), 'scene')} touches another on the ground"
        return Groups(touching, how)
    overlapping = meeting(low, high, -0.9 * pixel)
    tile = float(np.median((high - low).max(axis=1)))
    side = max(tile, apart * pixel)
    if len(low) >= _WINDOWS and np.bincount(overlapping).max() > _LARGEST * len(low):
        along = int(np.argmax(np.ptp(low, axis=0)))
        sides = float(np.ptp(low[:, along])) / side + 1
        count = max(min(int(sides / 2), _STRIPS), min(int(sides), ENOUGH))
        if count >= _LEAST:
            edges = np.linspace(low[:, along].min(), low[:, along].max(), count + 1)[1:-1]
            how = f"windows of a mosaic that overlap, in {count} strips"
            return Groups(np.searchsorted(edges, low[:, along]), how, ground=np.array(ground))
    for wide in range(max(1, math.ceil(math.sqrt(int(overlapping.max() + 1) / _CELLS))), 0, -1):
        side = max(wide * tile, apart * pixel)
        of_S = _cells(low, high, touching, overlapping, side)
        if of_S.max() + 1 >= _FEW_CELLS:
            break
    of = "" if touching.max() == 0 else f" of {touching.max() + 1} pieces"
    how = f"{int(of_S.max()) + 1} cells of a mosaic{of}, {side / pixel:.0f} pixels wide; cells touch"
    return Groups(of_S, how)


def _cells(
    low: Points, high: Points, piece_S: NDArray[np.int64], overlapping_S: NDArray[np.int64], side: float
) -> NDArray[np.int64]:
    """Return the square cell of each scene, from the corner of its piece; what overlaps is in one cell."""
    corner_P = np.stack([low[piece_S == piece].min(axis=0) for piece in range(piece_S.max() + 1)])
    middle_S2 = (low + high) / 2 - corner_P[piece_S]
    sums = [np.bincount(overlapping_S, weights=along) for along in (*middle_S2.T, piece_S)]
    of_G = np.array(sums).T / np.bincount(overlapping_S)[:, None]
    of_G[:, :2] = np.floor(of_G[:, :2] / side)
    return _number_keys([tuple(cell) for cell in of_G[overlapping_S].round().astype(np.int64).tolist()])
