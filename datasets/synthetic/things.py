"""Objects painted on a canvas: houses, trees, cars and their surroundings. All lengths in metres."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size

from .canvas import Canvas, Points, Surface, rectangle
from .cover import Cover, Season
from .texture import Pattern, sample_field

_GLASS = np.array([0.07, 0.08, 0.10, 0.08], np.float32)
_WHITE = np.array([0.80, 0.80, 0.78, 0.78], np.float32)


@dataclass(frozen=True)
class Site:
    """Place of an object: centre, and extent along `angle` (radians) and across it."""

    x: float
    y: float
    length: float
    width: float
    angle: float

    def place(self, along: float, across: float) -> tuple[float, float]:
        """Return the world position of a point given in metres along and across, from the centre."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        return float(self.x + along * cos - across * sin), float(self.y + along * sin + across * cos)

    def corners(self, *points: tuple[float, float]) -> Points:
        """Return the world outline of points given in metres along and across."""
        return np.array([self.place(along, across) for along, across in points])

    def part(self, along: float, across: float, length: float, width: float, turn: float = 0.0) -> Site:
        """Return a smaller site within this one, rotated by `turn` radians relative to it."""
        return Site(*self.place(along, across), length, width, self.angle + turn)

    def outline(self) -> Points:
        """Return the four corners."""
        return rectangle(self.x, self.y, self.length, self.width, self.angle)


def contrast(rng: np.random.Generator) -> float:
    """Draw the deviation of a surface's pattern, from one range for all classes, so it reveals none."""
    return float(rng.uniform(0.13, 0.22))


# ------------------------------------------------------------------------------------------ houses


@dataclass(frozen=True)
class House:
    """A building: gabled, hipped or flat."""

    site: Site
    height: float
    roof: str


def paint_house(canvas: Canvas, house: House, season: Season, rng: np.random.Generator) -> None:
    """Paint a roof with its courses or seams, and the objects on it."""
    colour = season.colour("roof", rng)
    paint = _flat_roof if house.roof == "flat" else _pitched_roof
    paint(canvas, house, colour, rng)


def _facing_sun(canvas: Canvas, angle: float, pitch: float) -> float:
    """Return the light on a slope that descends towards `angle`, relative to level ground."""
    return 1.0 - pitch * float(np.cos(angle) * canvas.sun.x + np.sin(angle) * canvas.sun.y)


def _pitched_roof(
    canvas: Canvas, house: House, colour: NDArray[np.float32], rng: np.random.Generator
) -> None:
    site, a, b = house.site, house.site.length / 2, house.site.width / 2
    ridge = a - (b if house.roof == "hipped" else 0.0)
    period, deviation, pitch = rng.uniform(0.32, 0.45), contrast(rng), rng.uniform(0.2, 0.4)
    slopes = [
        (site.corners((-a, -b), (a, -b), (ridge, 0), (-ridge, 0)), -np.pi / 2, 0.0),
        (site.corners((-a, b), (a, b), (ridge, 0), (-ridge, 0)), np.pi / 2, 0.0),
        (site.corners((a, -b), (a, b), (ridge, 0)), 0.0, np.pi / 2),
        (site.corners((-a, -b), (-a, b), (-ridge, 0)), np.pi, np.pi / 2),
    ]
    for outline, falls, turn in slopes[: 4 if house.roof == "hipped" else 2]:
        pattern = Pattern("rows", period, deviation, site.angle + turn, 0.04)
        surface = Surface(colour, pattern).shaded(_facing_sun(canvas, site.angle + falls, pitch))
        canvas.paint(outline, surface, Cover.BUILDING, rng)
    if not canvas.fine:
        return
    canvas.tint(site.part(0, 0, 2 * ridge, 0.16).outline(), np.minimum(colour * 1.5, 0.9))
    _roof_windows(canvas, site, rng)
    if rng.random() < 0.3 and a > 3:
        _solar_panels(canvas, site.part(-a * 0.3, b * 0.5, a * 0.9, b * 0.6))
    chimney = site.part(rng.uniform(-0.5, 0.5) * a, -0.25 * b, 0.7, 0.5)
    canvas.tint(chimney.part(0.3, 0.3, 0.7, 0.5).outline(), colour * 0.35)
    canvas.tint(chimney.outline(), np.array([0.5, 0.33, 0.28, 0.4], np.float32))


