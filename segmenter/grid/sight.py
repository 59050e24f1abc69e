"""Difference of colours as people see them: CIEDE2000, for all kinds of sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIGHTS: dict[str, NDArray[np.float64]] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""Linear red, green and blue as a kind of sight sees them, at full severity.

Source: Machado, Oliveira, Fernandes (2009), A physiologically-based model for simulation of color vision
deficiency, table 1.
"""
APART = 10.0
"""Least CIEDE2000 distance at which two classes of a map are told apart."""
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_WHITE = _XYZ.sum(axis=1)


def lab_of(colours_N3: Any, sight: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return CIELAB (N, 3), D65, of 8-bit sRGB colours, as a kind of sight sees them (None: normal)."""
    srgb = np.asarray(colours_N3, np.float64) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    if sight is not None:
        linear = np.clip(linear @ sight.T, 0, 1)
    relative = linear @ _XYZ.T / _WHITE
    f = np.where(relative > 216 / 24389, np.cbrt(relative), (24389 / 27 * relative + 16) / 116)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def srgb_of(lab_N3: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sRGB values (N, 3) of CIELAB; below 0 or above 255 where a screen cannot show the colour."""
    y = (lab_N3[..., 0] + 16) / 116
    f = np.stack([y + lab_N3[..., 1] / 500, y, y - lab_N3[..., 2] / 200], axis=-1)
    relative = np.where(f > 6 / 29, f**3, (116 * f - 16) * 27 / 24389)
    linear = (relative * _WHITE) @ np.linalg.inv(_XYZ).T
    curved = 1.055 * np.abs(linear) ** (1 / 2.4) - 0.055
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, curved)


def ciede2000(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the CIEDE2000 differences of CIELAB colours (..., 3), which broadcast against each other.

    Source: Sharma, Wu, Dalal (2005), The CIEDE2000 color-difference formula, equations 2 to 22.
    """
    (L1, a1, b1), (L2, a2, b2) = (np.moveaxis(each, -1, 0) for each in (one, other))
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    G = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25.0**7)))
    C1, C2 = np.hypot((1 + G) * a1, b1), np.hypot((1 + G) * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, (1 + G) * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    both = C1 * C2 > 0
    dh = np.where(both, (h2 - h1 + 180) % 360 - 180, 0.0)
    dH = 2 * np.sqrt(C1 * C2) * np.sin(np.radians(dh / 2))
    h = np.where(both, (h1 + ((h2 - h1 + 180) % 360 - 180) / 2) % 360, h1 + h2)
    L, C = (L1 + L2) / 2, (C1 + C2) / 2
    cosines = ((0.17, 1, -30), (-0.24, 2, 0), (-0.32, 3, 6), (0.20, 4, -63))
    T = 1 - sum(weight * np.cos(np.radians(n * h + shift)) for weight, n, shift in cosines)
    S_L = 1 + 0.015 * (L - 50) ** 2 / np.sqrt(20 + (L - 50) ** 2)
    S_C, S_H = 1 + 0.045 * C, 1 + 0.015 * C * T
    turn = np.radians(60 * np.exp(-(((h - 275) / 25) ** 2)))
    R = -2 * np.sqrt(C**7 / (C**7 + 25.0**7)) * np.sin(turn)
    lightness, chroma, hue = (L2 - L1) / S_L, (C2 - C1) / S_C, dH / S_H
    return np.sqrt(np.maximum(lightness**2 + chroma**2 + hue**2 + R * chroma * hue, 0))


def sight_lab(colours_N3: Any) -> NDArray[np.float64]:
    """Return CIELAB (sights, N, 3) of 8-bit sRGB colours as each kind of sight sees them."""
    return np.stack([lab_of(colours_N3, sight) for sight in SIGHTS.values()])


def least_differences(one_SN3: NDArray[np.float64], other_SM3: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (N, M) differences of `seen` colours for the sight that sees the least of each."""
    return ciede2000(one_SN3[:, :, None], other_SM3[:, None]).min(axis=0)


def nearest(colours: Sequence[Any], sight: str) -> tuple[float, int, int]:
    """Return the least difference of two of some colours for a kind of sight, and their positions."""
    lab = lab_of(colours, SIGHTS[sight])
    apart = ciede2000(lab[:, None], lab[None])
    rows, cols = np.triu_indices(len(lab), 1)
    at = int(np.argmin(apart[rows, cols]))
    return float(apart[rows, cols][at]), int(rows[at]), int(cols[at])
