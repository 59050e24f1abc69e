"""Pictures of a page, from pixels."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.drawing import encode_picture
from segmenter.pages.parts import Picture

SIDE = 320
"""Pixels of a picture's side; smaller ones are enlarged, of twice as many each other pixel is left out."""


def picture(
    name: str, picture_HWC: NDArray[Any], kind: Literal["png", "jpeg"], metres: float | None = None
) -> Picture:
    """Return (H, W, 3) 8-bit values as a picture; `metres` of a pixel give it a scale bar."""
    step = max(1, max(picture_HWC.shape) // (2 * SIDE))
    small = picture_HWC[::step, ::step].astype(np.uint8)
    times = max(1, SIDE // max(small.shape))
    data = base64.b64encode(encode_picture(small, kind)).decode()
    size = times * small.shape[1], times * small.shape[0]
    return Picture(name, f"image/{kind}", data, *size, metres and metres * picture_HWC.shape[1])
