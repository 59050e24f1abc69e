"""Ground sampling distance of a dataset's scenes, set by the recipe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from segmenter.base.errors import DatasetError, shorten
from segmenter.config.datasets import PathGsd
from segmenter.grid.gsd import UNKNOWN, range_text, scene_strata
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import RasterInfo

from .files import found_in_paths

_METRES = {"m": 1.0, "cm": 0.01}
_MOST = 100_000.0
"""Metres: no pixel is larger; the recipe's own limit for a number."""


def with_gsd(dataset: Dataset, setting: Literal["georeference"] | float | PathGsd) -> Dataset:
    """Return the dataset with the scales of `dataset.metres_per_pixel`; no file is opened."""
    if setting == "georeference":
        return dataset
    if isinstance(setting, PathGsd):
        paths = [Path(os.path.relpath(str(s.image), str(dataset.root))).as_posix() for s in dataset.scenes]
        texts = found_in_paths(setting.pattern, paths)
        metres = [_metres(text, path, setting) for text, path in zip(texts, paths, strict=True)]
        scenes = [replace(s, metres_per_pixel=m) for s, m in zip(dataset.scenes, metres, strict=True)]
    else:
        scenes = [replace(s, metres_per_pixel=float(setting)) for s in dataset.scenes]
    return replace(dataset, scenes=tuple(scenes))


def _metres(match: str | None, path: str, setting: PathGsd) -> float:
    text = "nothing" if match is None else match
    try:
        metres = float(text.replace(",", ".")) * _METRES[setting.unit]
    except ValueError:
        metres = 0.0
    if not 0 < metres <= _MOST:
        raise DatasetError(
            f"dataset.metres_per_pixel.pattern: {shorten(setting.pattern)}",
            expected=f"a number of {setting.unit} above 0 in the path of every image",
            got=f"{shorten(text)} in {path}",
        )
    return metres


_APART = 1.1
"""Ratio of the recipe's and the georeference's scale from which it is reported."""

Images = Sequence[tuple[Scene, RasterInfo]]


def gsd_line(dataset: Dataset, images: Images) -> str:
    """Return a line on the scenes' scale, or on the number of scenes by octave of scale; empty if unknown."""
    metres = [dataset.scale_of(scene, info.metres_per_pixel) for scene, info in images]
    known_metres = [m for m in metres if m is not None]
    if not known_metres:
        return ""  # what needs it refuses the recipe by name
    strata = scene_strata(metres)
    if len(strata.titles) == 1:
        return f"{range_text(min(known_metres), max(known_metres))} a pixel"
    counts = [(int((strata.number_S == i).sum()), title) for i, title in enumerate(strata.titles)]
    parts = [f"{n} of {title}" if title != UNKNOWN else f"{n} unknown" for n, title in counts]
    return f"{range_text(min(known_metres), max(known_metres))} a pixel: scenes {', '.join(parts)}"


def contradictions(images: Images) -> Iterator[str]:
    """Yield a line for each image whose georeference gives another scale than the recipe."""
    for scene, info in images:
        stated, measured = scene.metres_per_pixel, info.metres_per_pixel
        if stated and measured and not 1 / _APART <= stated / measured <= _APART:
            yield (
                f"{scene.image}: dataset.metres_per_pixel says {stated:.3g} m a pixel, its georeference "
                f"{measured:.3g} m"
            )
