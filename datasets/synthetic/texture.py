"""Patterns of surfaces: zero mean, standard deviation near one, sized in metres.

All patterns have about the same local deviation, so a tiled roof differs from a lawn only by the arrangement
of the pattern (courses, slabs, tufts, clumps), which no statistic of single pixels shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segmenter.grid.geometry import Size, Window

Field = NDArray[np.float32]

_SIDE = 512
_FEATURE = 6.0
"""Pixels across one feature of the stored fields, which wrap around at `_SIDE`."""


def _normal(field: NDArray[np.floating]) -> Field:
    return ((field - field.mean()) / field.std()).astype(np.float32)


def _seeds_nearest(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return distance and number of the nearest of many seed points, on a field that wraps around."""
    count = int((_SIDE / _FEATURE) ** 2)
    seeds = np.zeros((_SIDE, _SIDE), np.int32)
    seeds[tuple(rng.integers(0, _SIDE, (2, count)))] = np.arange(1, count + 1)
    wrapped = np.pad(seeds, 64, mode="wrap")
    distance, (rows, cols) = ndimage.distance_transform_edt(wrapped == 0, return_indices=True)
    inner = slice(64, -64)
    return distance[inner, inner], wrapped[rows, cols][inner, inner]


@cache
def stored_field(kind: str) -> Field:
    """Return a (512, 512) field that wraps around: `grain` (noise), `domes` (heights) or `cells`.

    All scenes share it, which makes thousands of small tiles affordable; each use has another position,
    rotation and scale.
    """
    rng = np.random.default_rng(20201)
    if kind == "grain":
        return _normal(
            ndimage.gaussian_filter(rng.standard_normal((_SIDE, _SIDE)), _FEATURE / 3, mode="wrap")
        )
    distance, nearest = _seeds_nearest(rng)
    if kind == "domes":
        return (np.clip(1.2 - distance / _FEATURE, 0, None) ** 0.7).astype(np.float32)
    values = rng.standard_normal(int(nearest.max()) + 1)
    return _normal(values[nearest] + 0.8 * np.clip(1 - distance / 2, 0, 1))


def sample_field(kind: str, size: Size, feature_px: float, rng: np.random.Generator) -> Field:
    """Return an (H, W) sample of a stored field, at random shift and angle, features `feature_px` across."""
    scale = _FEATURE / feature_px
    turn = rng.uniform(0, 2 * np.pi)
    cos, sin = scale * np.cos(turn), scale * np.sin(turn)
    row, col = rng.uniform(0, _SIDE, 2)
    matrix = np.array([[cos, -sin, col], [sin, cos, row]], np.float64)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    field = stored_field(kind)
    return cv2.warpAffine(field, matrix, (size.width, size.height), flags=flags, borderMode=cv2.BORDER_WRAP)


@dataclass(frozen=True)
class Pattern:
    """Pattern of a surface.

    Attributes:
        kind: `grain`, `cells`, `rows`, `slabs`, `seams`, `checks` or `plain`.
        period: metres from one feature to the next.
        contrast: standard deviation, as a share of the reflectance.
        angle: radians; direction across rows, slabs, seams and checks.
        blotches: standard deviation of the slow variation over some metres.
    """

    kind: str
    period: float
    contrast: float
    angle: float = 0.0
    blotches: float = 0.05


def _across(window: Window, pattern: Pattern, gsd: float) -> tuple[Field, Field]:
    """Return each pixel's position along and across the pattern, in periods."""
    cols = (np.arange(window.width, dtype=np.float32) + window.col)[None] * np.float32(gsd / pattern.period)
    rows = (np.arange(window.height, dtype=np.float32) + window.row)[:, None] * np.float32(
        gsd / pattern.period
    )
    cos, sin = np.float32(np.cos(pattern.angle)), np.float32(np.sin(pattern.angle))
    return cols * cos + rows * sin, rows * cos - cols * sin


def _per_course(number: Field, rng: np.random.Generator) -> Field:
    """Return a random value for each integer of `number`."""
    values = rng.standard_normal(997).astype(np.float32)
    return values[number.astype(np.int32) % 997]


def _rows(along: Field, across: Field, rng: np.random.Generator) -> Field:
    """Return courses of tiles or furrows: a saw-tooth of light and dark lines."""
    return ((across % 1.0) - 0.5) * 3.4 + 0.15 * _per_course(np.floor(across), rng)


def _slabs(along: Field, across: Field, rng: np.random.Generator) -> Field:
    """Return a grid of slabs with random lightness and dark joints."""
    joints = ((across % 1.0) < 0.2) | ((along % 1.0) < 0.2)
    slab = _per_course(np.floor(across) * 31 + np.floor(along), rng)
    return np.where(joints, np.float32(-1.5), 0.5 + 0.35 * slab).astype(np.float32)


def _seams(along: Field, across: Field, rng: np.random.Generator) -> Field:
    """Return sheets of metal or felt with narrow light seams."""
    seam = (across % 1.0) < 0.25
    return np.where(seam, np.float32(1.7), -0.55).astype(np.float32)


def _checks(along: Field, across: Field, rng: np.random.Generator) -> Field:
    """Return a chequered pattern."""
    return (2.0 * ((np.floor(across) + np.floor(along)) % 2) - 1.0).astype(np.float32)


_REGULAR: dict[str, Callable[[Field, Field, np.random.Generator], Field]] = {
    "rows": _rows,
    "slabs": _slabs,
    "seams": _seams,
    "checks": _checks,
}


def relief(pattern: Pattern, window: Window, gsd: float, rng: np.random.Generator) -> Field:
    """Return an (H, W) factor around 1 by which a surface's reflectance is multiplied.

    Args:
        window: window of the scene to fill; regular patterns continue from one window to the next.
        gsd: metres per pixel. A pattern finer than two pixels fades, as it does on a sensor.
    """
    size = window.size
    factor = 1 + pattern.blotches * sample_field("grain", size, max(3.0 / gsd, 4.0), rng)
    visible = float(np.clip(pattern.period / gsd / 2 - 0.75, 0.0, 1.0))
    if pattern.kind == "plain" or visible == 0:
        return factor
    if pattern.kind in _REGULAR:
        field = _REGULAR[pattern.kind](*_across(window, pattern, gsd), rng)
    else:
        field = sample_field(pattern.kind, size, pattern.period / gsd, rng)
    return np.clip(factor + pattern.contrast * visible * field, 0.15, 2.5).astype(np.float32)
