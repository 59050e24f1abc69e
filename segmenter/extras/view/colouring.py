"""Colours of layers: values to RGBA pixels, and these as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.grid.labels import Colour

_RAMP = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)
"""Five colours of viridis, which all kinds of sight put into one order."""
_MARK = (255, 0, 80)
Pixels = tuple[NDArray[Any], NDArray[np.bool_]]
"""(H, W, C) values, and an (H, W) mask of those with data."""
Coloured = NDArray[np.uint8]
"""(H, W, 4): red, green, blue, opacity; 0 where there is no data."""


@dataclass(frozen=True)
class Stretch:
    """Values of each band that are drawn black and white, of a whole scene."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, values_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]) -> Stretch:
        """Return the 2 % and 98 % quantiles of a sample."""
        known = values_HWC[valid_HW].astype(np.float64)
        if not len(known):
            known = np.zeros((1, values_HWC.shape[2]))
        low, high = np.percentile(known, (2, 98), axis=0)
        return cls(tuple(low.tolist()), tuple(high.tolist()))


def picture(pixels: Pixels, stretch: Stretch | None) -> Coloured:
    """Return one band as grey, or three; without a stretch 8-bit values are drawn as they are."""
    values_HWC, valid_HW = pixels
    if stretch is not None:
        low, high = np.array(stretch.low, np.float32), np.array(stretch.high, np.float32)
        flat = high <= low  # one value everywhere: mid grey
        share = np.where(flat, 0.5, (values_HWC.astype(np.float32) - low) / np.where(flat, 1, high - low))
        values_HWC = np.clip(np.nan_to_num(share) * 255, 0, 255)
    bands = values_HWC.astype(np.uint8)
    bands = bands[..., :3] if bands.shape[2] >= 3 else bands[..., :1].repeat(3, axis=2)
    return _opaque(bands, valid_HW)


def classes(pixels: Pixels, palette: Sequence[Colour]) -> Coloured:
    """Return class ids in their colours."""
    table = np.zeros((256, 3), np.uint8)
    table[: len(palette)] = palette
    values_HWC, valid_HW = pixels
    return _opaque(table[values_HWC[..., 0]], valid_HW)


def ramp(pixels: Pixels) -> Coloured:
    """Return shares in 1/255 in colours from violet to yellow."""
    places = np.linspace(0, 255, len(_RAMP))
    table = np.stack([np.interp(np.arange(256), places, column).round() for column in _RAMP.T], axis=1)
    return _opaque(table.astype(np.uint8)[pixels[0][..., 0]], pixels[1])


def marks(pixels: Pixels) -> Coloured:
    """Return marked pixels (255) in one colour; a share of pixels paler, and never invisible."""
    alpha_HW1 = np.ceil(np.sqrt(255.0 * pixels[0])).astype(np.uint8) * pixels[1][..., None]
    return np.concatenate(
        [np.where(alpha_HW1 > 0, np.array(_MARK, np.uint8), np.uint8(0)), alpha_HW1], axis=2
    )


def _opaque(bands_HW3: NDArray[np.uint8], valid_HW: NDArray[np.bool_]) -> Coloured:
    alpha_HW1 = np.full((*valid_HW.shape, 1), 255, np.uint8)
    return np.where(valid_HW[..., None], np.concatenate([bands_HW3, alpha_HW1], axis=2), np.uint8(0))


def png(coloured: Coloured, *, small: bool = False) -> bytes:
    """Return pixels as the bytes of a PNG, fast or small."""
    level = [cv2.IMWRITE_PNG_COMPRESSION, 9 if small else 1]
    return _encoded(".png", cv2.cvtColor(coloured, cv2.COLOR_RGBA2BGRA), level)


def jpeg(coloured: Coloured) -> bytes:
    """Return pixels, all of them opaque, as the bytes of a JPEG."""
    return _encoded(".jpg", cv2.cvtColor(coloured, cv2.COLOR_RGBA2BGR), [cv2.IMWRITE_JPEG_QUALITY, 85])


def _encoded(ending: str, pixels: NDArray[np.uint8], options: Sequence[int]) -> bytes:
    done, data = cv2.imencode(ending, pixels, options)
    assert done
    return bytes(data)
