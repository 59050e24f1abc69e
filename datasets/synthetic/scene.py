"""Whole scenes: layout, light and camera combined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size

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
