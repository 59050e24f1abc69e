"""Landmarks of images: points found again in shifted, turned, mirrored or rescaled copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window

_REDUCED, _SMALL = 2, 192
"""Pixels of an image in a pixel of the first octave, along a side: a mean of four has less noise; and the
side below which an image has too few of these, and is taken as it is."""
_OCTAVES, _LEVELS = 3, 3
_SIGMA = 1.6
"""Width of the first level in pixels of its octave, and levels in an octave (Lowe 2004,
doi 10.1023/B:VISI.0000029664.99615.94)."""
_SIDE, _SPACING = 8, 1.25
"""Samples along a side of a landmark's surroundings, and widths of its level from one to the next."""
_DENSITY, _LEAST = 32 / 65_536, 32
"""Landmarks of the first octave kept for a pixel, and of the smallest image; of the next octave half."""
_TABLES, _FEWEST_BITS, _MOST_BITS = 6, 12, 20
"""Times that buckets are made, and signs that make one: as many buckets as there are landmarks."""
_NEXT = 6
"""Landmarks of a bucket that each is compared with: buckets of repeated texture cost no more than others."""
_ALIKE = 0.85
"""Correlation of two landmarks' surroundings from which they may be one."""
_VOTES = 4
"""Landmarks that must agree on how two scenes lie over each other."""
_FARTHEST = 3.0
"""Times by which the pixels of two copies may differ in size."""
_AWAY = 0.06
"""Distance of agreeing landmarks from where they should lie, in shares of the extent of all."""

Floats = NDArray[np.float32]
_TURNS = np.array(
    [
        np.array([[0, 1], [1, 0]] if code & 4 else [[1, 0], [0, 1]])
        @ np.diag([-1 if code & 1 else 1, -1 if code & 2 else 1])
        for code in range(8)
    ],
    np.float64,
)
"""Matrix of x and y for each of the eight turns: mirrored along x (1), along y (2), then exchanged (4)."""


@dataclass(frozen=True)
class Landmarks:
    """Landmarks of a scene.

    Attributes:
        places_N2: x and y in pixels of the scene.
        widths_N: size in pixels of the scene.
        turns_N: which of the eight turns brings the surroundings to their common orientation.
        looks_ND: surroundings in this orientation, of mean 0 and length 127.
    """

    places_N2: Floats
    widths_N: Floats
    turns_N: NDArray[np.uint8]
    looks_ND: NDArray[np.int8]

    @classmethod
    def joined(cls, parts: Sequence[Landmarks]) -> Landmarks:
        """Return the landmarks of several parts of a scene, or of several scenes, as one."""
        return cls(
            np.concatenate([part.places_N2 for part in parts]),
            np.concatenate([part.widths_N for part in parts]),
            np.concatenate([part.turns_N for part in parts]),
            np.concatenate([part.looks_ND for part in parts]),
        )


NONE = Landmarks(
    np.zeros((0, 2), np.float32),
    np.zeros(0, np.float32),
    np.zeros(0, np.uint8),
    np.zeros((0, _SIDE**2), np.int8),
)


def grey(image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]) -> Floats:
    """Return the mean of the bands (H, W); where there is no data, the mean of the rest."""
    grey_HW: Floats = image_HWC[..., 0].astype(np.float32)
    for band in range(1, image_HWC.shape[2]):  # ten times as fast as a mean along the last axis
        grey_HW += image_HWC[..., band]
    grey_HW /= image_HWC.shape[2]
    if not valid_HW.all():
        grey_HW[~valid_HW] = grey_HW[valid_HW].mean() if valid_HW.any() else 0
    return grey_HW


