"""Pairs of a scene's image and label: consistency check, and class ids of their pixels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import LabelRaster, Raster, RasterInfo
from segmenter.raster.ground import check_label

_STRIP_PIXELS = 1 << 22
"""Pixels read at once: decoding colours takes some 25 bytes a pixel, 100 MiB a thread."""


def check_fit(scene: Scene, image: RasterInfo) -> None:
    """Run `check_label` on a scene.

    Raises:
        DatasetError: also if there is no label.
    """
    if scene.label is None:
        raise DatasetError(f"{scene.image}: expected a label for scene {scene.name}, there is none")
    check_label(scene.label, image)


def row_strips(size: Size, pixels: int = _STRIP_PIXELS) -> Iterator[Window]:
    """Return full-width windows of at most `pixels` pixels (but at least one row), from top to bottom."""
    step = max(1, pixels // max(1, size.width))
    for row in range(0, size.height, step):
        yield Window(row, 0, min(step, size.height - row), size.width)


def class_ids(dataset: Dataset, scene: Scene, raster: Raster, window: Window) -> NDArray[np.uint8]:
    """Return (H, W) class ids; `IGNORE` also where the image has no data, read only if it may lack some.

    Raises:
        LabelError: a value is not in the class map.
        RasterError: a file is damaged.
    """
    assert scene.label is not None, "check_fit comes first"
    with LabelRaster(scene.label, dataset.classes) as label:
        ids = label.ids(window)
    if raster.may_have_nodata:
        ids[~raster.read(window)[1]] = IGNORE
    return ids
