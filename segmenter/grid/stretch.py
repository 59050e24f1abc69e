"""Stretch of a scene's pictures: the values that are drawn black and white, the same in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_QUANTILES = (2, 98)
"""Percent of the valid pixels below black, and below white."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """Values of the three shown bands that are drawn black (`low_3`) and white (`high_3`)."""

    low_3: NDArray[np.float64]
    high_3: NDArray[np.float64]

    @classmethod
    def of(cls, image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]) -> Stretch | None:
        """Return the stretch from the 2 % to the 98 % quantile of valid pixels; None without any."""
        bands, valid = three_bands(image_HWC, valid_HW)
        if not valid.any():
            return None
        low_3, high_3 = np.percentile(bands[valid], _QUANTILES, axis=0)
        return cls(low_3, high_3)


def three_bands(
    image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the first three bands (or the first, in grey), and the valid pixels with finite values."""
    bands = image_HWC[..., :3] if image_HWC.shape[2] >= 3 else image_HWC[..., :1].repeat(3, axis=2)
    return bands.astype(np.float32), valid_HW & np.isfinite(bands).all(axis=2)