def landmarks_of(grey_HW: Floats, window: Window) -> Landmarks:
    """Return the landmarks of a part of a scene: extremes of differences of Gaussians in place and width."""
    import cv2

    reduced = _REDUCED if min(grey_HW.shape) >= _SMALL else 1
    height, width = (n // reduced for n in grey_HW.shape)
    if min(height, width) < 2 * _SIDE:
        return NONE
    image = cv2.resize(grey_HW, (width, height), interpolation=cv2.INTER_AREA)
    widths = _SIGMA * 2 ** (np.arange(_LEVELS + 3) / _LEVELS)
    more = np.sqrt(np.diff(widths**2, prepend=0.25))  # pixels are half a pixel wide themselves
    levels: list[Floats] = []
    found, steps = [np.zeros((0, 5))], []
    for octave in range(_OCTAVES):
        for sigma in more:
            image = cv2.GaussianBlur(image, (0, 0), float(sigma))
            levels.append(image)
        own = _extremes(levels[-len(widths) :], widths, len(levels) - len(widths))
        most = max(_LEAST, round(_DENSITY * grey_HW.size)) >> octave
        if len(own) > most:
            own = own[np.sort(np.argpartition(-own[:, 3], most - 1)[:most])]
        found.append(own)
        steps.append(reduced * 2.0**octave)
        image, more = levels[-3][::2, ::2], np.r_[0.001, more[1:]]
        if min(image.shape) < 2 * _SIDE:
            break
    points = np.concatenate(found)
    turns, looks = _turn_patches(_surroundings(levels, points))
    step = np.array(steps)[points[:, 4].astype(np.int64) // len(widths)]
    places = (points[:, :2] + 0.5) * step[:, None] - 0.5 + (window.col, window.row)
    return Landmarks(places.astype(np.float32), (points[:, 2] * step).astype(np.float32), turns, looks)


def _extremes(levels: Sequence[Floats], widths: NDArray[np.float64], first: int) -> NDArray[np.float64]:
    """Return x, y, width, strength and level (N, 5) of the extremes of an octave, in the order of levels."""
    import cv2

    differences = [b - a for a, b in pairwise(levels)]
    kernel = np.ones((3, 3), np.uint8)
    height, width = levels[0].shape
    found = []
    for i in range(1, _LEVELS + 1):
        before, here, after = differences[i - 1 : i + 2]
        margin = int(np.ceil((_SIDE - 1) / 2 * _SPACING * widths[i]))
        inside = np.s_[margin : height - margin, margin : width - margin]
        high = (here >= cv2.dilate(here, kernel)) & (here > np.maximum(before, after))
        low = (here <= cv2.erode(here, kernel)) & (here < np.minimum(before, after))
        row, col = (each + margin for each in np.nonzero((high | low)[inside]))
        middle = here[row, col]
        sides = here[row, col - 1], here[row - 1, col], before[row, col]
        others = here[row, col + 1], here[row + 1, col], after[row, col]
        right, below, wider = _peak(np.stack(sides), middle, np.stack(others))
        sigma = widths[i] * 2 ** (wider / _LEVELS)
        level = np.full(len(row), first + i)
        found.append(np.stack([col + right, row + below, sigma, np.abs(middle), level], axis=1))
    return np.concatenate(found)


def _surroundings(levels: Sequence[Floats], points_N5: NDArray[np.float64]) -> Floats:
    """Return the surroundings (N, S, S) of points in the order of their levels."""
    import cv2

    steps = (np.arange(_SIDE) - (_SIDE - 1) / 2) * _SPACING
    x, y, sigma, _, level = points_N5.T
    patches = [np.zeros((0, _SIDE**2), np.float32)]
    for own in np.split(np.arange(len(level)), np.flatnonzero(np.diff(level)) + 1):
        for part in np.array_split(own, -(-len(own) // 30_000)) if len(own) else ():  # OpenCV: at most 32,767
            reach = sigma[part, None] * steps
            shape = len(part), _SIDE, _SIDE
            across = np.broadcast_to((x[part, None] + reach)[:, None], shape).reshape(len(part), -1)
            down = np.broadcast_to((y[part, None] + reach)[:, :, None], shape).reshape(len(part), -1)
            at = across.astype(np.float32), down.astype(np.float32)
            patches.append(cv2.remap(levels[int(level[part[0]])], *at, cv2.INTER_LINEAR))
    return np.concatenate(patches).reshape(-1, _SIDE, _SIDE)


def _peak(before: Floats, middle: Floats, after: Floats) -> Floats:
    """Return where a parabola through three values has its extreme, in steps from the middle one."""
    bent = before - 2 * middle + after
    bent[bent == 0] = np.inf
    offset: Floats = np.clip((before - after) / (2 * bent), -0.5, 0.5)
    return offset


def _turn_patches(patches_NSS: Floats) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Return the turn that makes each patch brightest to the right and below, and the patch so turned."""
    patches = patches_NSS - patches_NSS.mean(axis=(1, 2), keepdims=True)
    length = np.sqrt((patches**2).sum(axis=(1, 2), keepdims=True))
    patches = np.divide(patches, length, out=np.zeros_like(patches), where=length > 0)
    steps = (np.arange(_SIDE) - (_SIDE - 1) / 2).astype(np.float32)
    right, below = patches.sum(axis=1) @ steps, patches.sum(axis=2) @ steps
    patches = np.where((right < 0)[:, None, None], patches[:, :, ::-1], patches)
    patches = np.where((below < 0)[:, None, None], patches[:, ::-1], patches)
    exchanged = np.abs(below) > np.abs(right)
    patches = np.where(exchanged[:, None, None], patches.transpose(0, 2, 1), patches)
    turns = (right < 0) + 2 * (below < 0) + 4 * exchanged
    return turns.astype(np.uint8), np.round(127 * patches).astype(np.int8).reshape(len(patches), _SIDE**2)


# ---------------------------------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class Guess:
    """Possible position of one scene over another.

    Attributes:
        first, second: numbers of the scenes.
        matrix_23: x and y in the second of (x, y, 1) in the first.
        votes: landmarks that agree.
    """

    first: int
    second: int
    matrix_23: NDArray[np.float64]
    votes: int


def guesses(landmarks: Sequence[Landmarks]) -> list[Guess]:
    """Return pairs of scenes whose landmarks agree on how they lie over each other, most votes first.

    Landmarks with equal signs of random projections meet in a bucket (Charikar, STOC 2002), several times;
    within it each is compared with a few others in random order: the work grows as the number of landmarks.
    """
    scene_N = np.repeat(np.arange(len(landmarks)), [len(each.widths_N) for each in landmarks])
    if len(landmarks) < 2 or not len(scene_N):
        return []
    every = Landmarks.joined(landmarks)
    a, b = _alike(every.looks_ND, scene_N)
    swap = scene_N[a] > scene_N[b]
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    turn = np.einsum("nji,njk->nik", _TURNS[every.turns_N[b]], _TURNS[every.turns_N[a]])
    scale = np.log2(every.widths_N[b] / every.widths_N[a])
    kinds = (turn.reshape(-1, 4) @ np.array([1, 3, 9, 27])).round().astype(np.int64)
    found: dict[tuple[int, int], Guess] = {}
    tried = set[bytes]()
    for shift in (0.0, 0.5):  # a scale at the border of two bins is in the middle of another
        bins = np.floor(2 * scale + shift).astype(np.int64)
        key = np.stack([scene_N[a], scene_N[b], kinds, bins])
        order = np.lexsort(key[::-1])
        starts = np.flatnonzero(np.r_[True, (np.diff(key[:, order], axis=1) != 0).any(axis=0)])
        counts = np.diff(starts, append=len(order))
        for start, count in zip(starts[counts >= _VOTES], counts[counts >= _VOTES], strict=True):
            members = np.sort(order[start : start + count])
            if members.tobytes() in tried:
                continue
            tried.add(members.tobytes())
            i, j = int(scene_N[a[members[0]]]), int(scene_N[b[members[0]]])
            fit = _fit_matrix(every.places_N2[a[members]], every.places_N2[b[members]], turn[members[0]])
            if fit and (not found.get((i, j)) or found[i, j].votes < fit[1]):
                found[i, j] = Guess(i, j, *fit)
    return sorted(found.values(), key=lambda guess: (-guess.votes, guess.first, guess.second))


def _alike(
    looks_ND: NDArray[np.int8], scene_N: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs (M,), (M,) of landmarks of two scenes whose surroundings are alike."""
    rng = np.random.default_rng(0)
    bits = min(max(len(looks_ND).bit_length(), _FEWEST_BITS), _MOST_BITS)
    planes = rng.normal(size=(looks_ND.shape[1], _TABLES * bits)).astype(np.float32)
    shuffled = rng.permutation(len(looks_ND))
    chunks = np.array_split(shuffled, -(-len(looks_ND) // 65_536))
    powers = 1 << np.arange(bits)
    signs = [
        (looks_ND[chunk].astype(np.float32) @ planes > 0).reshape(-1, _TABLES, bits) @ powers
        for chunk in chunks
    ]
    keys = np.concatenate(signs)
    pairs = [np.zeros(0, np.int64)]
    for table in range(_TABLES):
        order = np.argsort(keys[:, table], kind="stable")
        key, member = keys[order, table], shuffled[order]
        for step in range(1, _NEXT + 1):
            a, b = member[:-step], member[step:]
            same = (key[:-step] == key[step:]) & (scene_N[a] != scene_N[b])
            a, b = a[same], b[same]
            close = _dot(looks_ND, a, b) >= _ALIKE * 127**2
            low, high = np.minimum(a[close], b[close]), np.maximum(a[close], b[close])
            pairs.append(low * len(looks_ND) + high)
    unique = np.unique(np.concatenate(pairs))
    return unique // len(looks_ND), unique % len(looks_ND)


def _dot(looks_ND: NDArray[np.int8], a: NDArray[np.int64], b: NDArray[np.int64]) -> Floats:
    """Return the products (M,) of pairs of surroundings."""
    parts = [np.zeros(0, np.float32)]
    for i in range(0, len(a), 65_536):
        one, other = (looks_ND[each[i : i + 65_536]].astype(np.float32) for each in (a, b))
        parts.append(np.einsum("nd,nd->n", one, other))
    return np.concatenate(parts)


def _fit_matrix(
    a_N2: Floats, b_N2: Floats, turn_22: NDArray[np.float64]
) -> tuple[NDArray[np.float64], int] | None:
    """Return the (2, 3) matrix of turn, scale and shift that most pairs of places agree on, and their number.

    Each two places give a scale and with it a shift; the best is fitted again to all that agree (RANSAC,
    Fischler and Bolles 1981, doi 10.1145/358669.358692).
    """
    a = a_N2.astype(np.float64) @ turn_22.T
    b = b_N2.astype(np.float64)
    i, j = np.triu_indices(min(len(a), 24), 1)
    apart_a, apart_b = a[j] - a[i], b[j] - b[i]
    length = (apart_a**2).sum(axis=1)
    scale = np.divide((apart_a * apart_b).sum(axis=1), length, out=np.zeros(len(i)), where=length > 0)
    close = np.abs(scale - 1) < 0.04
    scale = np.where(close, 1.0, scale)
    shift = b[i] - scale[:, None] * a[i]
    if not (good := (scale > 1 / _FARTHEST) & (scale < _FARTHEST)).any():
        return None
    away = np.abs(scale[good, None, None] * a + shift[good, None] - b).max(axis=2)
    reach = max(4.0, _AWAY * float(np.ptp(b, axis=0).max()))
    near = away < min(reach, 8.0)
    best = near[np.argmax(near.sum(axis=1))]
    votes = len(np.unique(np.round(a[best] / 4), axis=0))
    if votes < _VOTES:
        return None
    own_a, own_b = a[best] - a[best].mean(axis=0), b[best] - b[best].mean(axis=0)
    fitted = float((own_a * own_b).sum() / max(1e-9, (own_a**2).sum()))
    if abs(fitted - 1) < 0.04:
        fitted = 1.0
    if not 1 / _FARTHEST < fitted < _FARTHEST:
        return None
    move = np.median(b[best] - fitted * a[best], axis=0)
    return np.concatenate([fitted * turn_22, move[:, None]], axis=1), votes