def _roof_windows(canvas: Canvas, site: Site, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(0, 4))):
        along, side = rng.uniform(-0.4, 0.4) * site.length, rng.choice([-1, 1])
        canvas.tint(site.part(along, side * 0.25 * site.width, 0.8, 1.0).outline(), _GLASS * 1.5)


def _solar_panels(canvas: Canvas, site: Site) -> None:
    canvas.tint(site.outline(), np.array([0.12, 0.14, 0.24, 0.12], np.float32))
    for along in np.arange(-site.length / 2, site.length / 2, 1.0):
        canvas.tint(site.part(float(along), 0, 0.07, site.width).outline(), _WHITE * 0.8)


def _flat_roof(canvas: Canvas, house: House, colour: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Paint roof sheets with seams and a light parapet, with ventilators and skylights."""
    site = house.site
    canvas.paint(
        site.outline(), Surface(np.minimum(colour * 1.45, 0.9), Pattern("plain", 1, 0)), Cover.BUILDING, rng
    )
    inner = site.part(0, 0, site.length - 0.7, site.width - 0.7)
    pattern = Pattern("seams", rng.uniform(0.5, 0.8), contrast(rng), site.angle + rng.choice([0, np.pi / 2]))
    canvas.paint(inner.outline(), Surface(colour, pattern), Cover.BUILDING, rng)
    for _ in range(int(site.length * site.width / 30) if canvas.fine else 0):
        along, across = rng.uniform(-0.38, 0.38, 2) * (site.length, site.width)
        box = site.part(float(along), float(across), *map(float, rng.uniform(0.6, 1.8, 2)))
        shade = site.place(along + canvas.sun.x * 0.3, across + canvas.sun.y * 0.3)
        canvas.tint(rectangle(*shade, box.length, box.width, box.angle), colour * 0.35)
        canvas.tint(box.outline(), _WHITE * np.float32(rng.uniform(0.4, 1.0)))


# ------------------------------------------------------------------------------------------- trees


@dataclass(frozen=True)
class Tree:
    """A tree crown: centre and radius; about as high as wide."""

    x: float
    y: float
    radius: float


_TURN = np.linspace(0, 2 * np.pi, 32, endpoint=False)
_CIRCLE = np.stack([np.cos(_TURN), np.sin(_TURN)], 1)
_LOBES = np.outer(_TURN, [2, 3, 5, 7])


def crown_outline(tree: Tree, rng: np.random.Generator) -> Points:
    """Return a lobed circle."""
    phases, weights = rng.uniform(0, 2 * np.pi, 4), rng.uniform(0.02, 0.07, 4)
    lobes = 1 + (weights * np.sin(_LOBES + phases)).sum(1)
    circle = _CIRCLE * (tree.radius * lobes)[:, None]
    outline: Points = circle + np.array([tree.x, tree.y])
    return outline


def paint_tree(canvas: Canvas, tree: Tree, colour: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Paint a crown of lit clumps: light on the sunny side, dark on the other side and between clumps."""
    stencil = canvas.stencil(crown_outline(tree, rng))
    if stencil is None:
        return
    window, mask = stencil
    gsd = canvas.gsd
    x = (np.arange(window.width) + window.col + 0.5)[None] * gsd - tree.x
    y = (np.arange(window.height) + window.row + 0.5)[:, None] * gsd - tree.y
    across = -(x * canvas.sun.x + y * canvas.sun.y) / tree.radius
    fall = np.clip((x**2 + y**2) / tree.radius**2, 0, 1)
    factor = 0.95 + 0.38 * across - 0.25 * fall + _clumps(canvas, window.size, rng)
    canvas.blend(window, mask, colour, np.clip(factor, 0.2, 2.0).astype(np.float32), Cover.TREE)


def _clumps(canvas: Canvas, size: Size, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the (H, W) light on clumps of leaves, each a small dome lit from the sun's side."""
    feature = rng.uniform(0.55, 0.85)
    pixels = feature / canvas.gsd
    if pixels < 1.5:
        return np.zeros((size.height, size.width), np.float32)
    heights = sample_field("domes", size, pixels, rng)
    step = max(1, round(pixels / 8))
    ahead = np.roll(heights, (round(canvas.sun.y * step), round(canvas.sun.x * step)), (0, 1))
    lit = (heights - ahead) * (pixels / 8 / step)
    return (0.9 * lit + 0.45 * (heights - 0.65)).astype(np.float32)


# -------------------------------------------------------------------------------- cars and clutter


def paint_car(canvas: Canvas, site: Site, season: Season, rng: np.random.Generator) -> None:
    """Paint body, windscreens and a lighter roof; the car points along `site.angle`."""
    colour = season.colour("car", rng)
    a, b = site.length / 2, site.width / 2
    body = site.corners(
        (-a, -b * 0.7), (-a * 0.92, -b), (a * 0.85, -b), (a, -b * 0.6),
        (a, b * 0.6), (a * 0.85, b), (-a * 0.92, b), (-a, b * 0.7),
    )  # fmt: skip
    canvas.paint(body, Surface(colour, Pattern("plain", 1, 0)), Cover.CAR, rng)
    canvas.tint(site.part(-0.05 * site.length, 0, 0.58 * site.length, 0.82 * site.width).outline(), _GLASS)
    roof = site.part(-0.08 * site.length, 0, 0.30 * site.length, 0.74 * site.width)
    canvas.tint(roof.outline(), np.minimum(colour * 1.15, 0.95))


CLUTTER = ("heap", "heap", "tarpaulin", "container", "pool")


def paint_clutter(canvas: Canvas, site: Site, what: str, season: Season, rng: np.random.Generator) -> None:
    """Paint a heap of rubble, a container, a chequered tarpaulin or a pool with its rim."""
    colour = season.colour("clutter", rng)
    if what == "heap":
        heap = crown_outline(Tree(site.x, site.y, (site.length + site.width) / 4), rng)
        pattern = Pattern("cells", rng.uniform(0.4, 0.6), 1.9 * contrast(rng), 0.0, 0.03)
        canvas.paint(heap, Surface(colour, pattern), Cover.CLUTTER, rng)
    elif what == "pool":
        canvas.paint(site.outline(), Surface(_WHITE * 0.9, Pattern("plain", 1, 0)), Cover.CLUTTER, rng)
        water = Surface(np.array([0.25, 0.5, 0.6, 0.1], np.float32), Pattern("grain", 0.5, 0.08))
        canvas.paint(
            site.part(0, 0, site.length - 0.6, site.width - 0.6).outline(), water, Cover.CLUTTER, rng
        )
    elif what == "container":
        for lane in np.arange(-site.width / 2 + 1.2, site.width / 2, 2.6):
            pattern = Pattern("seams", 0.4, 0.25, site.angle + np.pi / 2, 0.02)
            box = site.part(rng.uniform(-0.3, 0.3), float(lane), min(site.length, 6.0), 2.4)
            colour = season.colour("clutter", rng)
            canvas.paint(box.outline(), Surface(colour, pattern), Cover.CLUTTER, rng)
    else:
        pattern = Pattern("checks", rng.uniform(0.5, 0.8), 1.8 * contrast(rng), site.angle, 0.03)
        canvas.paint(site.outline(), Surface(colour, pattern), Cover.CLUTTER, rng)


CLUTTER_HEIGHT = {"heap": 0.8, "container": 2.2, "tarpaulin": 0.5, "pool": 0.0}
"""Metres, for the shadow."""
