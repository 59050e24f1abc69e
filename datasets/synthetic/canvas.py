"""Canvas of a scene being painted: land cover, patterns of surfaces, and reflectance with shadows, in metres.

All patterns have about the same local deviation, so a tiled roof differs from a lawn only by the arrangement
of the pattern (courses, slabs, tufts, clumps), which no statistic of single pixels shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segmenter.grid.geometry import Size, Window


class Cover(IntEnum):
    """Kinds of cover, mapped to its own classes by each dataset."""

    ROAD = 0
    PAVING = 1
    PARKING = 2
    BUILDING = 3
    LAWN = 4
    MEADOW = 5
    TREE = 6
    FOREST = 7
    CAR = 8
    CLUTTER = 9
    WATER = 10
    CROPS = 11
    GREENHOUSE = 12
    SOIL = 13
    EARTHWORKS = 14
    SPORTS = 15
    AIRPORT = 16


FAMILIES: dict[str, tuple[float, float, float, float]] = {
    "grey": (0.40, 0.40, 0.39, 0.42),
    "dark": (0.22, 0.22, 0.23, 0.24),
    "light": (0.64, 0.63, 0.60, 0.64),
    "red": (0.48, 0.31, 0.25, 0.47),
    "tan": (0.50, 0.45, 0.34, 0.54),
    "green": (0.28, 0.36, 0.20, 0.58),
    "blue": (0.25, 0.34, 0.46, 0.30),
}
"""Reflectance in red, green, blue and near infrared. The classes share these families, as they do in
towns: slate roofs and asphalt, brick paving and tiles, dry lawns and gravel; so colour alone says little."""

_REFLECTANCES = np.array(list(FAMILIES.values()))

MIXES: dict[str, dict[str, float]] = {
    "street": {"grey": 0.70, "dark": 0.18, "light": 0.12},
    "paving": {"grey": 0.40, "light": 0.12, "red": 0.30, "tan": 0.18},
    "roof": {"red": 0.36, "grey": 0.28, "dark": 0.11, "light": 0.07, "tan": 0.09, "green": 0.09},
    "grass": {"green": 0.66, "tan": 0.24, "red": 0.10},
    "crown": {"green": 0.80, "tan": 0.10, "red": 0.10},
    "car": {"grey": 0.26, "dark": 0.20, "light": 0.24, "red": 0.14, "blue": 0.12, "green": 0.04},
    "clutter": {"grey": 0.24, "red": 0.20, "tan": 0.24, "light": 0.08, "green": 0.08, "blue": 0.16},
    "soil": {"red": 0.35, "tan": 0.50, "grey": 0.15},
    "crops": {"green": 0.60, "tan": 0.28, "red": 0.12},
    "forest": {"green": 0.90, "tan": 0.05, "red": 0.05},
    "water": {"blue": 0.75, "dark": 0.25},
}
"""Frequency of each family's colours for each thing."""


