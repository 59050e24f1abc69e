"""Alignment of an image and its label: one rule for the index, `datasets check` and scoring."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from segmenter.base.errors import DatasetError
from segmenter.raster.crs_units import same_ground
from segmenter.raster.ground import crs_title, length, metres_apart
from segmenter.raster.header import RasterInfo
from segmenter.raster.reading import raster_info

_LARGEST_SHIFT = 0.5
"""Pixels by which image and label may lie apart: less than half moves no label to another pixel."""


def alignment_errors(image: RasterInfo, label: RasterInfo) -> list[tuple[str, str]]:
    """(kind, text) for all that is wrong between the headers of an image and its label.

    The one rule of the index, `datasets check` and scoring. Sizes must be equal. Where both name a CRS it
    must place pixels alike, and where both have a transform they must agree within half a pixel. A label
    without georeferencing (masks are often PNG) lies on its image by definition; control points are not
    compared.
    """
    if image.size != label.size:
        text = f"{label.path}: expected {image.size} pixels as its image {image.path} has, got {label.size}"
        return [("size", text + _way_out(image, label))]
    if image.crs and label.crs and not same_ground(image.crs, label.crs):
        return [("georeferencing", f"{label.path}: {_other_crs(image, label)}{_way_out(image, label)}")]
    shift = _shift(image, label)
    if not shift <= _LARGEST_SHIFT:  # NaN fits nothing
        where = f"{label.path}: lies up to {shift:,.1f} pixels from its image {image.path}"
        where += f"{_on_the_ground(image, shift)}, at most {_LARGEST_SHIFT} expected"
        return [("georeferencing", where + _way_out(image, label))]
    return []


def both_placed(image: RasterInfo, label: RasterInfo) -> bool:
    """Whether both files have a position, so that `alignment_errors` recognises a label elsewhere."""
    return image.transform is not None and label.transform is not None


def _way_out(image: RasterInfo, label: RasterInfo) -> str:
    if not both_placed(image, label):
        return ""
    return "; labels of another grid are placed by a folder's dataset.labels_by: georeference"


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
        DatasetError: the first of `alignment_errors`.
        RasterError: the label cannot be opened.
    """
    for _, text in alignment_errors(image, raster_info(label)):
        raise DatasetError(text)
