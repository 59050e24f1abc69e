"""Colours of layers: values to RGBA pixels, and these as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.grid.labels import Colour
from segmenter.grid.stretch import Stretch, three_bands

_RAMP = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)
"""Five colours of viridis, which all kinds of sight put into one order."""
_MARK = (255, 0, 80)
Pixels = tuple[NDArray[Any], NDArray[np.bool_]]
"""(H, W, C) values, and an (H, W) mask of those with data."""
Coloured = NDArray[np.uint8]
"""(H, W, 4): red, green, blue, opacity; 0 where there is no data."""


def picture(pixels: Pixels, stretch: Stretch | None) -> Coloured:
    """Return one band as grey, or three; without a stretch 8-bit values are drawn as they are."""
    values_HW3, known_HW = three_bands(*pixels)
    if stretch is not None:
        low, high = stretch.low_3.astype(np.float32), stretch.high_3.astype(np.float32)
        flat = high <= low  # one value everywhere: mid grey
        share = np.where(flat, 0.5, (values_HW3 - low) / np.where(flat, 1, high - low))
        values_HW3 = np.clip(np.nan_to_num(share) * 255, 0, 255)
    return _opaque(np.where(known_HW[..., None], values_HW3, 0).astype(np.uint8), pixels[1])


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
    return _encode_pixels(".png", cv2.cvtColor(coloured, cv2.COLOR_RGBA2BGRA), level)


def jpeg(coloured: Coloured) -> bytes:
    """Return pixels, all of them opaque, as the bytes of a JPEG."""
    return _encode_pixels(".jpg", cv2.cvtColor(coloured, cv2.COLOR_RGBA2BGR), [cv2.IMWRITE_JPEG_QUALITY, 85])


def _encode_pixels(ending: str, pixels: NDArray[np.uint8], options: Sequence[int]) -> bytes:
    done, data = cv2.imencode(ending, pixels, options)
    assert done
    return bytes(data)
