"""Scenes: town, or villages, fields, woods, lakes and rare objects; light and camera."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size

from .canvas import Canvas, Cover, Pattern, Points, Season, Sun, Surface, parcel_corners
from .town import Site, Town, contrast, draw_block, draw_town, intervals, visible

_STEP = 170.0
"""Metres from one corner of the pattern of land parcels to the next."""

_Draw = Callable[[Town, Points], None]


def draw_country(canvas: Canvas, season: Season, rng: np.random.Generator) -> None:
    """Fill a canvas with parcels of land, one use each, and roads along some of their borders."""
    town = Town(canvas, season, rng, clutter_share=0.002, sites_share=0.0)
    corners = parcel_corners(canvas, _STEP, 2, 0.22, rng)
    uses, odds = list(_USES), np.array([share for share, _ in _USES.values()])
    for row, col in product(range(corners.shape[0] - 1), range(corners.shape[1] - 1)):
        parcel = corners[[row, row, row + 1, row + 1], [col, col + 1, col + 1, col]]
        use = uses[int(rng.choice(len(uses), p=odds / odds.sum()))]
        if canvas.stencil(parcel) is not None:
            _USES[use][1](town, parcel)
    _roads(town, corners)
    town.raise_up()


def _direction(parcel: Points) -> float:
    return float(np.arctan2(*(parcel[1] - parcel[0])[::-1]))


def _frame(parcel: Points) -> Site:
    """Return a square around a parcel, aligned to its first border."""
    middle = parcel.mean(0)
    side = 2 * float(np.linalg.norm(parcel - middle, axis=1).max())
    return Site(float(middle[0]), float(middle[1]), side, side, _direction(parcel))


def _fill(town: Town, parcel: Points, what: str, cover: Cover, pattern: Pattern) -> None:
    town.canvas.paint(parcel, Surface(town.season.colour(what, town.rng), pattern), cover, town.rng)


def _village(town: Town, parcel: Points) -> None:
    """Draw the blocks whose centres are in the parcel, on a common lawn."""
    _fill(town, parcel, "grass", Cover.LAWN, Pattern("grain", 0.4, contrast(town.rng), 0.0, 0.1))
    frame, outline = _frame(parcel), parcel.astype(np.float32)
    columns, rows = (intervals(frame.length / 2, *sides, town.rng) for sides in ((34, 52), (25, 31)))
    for (left, right), (top, bottom) in product(columns, rows):
        cell = frame.part((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        inside = cv2.pointPolygonTest(outline, (cell.x, cell.y), False) > 0
        if inside and visible(town.canvas, cell):
            draw_block(town, cell)


def _crops(town: Town, parcel: Points) -> None:
    """Draw two to four strips, each with one crop in rows."""
    along, across = parcel[[0, 3]], parcel[[1, 2]]
    borders = np.linspace(0, 1, int(town.rng.integers(2, 5)) + 1)
    turn = _direction(parcel) + town.rng.choice([0.0, np.pi / 2])
    for start, stop in pairwise(borders):
        edges = [along + (across - along) * share for share in (start, stop)]
        strip = np.array([edges[0][0], edges[1][0], edges[1][1], edges[0][1]])
        period = float(town.rng.choice([0.8, 1.5, 6.0]))
        _fill(town, strip, "crops", Cover.CROPS, Pattern("rows", period, contrast(town.rng) / 1.5, turn))


def _meadow(town: Town, parcel: Points) -> None:
    _fill(town, parcel, "grass", Cover.MEADOW, Pattern("grain", 0.8, contrast(town.rng), 0.0, 0.12))


def _wood(town: Town, parcel: Points) -> None:
    _fill(town, parcel, "forest", Cover.FOREST, Pattern("cells", 5.0, 0.28, 0.0, 0.08))


def _lake(town: Town, parcel: Points) -> None:
    _meadow(town, parcel)
    middle = parcel.mean(0)
    wave = Pattern("grain", 1.2, 0.06, 0.0, 0.06)
    _fill(town, middle + (parcel - middle) * 0.9, "water", Cover.WATER, wave)


def _soil(town: Town, parcel: Points) -> None:
    _fill(town, parcel, "soil", Cover.SOIL, Pattern("grain", 2.5, contrast(town.rng), 0.0, 0.14))


def _earthworks(town: Town, parcel: Points) -> None:
    turn = town.rng.uniform(0, np.pi)
    _fill(town, parcel, "soil", Cover.EARTHWORKS, Pattern("seams", 2.4, contrast(town.rng), turn, 0.14))


def _greenhouses(town: Town, parcel: Points) -> None:
    _soil(town, parcel)
    frame = _frame(parcel)
    for along, across in product(np.arange(-36.0, 37, 24), np.arange(-36.0, 37, 12)):
        house = frame.part(float(along), float(across), 21.0, 9.0)
        _build(town, house, _GLASS_HOUSE, Pattern("seams", 1.5, 0.16, house.angle + np.pi / 2, 0.03))


def _sports(town: Town, parcel: Points) -> None:
    _meadow(town, parcel)
    frame = _frame(parcel)
    for length, width, kind in ((86.0, 52.0, _TRACK), (66.0, 34.0, _FIELD)):
        _build(town, frame.part(0, 0, length, width), kind, Pattern("rows", 6.0, 0.05, frame.angle))


def _airfield(town: Town, parcel: Points) -> None:
    _meadow(town, parcel)
    runway = _frame(parcel).part(0, 0, 95.0, 34.0)
    _build(town, runway, _RUNWAY, Pattern("slabs", 5.0, 0.05, runway.angle))


_Kind = tuple[Cover, tuple[float, float, float, float]]
_GLASS_HOUSE: _Kind = (Cover.GREENHOUSE, (0.66, 0.70, 0.72, 0.62))
_TRACK: _Kind = (Cover.SPORTS, (0.50, 0.24, 0.20, 0.4))
_FIELD: _Kind = (Cover.SPORTS, (0.22, 0.42, 0.18, 0.5))
_RUNWAY: _Kind = (Cover.AIRPORT, (0.34, 0.34, 0.35, 0.36))


def _build(town: Town, site: Site, kind: _Kind, pattern: Pattern) -> None:
    cover, colour = kind
    town.canvas.paint(site.outline(), Surface(np.array(colour, np.float32), pattern), cover, town.rng)


_USES: dict[str, tuple[float, _Draw]] = {
    "village": (0.20, _village),
    "crops": (0.30, _crops),
    "wood": (0.19, _wood),
    "meadow": (0.11, _meadow),
    "lake": (0.06, _lake),
    "soil": (0.05, _soil),
    "earthworks": (0.02, _earthworks),
    "greenhouses": (0.02, _greenhouses),
    "sports": (0.0015, _sports),
    "airfield": (0.0003, _airfield),
}
"""Share of the parcels and how each is drawn."""


def _roads(town: Town, corners: Points) -> None:
    """Draw country roads along a third of the borders between parcels."""
    surface = town.street()
    rows, cols = corners.shape[:2]
    borders = [(corners[r, c], corners[r, c + 1]) for r, c in product(range(rows), range(cols - 1))]
    borders += [(corners[r, c], corners[r + 1, c]) for r, c in product(range(rows - 1), range(cols))]
    for start, stop in borders:
        if town.rng.random() < 0.33:
            _road(town, start, stop, surface)


def _road(town: Town, start: NDArray[np.float64], stop: NDArray[np.float64], surface: Surface) -> None:
    middle, run = (start + stop) / 2, stop - start
    length, angle = float(np.hypot(*run)), float(np.arctan2(run[1], run[0]))
    road = Site(float(middle[0]), float(middle[1]), length + 6.0, 6.5, angle)
    town.canvas.paint(road.outline(), surface, Cover.ROAD, town.rng)


@dataclass(frozen=True)
class Rendering:
    """A finished scene.

    Attributes:
        image_HWC: (H, W, 4) uint8 red, green, blue, near infrared.
        cover_HW: (H, W) uint8 `Cover`.
    """

    image_HWC: NDArray[np.uint8]
    cover_HW: NDArray[np.uint8]


def render_town(size: Size, gsd: float, rng: np.random.Generator) -> Rendering:
    """Render a town quarter.

    Args:
        size: size in pixels.
        gsd: metres per pixel.
        rng: determines everything; the same state gives the same bytes.
    """
    return _render(draw_town, size, gsd, rng)


def render_country(size: Size, gsd: float, rng: np.random.Generator) -> Rendering:
    """Render town and country: from a single tree to a square kilometre, depending on the gsd.

    Args:
        size: size in pixels.
        gsd: metres per pixel.
        rng: determines everything; the same state gives the same bytes.
    """
    return _render(draw_country, size, gsd, rng)


def _render(
    draw: Callable[[Canvas, Season, np.random.Generator], None],
    size: Size,
    gsd: float,
    rng: np.random.Generator,
) -> Rendering:
    season, camera = Season.draw(rng), Camera.draw(rng)
    canvas = Canvas(size, gsd, Sun.draw(rng))
    draw(canvas, season, rng)
    return Rendering(camera.expose(canvas.reflectance_HWC, rng), canvas.cover_HW)


# ---------------------------------------------------------------------------------------------------- camera


_STRIP = 512


@dataclass(frozen=True)
class Camera:
    """Light and sensor of one flight, so that absolute colours differ between scenes.

    Attributes:
        gain: (4,) exposure and colour cast of each band.
        haze: (4,) added light.
        gamma: exponent of the tone curve.
        blur: standard deviation of the point spread in pixels.
        noise: standard deviation in grey levels.
    """

    gain: NDArray[np.float32]
    haze: NDArray[np.float32]
    gamma: float
    blur: float
    noise: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Camera:
        """Draw the light and settings of one flight."""
        gain = rng.lognormal(0, 0.08) * rng.lognormal(0, 0.05, 4)
        haze = rng.uniform(0.0, 0.04) * np.array([0.8, 1.0, 1.25, 0.4])
        gamma, blur, noise = rng.uniform(0.8, 1.0), rng.uniform(0.45, 0.75), rng.uniform(2.5, 4.5)
        return cls(gain.astype(np.float32), haze.astype(np.float32), float(gamma), float(blur), float(noise))

    def expose(self, reflectance_HWC: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return the (H, W, 4) uint8 image of a scene, computed in strips to save memory."""
        image = np.empty(reflectance_HWC.shape, np.uint8)
        for band in range(reflectance_HWC.shape[2]):
            sharp = np.ascontiguousarray(reflectance_HWC[..., band])
            seen = cv2.GaussianBlur(sharp, (0, 0), self.blur)
            for top in range(0, len(seen), _STRIP):
                strip = np.clip(seen[top : top + _STRIP] * self.gain[band] + self.haze[band], 0, 1)
                levels = 255 * strip ** np.float32(self.gamma)
                levels += np.float32(self.noise) * rng.standard_normal(strip.shape, np.float32)
                image[top : top + _STRIP, :, band] = np.clip(np.rint(levels), 0, 255)
        return image
