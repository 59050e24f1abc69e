"""Town quarter: streets with kerbs, lots with houses, gardens, trees, cars, clutter; lengths in metres."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size

from .canvas import Canvas, Cover, Pattern, Points, Season, Surface, rectangle, sample_field

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


PAINT = np.array([0.78, 0.78, 0.75, 0.74], np.float32)
_KERB = np.array([0.60, 0.59, 0.57, 0.58], np.float32)


@dataclass
class Town:
    """Town being painted: ground at once, objects on it after the shadows.

    Attributes:
        clutter_share: share of gardens with a heap, a pool or the like.
        sites_share: share of lots that are building sites.
    """

    canvas: Canvas
    season: Season
    rng: np.random.Generator
    clutter_share: float = 0.8
    sites_share: float = 0.08
    houses: list[House] = field(default_factory=list)
    trees: list[Tree] = field(default_factory=list)
    cars: list[Site] = field(default_factory=list)
    clutter: list[tuple[Site, str]] = field(default_factory=list)
    streets: list[Surface] = field(default_factory=list)

    def street(self) -> Surface:
        """Return the surface of a street: mostly the town's usual surface."""
        if not self.streets or self.rng.random() < 0.15:
            self.streets.append(Surface(self.season.colour("street", self.rng), _asphalt(self.rng)))
        return self.streets[0 if self.rng.random() < 0.7 else -1]

    def ground(self, site: Site, what: str, cover: Cover, pattern: Pattern) -> None:
        """Paint a rectangle of ground `what` in one of the season's colours."""
        surface = Surface(self.season.colour(what, self.rng), pattern)
        self.canvas.paint(site.outline(), surface, cover, self.rng)

    def grass(self, site: Site, cover: Cover = Cover.LAWN) -> None:
        """Paint a lawn or a bed: soft tufts."""
        period = self.rng.uniform(0.25, 0.4)
        self.ground(site, "grass", cover, Pattern("grain", period, contrast(self.rng), 0.0, 0.10))

    def slabs(self, site: Site) -> None:
        """Paint paving with joints."""
        period = self.rng.uniform(0.4, 0.6)
        self.ground(
            site, "paving", Cover.PAVING, Pattern("slabs", period, contrast(self.rng), site.angle, 0.03)
        )

    def raise_up(self) -> None:
        """Cast the shadows and paint objects: low ones in the shadow of high ones, trees on top."""
        for car in self.cars:
            self.canvas.cast(car.outline(), 1.3)
        for site, what in self.clutter:
            self.canvas.cast(site.outline() if what != "heap" else _round(site), CLUTTER_HEIGHT[what])
        self.canvas.apply_shadows()
        for site, what in self.clutter:
            paint_clutter(self.canvas, site, what, self.season, self.rng)
        for car in self.cars:
            paint_car(self.canvas, car, self.season, self.rng)
        self._high()

    def _high(self) -> None:
        for house in self.houses:
            self.canvas.cast(house.site.outline(), house.height)
        for tree in self.trees:
            self.canvas.cast(crown_outline(tree, self.rng), 1.3 * tree.radius)
        self.canvas.apply_shadows()
        for house in self.houses:
            paint_house(self.canvas, house, self.season, self.rng)
        for tree in self.trees:
            paint_tree(self.canvas, tree, self.season.colour("crown", self.rng), self.rng)


def _asphalt(rng: np.random.Generator) -> Pattern:
    """Return the pattern of asphalt: fine grain with patches."""
    return Pattern("grain", float(rng.uniform(0.12, 0.2)), 0.8 * contrast(rng), 0.0, 0.07)


def _round(site: Site) -> NDArray[np.float64]:
    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    radius = (site.length + site.width) / 4
    return np.stack([site.x + radius * np.cos(angles), site.y + radius * np.sin(angles)], 1)


def draw_town(canvas: Canvas, season: Season, rng: np.random.Generator) -> None:
    """Fill a canvas with a town; a crossing is near its middle, so that even small scenes show a street."""
    width, height = canvas.extent
    reach = float(np.hypot(width, height)) / 2 + 30
    middle = Site(width / 2, height / 2, 2 * reach, 2 * reach, float(rng.uniform(-0.5, 0.5)))
    town = Town(canvas, season, rng)
    columns, rows = intervals(reach, 34.0, 52.0, rng), intervals(reach, 25.0, 31.0, rng)
    offset = rng.uniform(-6, 6, 2)
    for left, right in columns:
        for top, bottom in rows:
            along, across = (left + right) / 2 + offset[0], (top + bottom) / 2 + offset[1]
            cell = middle.part(float(along), float(across), right - left, bottom - top)
            if visible(canvas, cell):
                draw_block(town, cell)
    town.raise_up()