@dataclass(frozen=True)
class Season:
    """Colour statistics of one scene: the share of each colour family in each mix.

    Attributes:
        mixes: for each kind of object, cumulative shares in the order of `FAMILIES`.
    """

    mixes: Mapping[str, NDArray[np.float64]]

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Season:
        """Draw the season of a scene: all mixes randomly perturbed."""
        shares = {k: np.array([mix.get(f, 0.0) for f in FAMILIES]) for k, mix in MIXES.items()}
        leaning = {k: s * rng.lognormal(0.0, 0.35, s.size) for k, s in shares.items()}
        return cls({k: np.cumsum(s / s.sum()) for k, s in leaning.items()})

    def colour(self, what: str, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return (4,) reflectance of one object: that of a family, lighter or darker, slightly tinted."""
        family = _REFLECTANCES[min(int(np.searchsorted(self.mixes[what], rng.random())), len(FAMILIES) - 1)]
        tint = rng.lognormal(0.0, 0.15) * rng.lognormal(0.0, 0.05, 4)
        return np.clip(family * tint, 0.03, 0.95).astype(np.float32)


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


Points = NDArray[np.float64]
"""(N, 2) corners in metres: x to the right, y down, from the scene's upper left corner."""

_SUBPIXEL_BITS = 4
_SMALLEST_PX = 0.7
"""Pixels; objects that are smaller in both directions are not painted: a sensor would not show it."""
SKYLIGHT = np.array([0.36, 0.40, 0.48, 0.30], np.float32)
"""Light that is left in shadow: bluer, and poor in near infrared."""


@dataclass(frozen=True)
class Sun:
    """Direction and length of shadows.

    Attributes:
        x, y: unit vector that shadows point along.
        length: metres of shadow per metre of height.
    """

    x: float
    y: float
    length: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Sun:
        """Draw a sun in the southern half of the sky, 42° to 63° high, as in flights around noon."""
        azimuth = rng.uniform(-1.1, 1.1)
        return cls(float(np.sin(azimuth)), float(-np.cos(azimuth)), float(rng.uniform(0.5, 1.1)))


@dataclass(frozen=True)
class Surface:
    """A colour, (4,) reflectance, with a pattern."""

    colour: NDArray[np.float32]
    pattern: Pattern

    def shaded(self, factor: float) -> Surface:
        """Return the same surface in other light, such as on a roof's shaded slope."""
        return Surface(self.colour * np.float32(factor), self.pattern)


class Canvas:
    """Scene being painted.

    Attributes:
        gsd: metres per pixel.
        reflectance_HWC: float32 red, green, blue, near infrared.
        cover_HW: uint8 `Cover`.
    """

    def __init__(self, size: Size, gsd: float, sun: Sun) -> None:
        self.size = size
        self.gsd = gsd
        self.sun = sun
        self.reflectance_HWC = np.zeros((size.height, size.width, 4), np.float32)
        self.cover_HW = np.zeros((size.height, size.width), np.uint8)
        self._shadow_HW = np.zeros((size.height, size.width), np.uint8)

    @property
    def fine(self) -> bool:
        """True if objects of half a metre are visible, so that drawing them is worth the time."""
        return self.gsd < 1.0

    @property
    def extent(self) -> tuple[float, float]:
        """Extent in metres in x and in y."""
        return self.size.width * self.gsd, self.size.height * self.gsd

    def stencil(self, outline: Points) -> tuple[Window, NDArray[np.bool_]] | None:
        """Return the window and mask of the pixels inside an outline; None if it is outside."""
        pixels = outline / self.gsd
        if np.ptp(pixels, axis=0).max() < _SMALLEST_PX:
            return None
        (left, top), (right, bottom) = np.floor(pixels.min(0)), np.ceil(pixels.max(0)) + 1
        box = Window(int(top), int(left), int(bottom - top), int(right - left))
        window = box.intersection(Window.of(self.size))
        if not window.size.pixels:
            return None
        mask = np.zeros((window.height, window.width), np.uint8)
        # Pixel centres lie at half pixels for us, at whole ones for OpenCV.
        corners = (pixels - (window.col + 0.5, window.row + 0.5)) * 2**_SUBPIXEL_BITS
        cv2.fillPoly(mask, [np.round(corners).astype(np.int32)], 1, shift=_SUBPIXEL_BITS)
        return (window, mask.astype(bool)) if mask.any() else None

    def paint(self, outline: Points, surface: Surface, cover: Cover, rng: np.random.Generator) -> None:
        """Cover the inside of an outline."""
        stencil = self.stencil(outline)
        if stencil is None:
            return
        window, mask = stencil
        self.blend(window, mask, surface.colour, relief(surface.pattern, window, self.gsd, rng), cover)

    def blend(
        self,
        window: Window,
        mask: NDArray[np.bool_],
        colour: NDArray[np.float32],
        factor: NDArray[np.float32],
        cover: Cover,
    ) -> None:
        """Write colour × factor and the cover where `mask` is set; mask and factor have the window's size."""
        self.reflectance_HWC[window.slices()][mask] = colour * factor[mask][:, None]
        self.cover_HW[window.slices()][mask] = cover

    def tint(self, outline: Points, colour: NDArray[np.float32]) -> None:
        """Paint a plain colour without changing the cover: markings, kerbs, panes."""
        stencil = self.stencil(outline)
        if stencil is not None:
            window, mask = stencil
            self.reflectance_HWC[window.slices()][mask] = colour

    def cast(self, outline: Points, height: float) -> None:
        """Mark the shadow of a convex outline at `height` metres; `apply_shadows` darkens it."""
        shift = np.array([self.sun.x, self.sun.y]) * (self.sun.length * height)
        both = np.concatenate([outline, outline + shift])
        hull = cv2.convexHull(both.astype(np.float32))[:, 0] / self.gsd - 0.5
        corners = np.round(hull * 2**_SUBPIXEL_BITS).astype(np.int32)
        cv2.fillPoly(self._shadow_HW, [corners], 255, shift=_SUBPIXEL_BITS)

    def apply_shadows(self) -> None:
        """Darken marked shadows on everything painted so far, and clear the marks."""
        blur = max(0.5, 0.06 / self.gsd)
        soft = cv2.GaussianBlur(self._shadow_HW, (0, 0), blur).astype(np.float32) / 255
        for band in range(4):
            self.reflectance_HWC[..., band] *= 1 - soft * (1 - SKYLIGHT[band])
        self._shadow_HW[:] = 0


def rectangle(x: float, y: float, length: float, width: float, angle: float) -> Points:
    """Return the corners of a rectangle around (x, y), `length` along `angle` (radians), in metres."""
    cos, sin = np.cos(angle), np.sin(angle)
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (length / 2, width / 2)
    turned: Points = corners @ np.array([[cos, sin], [-sin, cos]]) + (x, y)
    return turned


def parcel_corners(
    canvas: Canvas, step: float, margin: int, jitter: float, rng: np.random.Generator
) -> Points:
    """Return (rows, columns, 2) corners of parcels in metres: a shifted, rotated and jittered grid.

    Args:
        step: metres from one corner to the next; `jitter`: most that a corner moves, as a part of it.
        margin: steps beyond the canvas on each side.
    """
    reach = float(np.hypot(*canvas.extent)) / 2
    steps = np.arange(-np.ceil(reach / step) - margin, np.ceil(reach / step) + margin + 1) * step
    turn, moved = rng.uniform(0, np.pi / 2), rng.uniform(-0.5, 0.5, 2) * step
    x, y = np.meshgrid(steps + moved[0], steps + moved[1])
    shaken = np.stack([x, y], -1) + rng.uniform(-jitter, jitter, (*x.shape, 2)) * step
    cos, sin = np.cos(turn), np.sin(turn)
    turned: Points = shaken @ np.array([[cos, sin], [-sin, cos]]) + np.array(canvas.extent) / 2
    return turned
