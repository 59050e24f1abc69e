"""Pictures of finished maps for people: image, label and map side by side."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from segmenter.base.errors import SegmenterError
from segmenter.evaluation.figures import side_by_side
from segmenter.grid.geometry import Size
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.mapping.scoring import Outcome
from segmenter.raster import read_label

_SIDE = 1024
"""Pixels of the longer side of a panel: what a screen shows of a scene beside another."""


def draw_views(outcome: Outcome, style: MapStyle) -> list[SegmenterError]:
    """Pictures of the maps, of those that were there as far as needed; what is wrong and not told yet.

    A label that could not be counted is left out of its picture.
    """
    unscored = {id(job): str(error) for job, error in outcome.unscored}
    failures: list[SegmenterError] = []
    for job in [*outcome.written, *(job for job in outcome.kept if not view_is_current(job))]:
        try:
            draw_view(replace(job, label=None) if id(job) in unscored else job, style)
        except SegmenterError as error:
            if str(error) != unscored.get(id(job)):
                failures.append(error)
    return failures


def draw_view(job: MapJob, style: MapStyle) -> None:
    """Write `STEM.view.png` beside a finished map; large rasters are thinned out while they are read.

    Raises:
        RasterError, LabelError: a file cannot be read again.
    """
    longer = max(job.part.height, job.part.width)
    factor = max(1, -(-longer // _SIDE))
    shape = Size(max(1, job.part.height // factor), max(1, job.part.width // factor))
    with job.open_own() as raster:
        image, valid = raster.thinned(job.part, shape)
    ids = style.ids(job, read_label(job.output, shape=shape))
    label = None
    if (truth := job.truth(style.classes)) is not None:
        with contextlib.closing(truth):
            label = truth.read(job.part, shape)
    side_by_side(
        *(image, label, ids, style.classes, job.view, job.name),
        valid_HW=valid,
        of=job.part.size,
        side=3 * _SIDE,
    )


def view_is_current(job: MapJob) -> bool:
    """Whether there is a picture that is newer than the map and its label."""
    shown = [path for path in (job.output, job.label) if path is not None]
    try:
        return job.view.stat().st_mtime_ns > max(path.stat().st_mtime_ns for path in shown)
    except OSError:
        return False
