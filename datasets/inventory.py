"""Inventory of a dataset, in lines: its images' bands, types and places, its classes' shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from segmenter.base.terminal import aligned
from segmenter.grid.scenes import SPLITS
from segmenter.raster import RasterInfo, crs_title

_SHOWN = 8
_UNEVEN = 4.0
"""Ratio of a class's shares in two splits from which it is pointed out."""
_COMMON = 0.01
"""Share that a class must have in one of them for that: few pixels differ by chance."""


def image_lines(images: Sequence[tuple[RasterInfo, tuple[int, ...]]]) -> Iterator[str]:
    """A line for each kind of image, with the bands used of it: number, type, pixel size, CRS, sizes."""
    sizes: dict[str, list[RasterInfo]] = {}
    for info, bands in images:
        sizes.setdefault(_kind(info, bands), []).append(info)
    kinds = sorted(sizes.items(), key=lambda item: -len(item[1]))
    for kind, infos in kinds[:_SHOWN]:
        low, high = (pick(infos, key=lambda info: info.size.pixels).size for pick in (min, max))
        extent = f"{low} pixels" if low == high else f"{low} to {high} pixels"
        yield f"{len(infos)} of {kind}, {extent}"
    if len(kinds) > _SHOWN:
        yield f"{sum(len(infos) for _, infos in kinds[_SHOWN:])} of {len(kinds) - _SHOWN} further kinds"


def _kind(info: RasterInfo, bands: tuple[int, ...]) -> str:
    whole = bands == tuple(range(1, info.count + 1))
    count = f"{info.count} band{'s' * (info.count > 1)}"
    used = count if whole else f"bands {', '.join(map(str, bands))} of {info.count}"
    metres = info.metres_per_pixel
    if metres is not None:
        place = f"{metres:.3g} m a pixel, {crs_name(info)}"
    elif info.crs is not None:
        place = crs_name(info)
    else:
        place = "no CRS" if info.georeferenced else "no georeference"
    return f"{used}, {info.dtype}, {place}"


def crs_name(info: RasterInfo) -> str:
    """A short name of a raster's CRS; empty where it has none."""
    return "" if info.crs is None else crs_title(info.crs)


def class_table(
    names: Sequence[str], pixels_PK: NDArray[np.int64], scenes_K: NDArray[np.int64]
) -> Iterator[str]:
    """Pixels, share and scenes of each class, its share in each split, and where these differ widely."""
    used = [(split, _shares(pixels)) for split, pixels in zip(SPLITS, pixels_PK, strict=True) if pixels.any()]
    used = used if len(used) > 1 else []
    total_K = pixels_PK.sum(axis=0)
    rows = [
        [name, f"{pixels:,}", f"{share:.4%}", f"{scenes_K[i]:,}", *(f"{shares[i]:.2%}" for _, shares in used)]
        for i, (name, pixels, share) in enumerate(zip(names, total_K, _shares(total_K), strict=True))
    ]
    yield from aligned(["class", "pixels", "share", "scenes", *(split for split, _ in used)], rows)
    for i, name in enumerate(names):
        low, high = (pick(((s[i], split) for split, s in used), default=None) for pick in (min, max))
        if low and high and high[0] >= max(_COMMON, _UNEVEN * low[0]):
            yield f"uneven: {name} has {low[0]:.2%} of {low[1]}, {high[0]:.2%} of {high[1]}"


def _shares(pixels_K: NDArray[np.int64]) -> NDArray[np.float64]:
    return pixels_K / max(1, int(pixels_K.sum()))
