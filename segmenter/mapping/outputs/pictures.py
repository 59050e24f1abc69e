"""Pictures of maps: a quick look with each, and image, label and map side by side at the end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import SegmenterError
from segmenter.base.options import option
from segmenter.grid.geometry import Size
from segmenter.mapping.finisher import Companion, Finisher
from segmenter.mapping.request.map_request import OUTPUTS

if TYPE_CHECKING:
    from segmenter.mapping.call import Call
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.outcome import Outcome
    from segmenter.mapping.style import MapStyle

_SIDE = 1024
"""Longer side of a panel in pixels: two panels fit side by side on a screen."""


@dataclass(frozen=True)
class Quicklook(Finisher):
    """Finisher that writes `STEM.quicklook.png` with each map."""

    quicklook: bool = option(
        False, "write STEM.quicklook.png too, a small picture of the map in its colours", group=OUTPUTS
    )

    def checked(self, call: Call, name: str) -> dict[str, Path]:
        """Return the picture's path."""
        return {"quicklook": call.request.output / f"{name}.quicklook.png"}

    def companion(self, call: Call, job: MapJob) -> Companion:
        """Return the writer of the picture."""
        from segmenter.mapping.outputs.quicklook import QuicklookWriter  # brings rasterio

        (path,) = self.checked(call, job.name).values()
        return QuicklookWriter(path, job.part.size, call.run.classes)


@dataclass(frozen=True)
class Pictures(Finisher):
    """Finisher that draws `STEM.view.png` beside each map, at the end."""

    pictures: bool = option(
        False, "write STEM.view.png too, a picture of image, label and map side by side", group=OUTPUTS
    )
    reads_maps = True

    def afterwards(self, job: MapJob) -> tuple[Path, ...]:
        """Return the picture's path."""
        return (_view(job),)

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Draw pictures of new maps, and of older ones if needed; return errors not reported yet.

        A label that could not be scored is left out of its picture.
        """
        from segmenter.mapping.folder.journal import file_facts  # brings rasterio

        unscored = {id(job): str(error) for job, error in outcome.unscored}
        failures: list[SegmenterError] = []
        for job in [*outcome.written, *(job for job in outcome.kept if not _is_current(job))]:
            try:
                draw_view(replace(job, label=None) if id(job) in unscored else job, call.style)
                call.journal.settle(_picture_entry(job), file_facts(_view(job)))
                call.journal.flush()
            except SegmenterError as error:
                if str(error) != unscored.get(id(job)):
                    failures.append(error)
        outcome.further += [_view(job) for job in (*outcome.written, *outcome.kept)]
        return failures


@dataclass(frozen=True)
class RemoveStalePictures(Finisher):
    """Finisher of calls without pictures: removes those that earlier calls drew of maps that are replaced."""

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Remove the pictures of older maps, unless they were changed."""
        from segmenter.mapping.folder.journal import file_facts  # brings rasterio

        for job in outcome.written:
            drawn = call.journal.settings(_picture_entry(job))
            with contextlib.suppress(OSError):
                if drawn is not None and file_facts(_view(job)) == drawn:
                    _view(job).unlink()
        return []


def _picture_entry(job: MapJob) -> dict[str, str]:
    """Return what the journal calls a job's picture."""
    return {"picture": _view(job).name}


def _view(job: MapJob) -> Path:
    return job.output.with_name(f"{job.output.stem}.view.png")


def draw_view(job: MapJob, style: MapStyle) -> None:
    """Write `STEM.view.png` beside a finished map; large rasters are subsampled while reading.

    Raises:
        RasterError, LabelError: a file cannot be read again.
    """
    from segmenter.evaluation.drawing import save_figure
    from segmenter.evaluation.figures import scene_panels  # brings matplotlib
    from segmenter.raster import read_label

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
    panels = scene_panels(
        *(image, label, ids, style.classes, job.name), valid_HW=valid, of=job.part.size, side=3 * _SIDE
    )
    save_figure(panels, _view(job))


def _is_current(job: MapJob) -> bool:
    """Return whether a picture exists that is newer than the map and its label."""
    shown = [path for path in (job.output, job.label) if path is not None]
    try:
        return _view(job).stat().st_mtime_ns > max(path.stat().st_mtime_ns for path in shown)
    except OSError:
        return False
