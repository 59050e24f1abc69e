"""An image and its label: do they fit, and what classes do their pixels have?

The index, `datasets check` and `predict.py` ask the same functions, so that all say the same of a bad file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import DatasetError
from segmenter.geometry import Size, Window
from segmenter.labels import IGNORE
from segmenter.raster import (
    Raster,
    RasterInfo,
    crs_title,
    length,
    metres_apart,
    raster_info,
    read_label,
)
from segmenter.scenes import Dataset, Scene

_BAND_PIXELS = 1 << 22
"""Pixels read at once: decoding colours takes some 25 bytes a pixel, 100 MiB a thread."""
_LARGEST_SHIFT = 0.5
"""Pixels by which image and label may lie apart: less than half moves no label to another pixel."""


def misfits(image: RasterInfo, label: RasterInfo) -> list[tuple[str, str]]:
    """(kind, text) for all that is wrong between the headers of an image and its label.

    The one rule of the index, `datasets check` and scoring. Sizes must be equal. Where both name a CRS it
    must be the same, and where both have a transform they must agree within half a pixel. A label without
    georeferencing (masks are often PNG) lies on its image by definition; control points are not compared.
    """
    if image.size != label.size:
        text = f"{label.path}: expected {image.size} pixels as its image {image.path} has, got {label.size}"
        return [("size", text)]
    if image.crs is not None and label.crs is not None and image.crs != label.crs:
        return [("georeferencing", f"{label.path}: {_other_crs(image, label)}")]
    shift = _shift(image, label)
    if not shift <= _LARGEST_SHIFT:  # NaN fits nothing
        where = f"{label.path}: lies up to {shift:,.1f} pixels from its image {image.path}"
        return [
            ("georeferencing", f"{where}{_on_the_ground(image, shift)}, at most {_LARGEST_SHIFT} expected")
        ]
    return []


def both_placed(image: RasterInfo, label: RasterInfo) -> bool:
    """Whether both files say where they lie, so that `misfits` can tell a label of another place."""
    return image.transform is not None and label.transform is not None


def _other_crs(image: RasterInfo, label: RasterInfo) -> str:
    ours, theirs = crs_title(image.crs), crs_title(label.crs)
    got = theirs if theirs != ours else "another of that name"
    apart = metres_apart(image, label)
    far = "" if apart is None else f"; its centre lies {length(apart)} from that of {image.path}"
    return f"expected its image's CRS {ours}, got {got}{far}"


def _on_the_ground(image: RasterInfo, shift: float) -> str:
    """A shift in pixels as a distance and the CRS that it is in, as far as they are known."""
    metres = image.metres_per_pixel
    far = [] if metres is None else [length(shift * metres)]
    both = "no CRS" if image.crs is None else crs_title(image.crs)
    return f" ({', '.join([*far, both])})"


def _shift(image: RasterInfo, label: RasterInfo) -> float:
    """The largest distance between corresponding corners, in pixels of the image; 0 where it has no sense."""
    if image.transform is None or label.transform is None:
        return 0.0
    height, width = image.size.height, image.size.width
    corners = [(0, 0), (width, 0), (0, height), (width, height)]
    to_image, to_label = (np.array(each[:6]).reshape(2, 3) for each in (image.transform, label.transform))
    moved = np.array([(*corner, 1) for corner in corners]) @ (to_label - to_image).T
    if not moved.any():
        return 0.0
    try:
        with np.errstate(all="ignore"):
            return float(np.hypot(*np.linalg.solve(to_image[:, :2], moved.T)).max())
    except np.linalg.LinAlgError:  # pixels without area
        return math.inf


def check_label(label: Path, image: RasterInfo) -> None:
    """Refuse a label that does not fit its image.

    Raises:
        DatasetError: the first of `misfits`.
        RasterError: the label cannot be opened.
    """
    for _, text in misfits(image, raster_info(label)):
        raise DatasetError(text)


def check_fit(scene: Scene, image: RasterInfo) -> None:
    """`check_label` of a scene.

    Raises:
        DatasetError: also where there is no label.
    """
    if scene.label is None:
        raise DatasetError(f"{scene.image}: expected a label for scene {scene.name}, there is none")
    check_label(scene.label, image)


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
