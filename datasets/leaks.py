"""Leaks between splits: common content of two scenes, so that scores measure memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import counted
from segmenter.grid.geometry import Size
from segmenter.grid.scenes import Scene
from segmenter.raster import RasterInfo, open_raster, outlines

from .copies import Common, prove_common, reader
from .files import few
from .landmarks import NONE, Floats, Guess, Landmarks, guesses
from .neighbours import named_windows, pictures_of

_LEAST_PIXELS = 0.9
"""Width of a common strip, in pixels of the coarser scene, from which scenes overlap and not only adjoin."""
_TRIED = 8
"""Pairs on whose pixels a reading of names is tried."""
_MOST_FAILED = 3
"""Guesses on a scene that its pixels refute, after which no more are tried."""
_GRID = 128
"""Points along a side at which both scenes are checked for data in their common extent."""
_LEAST_POINTS = 0.002
"""Share of these points; fewer are rounding at the edges of two strips that adjoin."""

Points = NDArray[np.float64]


@dataclass(frozen=True)
class AuditedScene:
    """Facts of a scene from the audit.

    Attributes:
        digest: digest of its pixels; None if all pixels are equal or unreadable.
        info: its header; None if it could not be opened.
        valid: function that returns an (h, w) mask of data on a coarse grid; None: data everywhere.
        landmarks: points by which copies and windows of other pixels are found.
        bands: bands that are compared; None: all that are data.
        borders: means along its borders; None for a large one.
    """

    scene: Scene
    digest: bytes | None
    info: RasterInfo | None
    valid: Callable[[], NDArray[np.bool_]] | None = None
    landmarks: Landmarks = NONE
    bands: tuple[int, ...] | None = None
    borders: Floats | None = None

    @property
    def size(self) -> Size | None:
        """Size of its image, if its pixels were read; else None."""
        return None if self.info is None or self.landmarks is NONE else self.info.size


@dataclass(frozen=True)
class Leak:
    """Two scenes of different splits with common content, and a description."""

    first: Scene
    second: Scene
    how: str

    def text(self) -> str:
        """Return the leak as one line."""
        named = " and ".join(f"{scene.image} ({scene.split})" for scene in (self.first, self.second))
        return f"{named} {self.how}; put them into one split, or leave one out"


@dataclass
class Comparison:
    """Count of images that were compared by their pixels, of pairs that looked alike, and of those proved."""

    images: int = 0
    alike: int = 0
    proved: int = 0

    def text(self) -> str:
        """Return the counts as one line."""
        pairs = f"{counted(self.alike, 'pair')} of different splits looked alike"
        proved = f", {self.proved or 'none'} {'is' if self.proved < 2 else 'are'} of one picture"
        return f"{counted(self.images, 'image')} compared; {pairs}{proved if self.alike else ''}"


def equal_scenes(seen: Sequence[AuditedScene]) -> list[list[Scene]]:
    """Return groups of scenes with equal pixels, in any split and any file format."""
    by_digest: dict[bytes, list[Scene]] = defaultdict(list)
    for each in seen:
        if each.digest is not None:
            by_digest[each.digest].append(each.scene)
    return [scenes for scenes in by_digest.values() if len(scenes) > 1]


def find_leaks(seen: Sequence[AuditedScene], compared: Comparison | None = None) -> list[Leak]:
    """Return pairs of scenes of two splits with equal pixels, common ground or a common part of one picture.

    Each scene is told at most once.

    Blocks of one image in two splits are none: their labels lie a buffer apart. `compared` counts.
    """
    leaks: list[Leak] = []
    for scenes in equal_scenes(seen):
        first = scenes[0]
        leaks += [
            Leak(first, scene, "have the same pixels")
            for scene in scenes
            if scene.split != first.split and not _are_separate_blocks(scene, first)
        ]
    for more in (_overlaps(seen), _copies(seen, leaks, compared or Comparison())):
        told = {scene.name for leak in leaks for scene in (leak.first, leak.second)}
        leaks += [each for each in more if each.first.name not in told or each.second.name not in told]
    return leaks


def cut_pictures(seen: Sequence[AuditedScene]) -> list[str]:
    """Return a line if tiles of one picture lie in several splits: some of their neighbours are learned."""
    found = pictures_of([each.scene.image for each in seen], [each.borders for each in seen])
    if found is None:
        return []
    splits: dict[str, set[str]] = defaultdict(set)
    learned, held = set[tuple[str, int, int]](), list[tuple[str, int, int]]()
    for begin, (row, col), each in zip(found[0], found[1].tolist(), seen, strict=True):
        splits[begin].add(each.scene.split)
        if each.scene.split == "train":
            learned.add((begin, row, col))
        else:
            held.append((begin, row, col))
    torn = sorted(Path(begin).name for begin, own in splits.items() if len(own) > 1)
    beside = sum(
        any((begin, row + y, col + x) in learned for y, x in ((0, 1), (1, 0), (0, -1), (-1, 0)))
        for begin, row, col in held
    )
    if not beside:
        return []
    return [
        f"tiles of {counted(len(torn), 'picture')} continue each other and lie in several splits: "
        f"{few(torn, 3)}; {beside} of {counted(len(held), 'tile')} held out touch tiles that train, "
        "so scores may be too high; dataset.split.group keeps pictures together"
    ]


def _copies(seen: Sequence[AuditedScene], leaks: Sequence[Leak], compared: Comparison) -> Iterator[Leak]:
    """Yield scenes of two splits that show a part of one picture, unless both are told already."""
    told = {scene.name for leak in leaks for scene in (leak.first, leak.second)}
    if len({each.scene.split for each in seen}) < 2:
        return

    compared.images = sum(each.size is not None for each in seen)

    def needs_proof(first: AuditedScene, second: AuditedScene) -> bool:
        one, other = first.scene, second.scene
        wanted = (
            one.split != other.split
            and not {one.name, other.name} <= told
            and not _are_separate_blocks(one, other)
        )
        compared.alike += wanted
        return wanted

    for one, other, common in common_parts(seen, needs_proof):
        compared.proved += 1
        told |= {one.scene.name, other.scene.name}
        yield Leak(one.scene, other.scene, common.text())


def common_parts(
    seen: Sequence[AuditedScene], needs_proof: Callable[[AuditedScene, AuditedScene], bool]
) -> Iterator[tuple[AuditedScene, AuditedScene, Common]]:
    """Yield pairs of scenes that show a part of one picture, proved on their pixels, the likeliest first.

    Args:
        needs_proof: returns False for two scenes that need no proof, by what was yielded before.
    """
    sized = [each for each in seen if each.size is not None]
    sizes = [each.size for each in sized if each.size is not None]
    for reading in named_windows([each.scene.image for each in sized], sizes):
        sampled = reading[:: max(1, len(reading) // _TRIED)]
        if 2 * sum(_prove_guess(sized, guess) is not None for guess in sampled) > len(sampled):
            yield from _prove_guesses(sized, reading, needs_proof)
    yield from _prove_guesses(sized, guesses([each.landmarks for each in sized]), needs_proof)


def _prove_guesses(
    seen: Sequence[AuditedScene],
    suggested: Sequence[Guess],
    needs_proof: Callable[[AuditedScene, AuditedScene], bool],
) -> Iterator[tuple[AuditedScene, AuditedScene, Common]]:
    """Yield what `common_parts` does, of guesses."""
    failed: Counter[int] = Counter()
    for guess in suggested:
        i, j = guess.first, guess.second
        if max(failed[i], failed[j]) >= _MOST_FAILED or not needs_proof(seen[i], seen[j]):
            continue
        if (common := _prove_guess(seen, guess)) is None:
            failed.update((i, j))
        else:
            yield seen[i], seen[j], common


def _prove_guess(seen: Sequence[AuditedScene], guess: Guess) -> Common | None:
    """Return the common part of two scenes, if their pixels prove it."""
    one, other = seen[guess.first], seen[guess.second]
    with (
        open_raster(one.scene.image, one.bands) as first,
        open_raster(other.scene.image, other.bands) as second,
    ):
        return prove_common(guess, (first.info.size, second.info.size), (reader(first), reader(second)))


def _overlaps(seen: Sequence[AuditedScene]) -> Iterator[Leak]:
    """Yield for each scene the first overlapping scene of another split, with the shared area."""
    infos = [each.info for each in seen if each.info is not None]
    with_header = [each for each in seen if each.info is not None]
    lying = [
        (each, ground)
        for each, ground in zip(with_header, outlines(infos), strict=True)
        if ground is not None
    ]
    if len({each.scene.split for each, _ in lying}) < 2:
        return
    lying.sort(key=lambda item: float(item[1][:, 0].min()))
    low, high = (np.array([f(ground, axis=0) for _, ground in lying]) for f in (np.min, np.max))
    splits = np.array([each.scene.split for each, _ in lying])
    for i, (each, ground) in enumerate(lying):
        stop = int(np.searchsorted(low[:, 0], high[i, 0]))
        near = (low[i + 1 : stop, 1] < high[i, 1]) & (high[i + 1 : stop, 1] > low[i, 1])
        for j in np.flatnonzero(near & (splits[i + 1 : stop] != splits[i])) + i + 1:
            other, its_ground = lying[j]
            if _are_separate_blocks(each.scene, other.scene):
                continue
            if (share := _shared_area(each, ground, other, its_ground)) > 0:
                yield Leak(each.scene, other.scene, f"show the same ground ({share:.1%} of the smaller)")
                break


def _are_separate_blocks(one: Scene, other: Scene) -> bool:
    """Return whether two scenes are of different blocks of one image."""
    return one.blocks and other.blocks and one.image == other.image


def _shared_area(a: AuditedScene, ground_a: Points, b: AuditedScene, ground_b: Points) -> float:
    """Return the common share of the smaller scene's area; 0 if the scenes only adjoin."""
    common = _common(ground_a, ground_b)
    areas = [_area(ground) for ground in (ground_a, ground_b)]
    area = _area(common)
    if area <= 0:
        return 0.0
    assert a.info is not None, "what has an outline has a header"
    assert b.info is not None, "what has an outline has a header"
    pixel = max(np.sqrt(area / info.size.pixels) for area, info in zip(areas, (a.info, b.info), strict=True))
    length = float(np.hypot(*np.ptp(common, axis=0)))
    if area < _LEAST_PIXELS * pixel * length:
        return 0.0
    if a.valid is not None or b.valid is not None:
        points = _points_in(common)
        both = _has_data(a, ground_a, points) & _has_data(b, ground_b, points)
        if both.mean() < _LEAST_POINTS:
            return 0.0
        area *= float(both.mean())
    return float(area / min(areas))


