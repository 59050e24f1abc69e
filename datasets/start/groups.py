"""Groups of scenes that show one place: by common ground, or by numbered pieces of a name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import counted
from segmenter.grid.scenes import Scene
from segmenter.raster import RasterInfo, outlines

ENOUGH = 5
"""Groups from which whole ones can be held out; of fewer, a part is more than a fifth."""
_LARGEST, _LEAST = 0.5, 3
"""Share of the scenes in one group up to which groups are of use; least number of groups by names."""
_NUMBER = re.compile(r"\d+")
_FORMS = (r"^([^/]+)/", r"([^/]+?)[_-]?\d+\.[^./]+$", r"^(.+?)[_-]?\d+\.[^./]+$")
"""Expressions for the group of numbered pieces: the first folder, the name before its number, or the path."""


@dataclass(frozen=True)
class Groups:
    """Group of each scene.

    Attributes:
        of_S: number of each scene's group, from 0 in the order of the scenes.
        how: sentence on how they were found.
        regex: for `split.group`; empty: it is given; None: names of scenes say the split.
        names: name of each group, as `split.validation` takes it; empty without `regex`.
        other: the other reading, where files do not tell.
        alone: True if each scene is a group.
    """

    of_S: NDArray[np.int64]
    how: str
    regex: str | None = None
    names: tuple[str, ...] = ()
    other: str = ""

    @property
    def count(self) -> int:
        """Number of groups."""
        return int(self.of_S.max()) + 1 if len(self.of_S) else 0

    @property
    def alone(self) -> bool:
        """True if each scene is a group."""
        return self.count == len(self.of_S)


def groups_of(root: Path, scenes: Sequence[Scene], infos: Sequence[RasterInfo], apart: float) -> Groups:
    """Return the groups of scenes: as given, by ground where they lie somewhere, by names, else each alone.

    Args:
        apart: pixels over which labels are alike.
    """
    if any(scene.group != scene.name for scene in scenes):
        order = list(dict.fromkeys(scene.group for scene in scenes))
        of_S = np.array([order.index(scene.group) for scene in scenes])
        return Groups(of_S, f"{counted(len(order), 'group')} as given", "", tuple(order))
    ground = [outline for outline in outlines(infos) if outline is not None]
    if len(ground) == len(scenes) > 1:
        return _by_ground(ground, infos, apart)
    paths = [scene.image.relative_to(root).as_posix() for scene in scenes]
    for form in _FORMS:
        if groups := _by_name(paths, form):
            return groups
    how = f"each of {counted(len(scenes), 'scene')} is a place of its own"
    return Groups(np.arange(len(scenes)), how, other="scenes of one place would need dataset.split.group")


def _by_name(paths: Sequence[str], form: str) -> Groups | None:
    """Return groups by an expression, if each is a series of numbered pieces."""
    matches = [re.search(form, path) for path in paths]
    names = [match[1] for match in matches if match is not None]
    members: dict[str, list[int]] = defaultdict(list)
    for path, name in zip(paths, names, strict=False):
        members[name].append(int((_NUMBER.findall(path.rpartition("/")[2]) or ["-1"])[-1]))
    several = [series for series in members.values() if len(series) > 1]
    if len(names) < len(paths) or len(members) < _LEAST or not several:
        return None
    if max(map(len, several)) > _LARGEST * len(paths) or not all(_is_series(series) for series in several):
        return None
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    pieces = round(float(np.median([len(series) for series in members.values()])))
    how = f"{len(order)} series of some {pieces} numbered pieces each ({next(iter(order))}, …)"
    other = "the numbers may count places of their own"
    return Groups(np.array([order[name] for name in names]), how, form, tuple(order), other)


def _is_series(numbers: Sequence[int]) -> bool:
    """Return whether numbers are different and mostly evenly spaced, as those of pieces or frames are."""
    steps = [b - a for a, b in pairwise(sorted(numbers))]
    return min(steps) > 0 and max(map(steps.count, steps)) >= len(steps) / 2


def _by_ground(ground: Sequence[NDArray[np.float64]], infos: Sequence[RasterInfo], apart: float) -> Groups:
    """Return groups of scenes that touch or overlap; of a mosaic, cells of the ground."""
    low, high = (np.array([f(points, axis=0) for points in ground]) for f in (np.min, np.max))
    pixel = float(
        np.median(
            [
                (h - w).max() / max(i.size.height, i.size.width)
                for h, w, i in zip(high, low, infos, strict=True)
            ]
        )
    )
    touching = _joined(low, high, margin=pixel)
    shares = np.bincount(touching) / len(touching)
    if len(shares) >= ENOUGH and shares.max() <= _LARGEST:
        if len(shares) == len(touching):
            return Groups(
                touching, f"none of {counted(len(touching), 'scene')} touches another on the ground"
            )
        return Groups(touching, f"scenes that touch or overlap on the ground: {len(shares)} places")
    overlapping = _joined(low, high, margin=-0.9 * pixel)
    side = max(float(np.median((high - low).max(axis=1))), apart * pixel)
    centres = np.array(
        [((low + high) / 2)[overlapping == g].mean(axis=0) for g in range(overlapping.max() + 1)]
    )
    cells = np.floor((centres - low.min(axis=0)) / side).astype(np.int64)
    _, cell = np.unique(cells, axis=0, return_inverse=True)
    of_S = _renumbered(cell.reshape(-1)[overlapping])
    how = f"{int(of_S.max()) + 1} cells of a mosaic, {side / pixel:.0f} pixels wide"
    return Groups(of_S, how)


def _joined(low: NDArray[np.float64], high: NDArray[np.float64], margin: float) -> NDArray[np.int64]:
    """Return the connected component of each rectangle; two meet if they lie less than a margin apart."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    order = np.argsort(low[:, 0], kind="stable")
    lo, hi, pairs = low[order], high[order] + margin, [np.zeros((2, 0), np.int64)]
    stops = np.searchsorted(lo[:, 0], hi[:, 0])
    for i, stop in enumerate(stops.tolist()):
        near = (lo[i + 1 : stop, 1] < hi[i, 1]) & (hi[i + 1 : stop, 1] > lo[i, 1])
        j = np.flatnonzero(near) + i + 1
        pairs.append(np.stack([np.full(len(j), order[i]), order[j]]))
    a, b = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(a)), (a, b)), shape=(len(low), len(low)))
    return _renumbered(connected_components(graph, directed=False)[1])


def _renumbered(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers in the order of their first occurrence, from 0."""
    order = {int(number): i for i, number in enumerate(dict.fromkeys(numbers.tolist()))}
    return np.array([order[int(number)] for number in numbers], np.int64)
