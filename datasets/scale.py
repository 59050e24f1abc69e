"""Scale of a dataset's scenes in metres a pixel: as the recipe says it, and in lines for `datasets check`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from segmenter.config.datasets import PathScale
from segmenter.errors import DatasetError, shortened
from segmenter.raster import RasterInfo
from segmenter.scale import UNKNOWN, range_text, scene_strata
from segmenter.scenes import Dataset, Scene
from segmenter.tiles.scales import scale_of

_METRES = {"m": 1.0, "cm": 0.01}
_MOST = 100_000.0
"""Metres: no pixel is larger; the recipe's own limit for a number."""
_APART = 1.1
"""Ratio of what the recipe and the georeference say from which it is pointed out."""

Images = Sequence[tuple[Scene, RasterInfo]]


def with_scale(dataset: Dataset, said: Literal["georeference"] | float | PathScale) -> Dataset:
    """The dataset whose scenes have the scale that `dataset.metres_per_pixel` says; no file is opened.

    Raises:
        DatasetError: a pattern finds no number of metres in the path of an image.
    """
    if said == "georeference":
        return dataset
    if isinstance(said, PathScale):
        scenes = [replace(s, metres_per_pixel=_out_of_path(dataset, s, said)) for s in dataset.scenes]
    else:
        scenes = [replace(s, metres_per_pixel=float(said)) for s in dataset.scenes]
    return replace(dataset, scenes=tuple(scenes))


def _out_of_path(dataset: Dataset, scene: Scene, said: PathScale) -> float:
    path = Path(os.path.relpath(scene.image, dataset.root)).as_posix()
    match = re.search(said.pattern, path)
    text = "nothing" if match is None or match[1] is None else match[1]
    try:
        metres = float(text.replace(",", ".")) * _METRES[said.unit]
    except ValueError:
        metres = 0.0
    if not 0 < metres <= _MOST:
        raise DatasetError(
            f"dataset.metres_per_pixel.pattern: {shortened(said.pattern)}: expected a number of {said.unit} "
            f"above 0 in the path of every image, got {shortened(text)} in {path}"
        )
    return metres


def scale_line(dataset: Dataset, images: Images) -> str:
    """A line on the scales of scenes: one, or how many there are of each octave."""
    metres = [scale_of(dataset, scene, info) for scene, info in images]
    known = [m for m in metres if m is not None]
    if not known:
        return "unknown, which scale_to and scale_strata need: dataset.metres_per_pixel can say it"
    found = scene_strata(metres)
    if len(found.titles) == 1:
        return f"{range_text(min(known), max(known))} a pixel"
    counts = [(int((found.number_S == i).sum()), title) for i, title in enumerate(found.titles)]
    shown = [f"{n} of {title}" if title != UNKNOWN else f"{n} unknown" for n, title in counts]
    return f"{range_text(min(known), max(known))} a pixel: scenes {', '.join(shown)}"


def contradictions(images: Images) -> Iterator[str]:
    """A line for each image whose georeference tells another scale than the recipe."""
    for scene, info in images:
        said, found = scene.metres_per_pixel, info.metres_per_pixel
        if said and found and not 1 / _APART <= said / found <= _APART:
            yield (
                f"{scene.image}: dataset.metres_per_pixel says {said:.3g} m a pixel, its georeference "
                f"{found:.3g} m"
            )
