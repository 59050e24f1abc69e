"""Scale of a dataset's scenes in metres a pixel, as far as the recipe says it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from segmenter.base.errors import DatasetError, shortened
from segmenter.config.datasets import PathScale
from segmenter.grid.scenes import Dataset

from .files import found_in_paths

_METRES = {"m": 1.0, "cm": 0.01}
_MOST = 100_000.0
"""Metres: no pixel is larger; the recipe's own limit for a number."""


def with_scale(dataset: Dataset, said: Literal["georeference"] | float | PathScale) -> Dataset:
    """The dataset whose scenes have the scale that `dataset.metres_per_pixel` says; no file is opened.

    Raises:
        DatasetError: a pattern finds no number of metres in the path of an image.
    """
    if said == "georeference":
        return dataset
    if isinstance(said, PathScale):
        paths = [Path(os.path.relpath(s.image, dataset.root)).as_posix() for s in dataset.scenes]
        texts = found_in_paths(said.pattern, paths)
        metres = [_metres(text, path, said) for text, path in zip(texts, paths, strict=True)]
        scenes = [replace(s, metres_per_pixel=m) for s, m in zip(dataset.scenes, metres, strict=True)]
    else:
        scenes = [replace(s, metres_per_pixel=float(said)) for s in dataset.scenes]
    return replace(dataset, scenes=tuple(scenes))


def _metres(found: str | None, path: str, said: PathScale) -> float:
    text = "nothing" if found is None else found
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
