"""Canvas of a scene being painted: reflectance and land cover, in metres, with shadows."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window

from .cover import Cover
from .texture import Pattern, relief

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
