"""An image and its label: do they fit, and what classes do their pixels have?

The index and `datasets check` ask the same functions, so that both say the same of a bad file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import DatasetError
from segmenter.geometry import Size, Window
from segmenter.labels import IGNORE
from segmenter.raster import Raster, RasterInfo, raster_info, read_label
from segmenter.scenes import Dataset, Scene

_BAND_PIXELS = 1 << 22
"""Pixels read at once: decoding colours takes some 25 bytes a pixel, 100 MiB a thread."""
_LARGEST_SHIFT = 0.5
"""Pixels by which image and label may lie apart: less than half moves no label to another pixel."""


def misfits(image: RasterInfo, label: RasterInfo) -> list[tuple[str, str]]:
    """(kind, text) for all that is wrong between the headers of an image and its label.

    Sizes must be equal. Where both are georeferenced they must agree within half a pixel; a label without
    georeferencing (masks are often PNG) lies on its image by definition.
    """
    if image.size != label.size:
        text = (
            f"{label.path}: expected {image.size} pixels as its image {image.path.name} has, got {label.size}"
        )
        return [("size", text)]
    if image.crs is None or label.crs is None or image.transform is None or label.transform is None:
        return []
    if image.crs != label.crs:
        return [("georeferencing", f"{label.path}: expected its image's CRS {image.crs}, got {label.crs}")]
    shift = _shift(image, label)
    if shift > _LARGEST_SHIFT:
        where = f"{label.path}: lies up to {shift:.1f} pixels from its image {image.path.name}"
        return [("georeferencing", f"{where}, at most {_LARGEST_SHIFT} expected")]
    return []


def _shift(image: RasterInfo, label: RasterInfo) -> float:
    """The largest distance between corresponding corners, in pixels of the image."""
    height, width = image.size.height, image.size.width
    corners = [(0, 0), (width, 0), (0, height), (width, height)]
    from_image, from_label = image.transform, label.transform
    assert from_image is not None, "both are georeferenced"
    assert from_label is not None, "both are georeferenced"
    moved = [~from_image @ (from_label @ corner) for corner in corners]
    return float(max(np.hypot(a[0] - b[0], a[1] - b[1]) for a, b in zip(corners, moved, strict=True)))


def check_fit(scene: Scene, image: RasterInfo) -> None:
    """Refuse a label that does not fit its image.

    Raises:
        DatasetError: the first of `misfits`, or that there is no label.
    """
    if scene.label is None:
        raise DatasetError(f"{scene.image}: expected a label for scene {scene.name}, there is none")
    for _, text in misfits(image, raster_info(scene.label)):
        raise DatasetError(text)


def row_bands(size: Size, pixels: int = _BAND_PIXELS) -> Iterator[Window]:
    """Full-width windows of at most so many pixels (but one row at least), from top to bottom."""
    step = max(1, pixels // max(1, size.width))
    for row in range(0, size.height, step):
        yield Window(row, 0, min(step, size.height - row), size.width)


def raw_label(dataset: Dataset, scene: Scene, window: Window) -> NDArray[Any]:
    """What the label file of a scene holds in a window."""
    assert scene.label is not None, "check_fit comes first"
    return read_label(scene.label, window, expand_palette=dataset.expand_palette)


def class_ids(dataset: Dataset, scene: Scene, raster: Raster, window: Window) -> NDArray[np.uint8]:
    """(H, W) class ids, `IGNORE` also where the image has no data (it is read only if it can lack some).

    Raises:
        LabelError: for a value that the class map does not know.
        RasterError: for a damaged file.
    """
    ids = dataset.classes.decode(raw_label(dataset, scene, window), str(scene.label))
    if raster.may_have_nodata:
        ids[~raster.read(window)[1]] = IGNORE
    return ids