def _common(subject: Points, clip: Points) -> Points:
    """Return the common polygon of two convex ones, (N, 2); empty if there is none.

    Each side of one cuts the other (Sutherland and Hodgman 1974, doi 10.1145/360767.360802), in float64 from
    a corner of theirs: in float32 a common corner of small pixels is lost.
    """
    origin = clip[0]
    polygon, clip = subject - origin, clip - origin
    if _doubled_area(clip) < 0:
        clip = clip[::-1]
    for start, end in zip(clip, np.roll(clip, -1, axis=0), strict=True):
        if not len(polygon):
            break
        edge, away = end - start, polygon - start
        inside = edge[0] * away[:, 1] - edge[1] * away[:, 0]  # > 0: left of the side
        after, beyond = np.roll(polygon, -1, axis=0), np.roll(inside, -1)
        crossing = (inside < 0) != (beyond < 0)
        share = np.divide(inside, inside - beyond, out=np.zeros(len(inside)), where=crossing)
        cuts = polygon + share[:, None] * (after - polygon)
        corners = np.stack((polygon, cuts), axis=1)  # each corner, then the cut on the way to the next one
        polygon = corners[np.stack((inside >= 0, crossing), axis=1)]
    return polygon + origin


def _area(polygon: Points) -> float:
    return abs(_doubled_area(polygon)) / 2 if len(polygon) > 2 else 0.0


