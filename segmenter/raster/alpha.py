"""Alpha bands: decide whether a band tagged as alpha is a mask or a measurement.

GDAL tags the fourth band of 8-bit images as alpha by default, near infrared too. A mask is 0 or opaque except
at soft or lossy edges; measurements take values between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import BandsError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import sample_windows
from segmenter.raster.gdal.faults import FAULTS, gdal_window
from segmenter.raster.opening import Opened, raising_damage
from segmenter.raster.remote.settings import as_gdal_takes

_NEAR = 1 / 32
"""Share of the opaque level by which a lossy mask may miss it, or 0."""
_SOFT_EDGES = 0.05
"""Share of pixels between 0 and opaque that a mask without an opaque pixel may have."""
_LEVELS = 3
"""Most levels of a mask with constant transparency; measurements have more."""
_MOST_KNOWN = 1 << 20

_known: dict[tuple[Any, ...], tuple[int, ...]] = {}
"""Measured bands of each state of a file: training opens files again and again."""


def measured(path: Path, opened: Opened, alpha: Sequence[int]) -> tuple[int, ...]:
    """Return the alpha-tagged bands that are measurements, judged by a bounded sample of undamaged pixels."""
    if not alpha:
        return ()
    key = (as_gdal_takes(path), opened.stamp, tuple(alpha))
    if key in _known:
        return _known[key]
    values_BN = _sample(opened.dataset, alpha)
    bands = tuple(band for band, values in zip(alpha, values_BN, strict=True) if _is_measured(values))
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[key] = bands
    return bands


def refuse(path: Path, count: int, alpha: Sequence[int]) -> BandsError:
    """Return the error for a raster of `count` bands whose alpha-tagged bands are measurements."""
    rest = ",".join(str(band) for band in range(1, count + 1) if band not in alpha) if count <= 8 else ""
    return BandsError(
        f"{path}: band {alpha[0]} is tagged as alpha, but holds measurements and no mask; "
        + ask_for_bands(count)
        + (f" or {rest}" if rest else "")
    )


def ask_for_bands(count: int) -> str:
    """Return advice for a raster whose data bands are ambiguous."""
    most = ",".join(map(str, range(1, count + 1))) if count <= 8 else f"1,2,…,{count}"
    return f"say which bands to use, by dataset.bands in the recipe or --bands of predict.py: {most}"


def _is_measured(values_N: NDArray[Any]) -> bool:
    """Return True if most values lie between 0 and opaque, or a good part of them if no value is opaque."""
    whole = values_N.dtype.kind in "iu"
    levels = [255.0, float(np.iinfo(values_N.dtype).max)] if whole else [1.0, 255.0]
    values = values_N[np.isfinite(values_N)].astype(np.float64)
    if not values.size:
        return False
    if not whole:
        levels.append(float(values.max()))
    opaque = np.any([np.abs(values - level) <= abs(level) * _NEAR for level in levels], axis=0)
    between = ~opaque & (np.abs(values) > min(levels) * _NEAR)
    share = float(between.mean())
    if share > 0.5:
        return True
    return share > _SOFT_EDGES and not opaque.any() and len(np.unique(values[between])) > _LEVELS


def _sample(dataset: Any, bands: Sequence[int]) -> NDArray[Any]:
    """Return a sample of (bands, pixels) values."""
    samples = [np.empty((len(bands), 0), dataset.dtypes[0])]
    for window in sample_windows(Window.of(Size(*dataset.shape))):
        with contextlib.suppress(*FAULTS), raising_damage():
            samples.append(dataset.read(list(bands), window=gdal_window(window)).reshape(len(bands), -1))
    return np.concatenate(samples, axis=1)
