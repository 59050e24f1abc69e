"""Finished maps as pictures that a person can judge: image, label and map side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.figures import side_by_side
from segmenter.geometry import Size
from segmenter.labels import IGNORE, ClassMap
from segmenter.maps import MapJob, MapStyle
from segmenter.raster import read_label

_SIDE = 1024
"""Pixels of the longer side of a panel: what a screen shows of a scene beside another."""


def draw_view(job: MapJob, style: MapStyle) -> None:
    """Write `STEM.view.png` beside a finished map; large rasters are thinned out while they are read.

    Raises:
        RasterError, LabelError: a file cannot be read again.
    """
    longer = max(job.part.height, job.part.width)
    factor = max(1, -(-longer // _SIDE))
    shape = Size(max(1, job.part.height // factor), max(1, job.part.width // factor))
    with job.open() as raster:
        image, valid = raster.thinned(job.part, shape)
    ids = _map_ids(read_label(job.output, shape=shape), job, style)
    label = None
    if job.label is not None:
        raw = read_label(job.label, job.part, expand_palette=_coloured(style.classes), shape=shape)
        label = style.classes.decode(raw, str(job.label))
    path = job.output.with_name(f"{job.output.stem}.view.png")
    side_by_side(
        image, label, ids, style.classes, path, job.name, valid_HW=valid, thinned=factor, side=3 * _SIDE
    )


def _coloured(classes: ClassMap) -> bool:
    return classes.encoding == "colours"


def _map_ids(raw: NDArray[Any], job: MapJob, style: MapStyle) -> NDArray[np.uint8]:
    """Class ids of a written map, `IGNORE` where it has no data."""
    if job.output.suffix != ".png":
        return np.where(raw == style.nodata, IGNORE, raw).astype(np.uint8)
    ids = np.full(1 << 16, IGNORE, np.uint8)
    ids[style.classes.codes()] = np.arange(len(style.classes))
    return ids[raw]