def _doubled_area(polygon: Points) -> float:
    """Return twice the area; negative if the corners run clockwise. From a corner, for its digits."""
    x, y = (polygon - polygon[0]).T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1))


def _points_in(polygon: Points) -> Points:
    """Return (N, 2) points of a regular grid within a convex polygon."""
    low, high = polygon.min(axis=0), polygon.max(axis=0)
    steps = (np.arange(_GRID) + 0.5) / _GRID
    points = np.stack(np.meshgrid(*(low[i] + steps * (high[i] - low[i]) for i in (0, 1))), axis=-1).reshape(
        -1, 2
    )
    turns = []
    for start, end in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        edge, away = end - start, points - start
        turns.append(edge[0] * away[:, 1] - edge[1] * away[:, 0])
    inside = (np.array(turns) >= 0).all(axis=0) | (np.array(turns) <= 0).all(axis=0)
    return points[inside]


def _has_data(seen: AuditedScene, ground: Points, points_N2: Points) -> NDArray[np.bool_]:
    """Return an (N,) mask of points on a scene's ground where it has data."""
    if seen.valid is None:
        return np.ones(len(points_N2), np.bool_)
    valid_HW = seen.valid()
    # From the upper left corner, in shares of the way to the upper right and to the lower left one.
    sides = np.stack((ground[1] - ground[0], ground[3] - ground[0]), axis=1)
    across, down = np.linalg.solve(sides, (points_N2 - ground[0]).T)
    row = np.clip((down * valid_HW.shape[0]).astype(int), 0, valid_HW.shape[0] - 1)
    col = np.clip((across * valid_HW.shape[1]).astype(int), 0, valid_HW.shape[1] - 1)
    return valid_HW[row, col]
