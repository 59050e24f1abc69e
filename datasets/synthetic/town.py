"""Town quarter: streets with kerbs and markings, lots with houses, gardens, trees, cars, clutter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .canvas import Canvas, Surface
from .cover import Cover, Season
from .texture import Pattern
from .things import (
    CLUTTER,
    CLUTTER_HEIGHT,
    House,
    Site,
    Tree,
    contrast,
    crown_outline,
    paint_car,
    paint_clutter,
    paint_house,
    paint_tree,
)

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