def intervals(reach: float, least: float, most: float, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Return intervals of `least` to `most` metres that cover −reach … reach, with one border at 0."""
    right = [0.0]
    while right[-1] < reach:
        right.append(right[-1] + float(rng.uniform(least, most)))
    left = [0.0]
    while left[-1] > -reach:
        left.append(left[-1] - float(rng.uniform(least, most)))
    borders = left[:0:-1] + right
    return list(pairwise(borders))


def visible(canvas: Canvas, cell: Site) -> bool:
    """Return whether any part of a block or its shadows can be on the canvas."""
    (width, height), radius = canvas.extent, np.hypot(cell.length, cell.width) / 2 + 6
    return bool(-radius < cell.x < width + radius and -radius < cell.y < height + radius)


def draw_block(town: Town, cell: Site) -> None:
    """Draw a block from mid-street to mid-street: half of the streets, then the lots."""
    rng = town.rng
    carriageway, pavement = 2.2, 0.8
    town.canvas.paint(cell.outline(), town.street(), Cover.ROAD, rng)
    _markings(town, cell)
    kerb = cell.part(0, 0, cell.length - 2 * carriageway, cell.width - 2 * carriageway)
    town.canvas.tint(kerb.part(0, 0, kerb.length + 0.3, kerb.width + 0.3).outline(), _KERB)
    town.slabs(kerb)
    inner = kerb.part(0, 0, kerb.length - 2 * pavement, kerb.width - 2 * pavement)
    _street_furniture(town, cell, carriageway)
    for lot in _lots(inner, rng):
        draw_lot(town, lot)


def _markings(town: Town, cell: Site) -> None:
    """Paint half of the dashed centre lines; the neighbouring block paints the other half."""
    if not town.canvas.fine:
        return
    a, b = cell.length / 2, cell.width / 2
    for along in np.arange(-a + 4, a - 4, 3.0):
        for side in (-1, 1):
            town.canvas.tint(cell.part(float(along), side * (b - 0.06), 1.6, 0.14).outline(), PAINT)
    for across in np.arange(-b + 4, b - 4, 3.0):
        for side in (-1, 1):
            town.canvas.tint(cell.part(side * (a - 0.06), float(across), 0.14, 1.6).outline(), PAINT)


def _street_furniture(town: Town, cell: Site, carriageway: float) -> None:
    """Add cars parked at the kerb and trees on the pavement."""
    rng = town.rng
    for side in (-1, 1):
        for along in np.arange(-cell.length / 2 + 6, cell.length / 2 - 6, 5.6):
            if rng.random() < 0.15:
                across = side * (cell.width / 2 - carriageway + 1.1)
                size = rng.uniform(3.9, 4.8), rng.uniform(1.75, 1.95)
                town.cars.append(cell.part(float(along), across, *size, rng.choice([0, np.pi])))
        for along in np.arange(-cell.length / 2 + 5, cell.length / 2 - 5, 8.0):
            if rng.random() < 0.30:
                spot = cell.place(float(along), side * (cell.width / 2 - carriageway - 0.7))
                town.trees.append(Tree(*spot, float(rng.uniform(1.4, 2.5))))


def _lots(inner: Site, rng: np.random.Generator) -> Iterator[Site]:
    """Yield two rows of lots, back to back; `width` runs from the street to the back."""
    count = max(1, round(inner.length / rng.uniform(11.0, 15.0)))
    for side in (-1, 1):
        for number in range(count):
            along = (number + 0.5) / count * inner.length - inner.length / 2
            turn = 0.0 if side < 0 else np.pi
            yield inner.part(along, side * inner.width / 4, inner.length / count, inner.width / 2, turn)


def draw_lot(town: Town, lot: Site) -> None:
    """Draw one lot; across it, negative coordinates are on the street's side."""
    kind = town.rng.random()
    if kind < town.sites_share:
        _building_site(town, lot)
    elif kind < 0.18:
        _park(town, lot)
    elif kind < 0.22:
        _car_park(town, lot)
    elif kind < 0.26:
        _hall(town, lot)
    else:
        _house_lot(town, lot)


def _house_lot(town: Town, lot: Site) -> None:
    rng = town.rng
    town.grass(lot)
    length, width = rng.uniform(0.60, 0.76) * lot.length, rng.uniform(0.54, 0.70) * lot.width
    side = rng.choice([-1, 1])
    along, across = -side * 0.1 * lot.length, -lot.width / 2 + width / 2 + 1.0
    drive = lot.part(side * (lot.length / 2 - 1.3), -0.12 * lot.width, 2.1, 0.72 * lot.width)
    town.slabs(drive)
    if rng.random() < 0.3:
        town.cars.append(drive.part(0, rng.uniform(-1, 1), 4.2, 1.8, np.pi / 2))
    turn = rng.normal(0, 0.02) + (np.pi / 2 if rng.random() < 0.3 else 0.0)
    sides = (width, length) if abs(turn) > 1 else (length, width)
    roof = str(rng.choice(["gabled", "gabled", "hipped", "flat"]))
    roof = "gabled" if roof == "hipped" and sides[0] < sides[1] else roof
    site = lot.part(along, across, *sides, turn)
    town.houses.append(House(site, float(rng.uniform(3.0, 5.5)), roof))
    _garden(town, lot, across + width / 2)


def _garden(town: Town, lot: Site, start: float) -> None:
    """Draw the garden behind the house, from `start` across the lot: a terrace, trees, clutter."""
    rng, depth = town.rng, lot.width / 2 - start
    town.slabs(lot.part(rng.uniform(-0.2, 0.2) * lot.length, start + 0.8, rng.uniform(2, 4), 1.6))
    places = rng.permutation(np.linspace(-0.4, 0.4, 4)) * lot.length
    for along in places[: rng.integers(1, 4)]:
        radius = float(np.clip(rng.lognormal(0.65, 0.3), 1.2, 3.0))
        spot = lot.place(float(along), lot.width / 2 - min(0.8 * radius, depth / 2))
        town.trees.append(Tree(*spot, radius))
    if rng.random() < town.clutter_share:
        what = str(rng.choice(CLUTTER))
        size = rng.uniform(3.0, 5.0), rng.uniform(2.6, 3.8)
        site = lot.part(float(places[3]), start + depth / 2, *size, rng.uniform(-0.3, 0.3))
        town.clutter.append((site, what))


def _park(town: Town, lot: Site) -> None:
    rng = town.rng
    town.grass(lot, Cover.MEADOW)
    for _ in range(int(lot.length * lot.width / 30)):
        spot = lot.place(*map(float, rng.uniform(-0.42, 0.42, 2) * (lot.length, lot.width)))
        town.trees.append(Tree(*spot, float(rng.uniform(1.4, 3.0))))


def _car_park(town: Town, lot: Site) -> None:
    """Draw one row of parking bays with lines between them."""
    rng = town.rng
    town.ground(lot, "street", Cover.PARKING, _asphalt(rng))
    if not town.canvas.fine:
        return
    for along in np.arange(-lot.length / 2 + 0.3, lot.length / 2, 2.6):
        town.canvas.tint(lot.part(float(along), lot.width / 2 - 2.7, 0.12, 5.0).outline(), PAINT)
        if along + 2.6 < lot.length / 2 and rng.random() < 0.35:
            car = lot.part(
                float(along) + 1.3, lot.width / 2 - 2.8, 4.3, 1.85, rng.choice([-1, 1]) * np.pi / 2
            )
            town.cars.append(car)


def _building_site(town: Town, lot: Site) -> None:
    """Draw rubble, containers and tarpaulins on trodden ground."""
    rng = town.rng
    town.grass(lot)
    for along in (-0.24, 0.24):
        for across in (-0.24, 0.24):
            length, width = rng.uniform(0.7, 1.0, 2) * (0.42 * lot.length, 0.42 * lot.width)
            turn = rng.normal(0, 0.1)
            site = lot.part(along * lot.length, across * lot.width, float(length), float(width), turn)
            town.clutter.append((site, str(rng.choice(CLUTTER[:3]))))


def _hall(town: Town, lot: Site) -> None:
    town.slabs(lot)
    site = lot.part(0, 0, lot.length - 2.5, lot.width - 3.0)
    town.houses.append(House(site, float(town.rng.uniform(4, 6)), "flat"))
