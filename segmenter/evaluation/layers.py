"""Layers of a scene as 8-bit pictures: image, classes, errors, confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.stretch import Stretch, three_bands

WRONG = (0xD6, 0x27, 0x28)
"""Red of wrong pixels, over a pale grey image."""
HATCH = ((0xD0, 0xD0, 0xD0), (0x98, 0x98, 0x98))


def stretch_picture(
    image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_], stretch: Stretch | None = None
) -> NDArray[np.uint8]:
    """Return an (H, W, 3) 8-bit picture; invalid pixels are hatched.

    Args:
        image_HWC: any number type and band count; the first three bands, or the first in grey, are shown.
        stretch: of the whole scene, the same in all of its pictures; None: from these pixels.
    """
    bands, valid = three_bands(image_HWC, valid_HW)
    stretch = stretch or Stretch.of(image_HWC, valid_HW)
    if stretch is None:
        return hatching(valid.shape)
    low, high = stretch.low_3, stretch.high_3
    flat = high <= low  # one value everywhere: mid grey
    share = np.where(flat, 0.5, (bands - low) / np.where(flat, 1, high - low))
    with np.errstate(invalid="ignore"):  # NaN pixels are hatched below
        picture = (np.clip(share, 0, 1) * 255).astype(np.uint8)
    return np.where(valid[..., None], picture, hatching(valid.shape))


def colour_ids(ids_HW: NDArray[np.uint8], classes: ClassMap) -> NDArray[np.uint8]:
    """Return (H, W, 3) colours of class ids, `IGNORE` hatched."""
    picture: NDArray[np.uint8] = classes.palette()[ids_HW]
    return np.where((ids_HW == IGNORE)[..., None], hatching(ids_HW.shape), picture)


def errors(
    seen_HWC: NDArray[np.uint8], label_HW: NDArray[np.uint8], map_HW: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return the image in pale grey with wrong pixels in red; pixels without label or map are hatched."""
    known = (label_HW != IGNORE) & (map_HW != IGNORE)
    grey = np.repeat(seen_HWC.mean(axis=2, keepdims=True) / 2 + 127, 3, axis=2).astype(np.uint8)
    wrong = np.where((label_HW != map_HW)[..., None], np.array(WRONG, np.uint8), grey)
    return np.where(known[..., None], wrong, hatching(known.shape))


def confident(confidence_HW: NDArray[np.uint8], map_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return confidence (the largest probability × 255) from dark blue to yellow; no data is hatched."""
    import cv2

    colours = np.ascontiguousarray(cv2.applyColorMap(confidence_HW, cv2.COLORMAP_VIRIDIS)[..., ::-1])
    return np.where((map_HW == IGNORE)[..., None], hatching(map_HW.shape), colours)


def hatching(shape: Sequence[int]) -> NDArray[np.uint8]:
    """Return (H, W, 3) grey diagonal stripes, unlike the colour of any class."""
    rows, cols = np.ogrid[: shape[0], : shape[1]]
    return np.array(HATCH, np.uint8)[((rows + cols) // 4) % 2]
