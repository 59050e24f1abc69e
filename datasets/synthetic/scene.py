"""Whole scenes: layout, light and camera together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size

from .camera import Camera
from .canvas import Canvas, Sun
from .country import draw_country
from .cover import Season
from .town import draw_town


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
    """A quarter of a town.

    Args:
        size: in pixels.
        gsd: metres per pixel.
        rng: decides everything; the same state gives the same bytes.
    """
    return _render(draw_town, size, gsd, rng)


def render_country(size: Size, gsd: float, rng: np.random.Generator) -> Rendering:
    """Town and country: from a single tree to a square kilometre, by the ground sampling distance.

    Args:
        size: in pixels.
        gsd: metres per pixel.
        rng: decides everything; the same state gives the same bytes.
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
