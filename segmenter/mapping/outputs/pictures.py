"""Pictures of maps: a quick look with each, and image, label and map side by side at the end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.base.options import option
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.mapping.finisher import Companion, Finisher
from segmenter.mapping.request.map_request import OUTPUTS

if TYPE_CHECKING:
    from segmenter.evaluation.figures import Example
    from segmenter.grid.stretch import Stretch
    from segmenter.mapping.call import Call
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.outcome import Outcome
    from segmenter.mapping.style import MapStyle
    from segmenter.raster import LabelIds, Raster
    from segmenter.raster.mosaic import MosaicView

_SIDE = 1024
"""Longer side of a panel in pixels: two panels fit side by side on a screen."""
_SHOWN = 6
"""Windows of a map that is thinned out, in full: up to half of them with the most wrong pixels."""


@dataclass(frozen=True)
class Quicklook(Finisher):
    """Finisher that writes `STEM.quicklook.png` with each map."""

    quicklook: bool = option(
        False,
        "write STEM.quicklook.png too, a small picture of the map in its colours, with a legend",
        group=OUTPUTS,
    )

    def finished_files(self, call: Call, name: str) -> dict[str, Path]:
        """Return the picture's path."""
        return {"quicklook": call.request.output / f"{name}.quicklook.png"}

    def companion(self, call: Call, job: MapJob) -> Companion:
        """Return the writer of the picture."""
        from segmenter.mapping.outputs.quicklook import QuicklookWriter  # brings rasterio

        (path,) = self.finished_files(call, job.name).values()
        return QuicklookWriter(path, job.part.size, call.run.classes, job.info.metres_per_pixel)


@dataclass(frozen=True)
class Pictures(Finisher):
    """Finisher that draws `STEM.view.png` beside each map, at the end."""

    pictures: bool = option(
        False,
        "write STEM.view.png too: image, label, map, errors and confidence side by side, as far as known",
        group=OUTPUTS,
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
        for job in [*outcome.written, *(job for job in outcome.kept if not _is_current(call, job))]:
            try:
                drawn = replace(job, label=None) if id(job) in unscored else job
                draw_view(drawn, call.style, call.run.recipe.tiles.size)
                call.journal.settle(_picture_entry(job), {**file_facts(_view(job)), "label": _label(job)})
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
        """Remove pictures that are older than their maps, unless they were changed."""
        from segmenter.mapping.folder.journal import file_facts  # brings rasterio

        for job in (*outcome.written, *outcome.kept):
            if _is_newer(_view(job), job.output):
                continue
            drawn = call.journal.settings(_picture_entry(job))
            with contextlib.suppress(OSError):
                if drawn is not None and file_facts(_view(job)).items() <= drawn.items():
                    _view(job).unlink()
        return []


def _picture_entry(job: MapJob) -> dict[str, str]:
    """Return what the journal calls a job's picture."""
    return {"picture": _view(job).name}


def _view(job: MapJob) -> Path:
    return job.output.with_name(f"{job.output.stem}.view.png")


def draw_view(job: MapJob, style: MapStyle, tile: int) -> None:
    """Write `STEM.view.png` beside a finished map: all of it, and below, if it is thinned, six windows.

    Args:
        tile: side of these windows in pixels.

    Raises:
        RasterError, LabelError: a file cannot be read again.
    """
    from segmenter.evaluation.drawing import figure_pixels, save_pixels
    from segmenter.evaluation.figures import below_each_other, scene_panels  # brings matplotlib
    from segmenter.raster import scene_stretch

    factor = max(1, -(-max(job.part.height, job.part.width) // _SIDE))
    with job.open_own() as raster, contextlib.ExitStack() as stack:
        label = job.truth(style.classes)
        if label is not None:
            stack.enter_context(contextlib.closing(label))
        seen = _Seen(job, style, raster, label, scene_stretch(raster))
        shown = [seen.example(job.part, factor)]
        if factor > 1:
            shown += [seen.example(window, 1) for window in windows_to_show(shown[0], job.part, factor, tile)]
    pictures = [figure_pixels(scene_panels(shown[0], style.classes, 3 * _SIDE))]
    width = pictures[0].shape[1]
    pictures += [figure_pixels(scene_panels(each, style.classes, width=width)) for each in shown[1:]]
    save_pixels(below_each_other(pictures), _view(job))


@dataclass(frozen=True, eq=False)
class _Seen:
    """A map with its open raster and label, to be read window by window."""

    job: MapJob
    style: MapStyle
    raster: Raster | MosaicView
    label: LabelIds | None
    stretch: Stretch | None

    def example(self, window: Window, step: int) -> Example:
        """Return a window of the raster, each step-th pixel."""
        from segmenter.evaluation.figures import Example
        from segmenter.mapping.style import CONFIDENCE
        from segmenter.raster import read_label

        shape = Size(max(1, window.height // step), max(1, window.width // step))
        job, inside = self.job, window.relative_to(self.job.part)
        sure = [path for path in self.style.companion_files(job.name) if path.name.endswith(CONFIDENCE)]
        metres, whole = job.info.metres_per_pixel, window == job.part
        place = "" if whole else f", row {window.row:,}, column {window.col:,}"
        return Example(
            f"{job.name}{place}",
            *self.raster.thinned(window, shape),
            None if self.label is None else self.label.read(window, shape),
            self.style.ids(job, read_label(job.output, inside, shape=shape)),
            read_label(sure[0], inside, shape=shape) if sure else None,
            self.stretch,
            None if metres is None else metres * step,
            window.size,
        )


def windows_to_show(thin: Example, part: Window, step: int, tile: int) -> list[Window]:
    """Return the windows of a map to show in full: with the most wrong pixels, then with the most classes.

    Args:
        thin: all of the map, each step-th pixel.
    """
    cols = max(1, part.width // tile)
    count = cols * max(1, part.height // tile)
    row_H, col_W = (np.arange(side) * step // tile for side in thin.map_HW.shape)
    inside = (row_H[:, None] < max(1, part.height // tile)) & (col_W < cols) & (thin.map_HW != IGNORE)
    cell_N = (row_H[:, None] * cols + col_W)[inside]
    pairs = np.unique(cell_N * 256 + thin.map_HW[inside])
    chosen: list[int] = []
    if thin.label_HW is not None:
        wrong = (thin.label_HW != thin.map_HW) & (thin.label_HW != IGNORE)
        wrong_K = np.bincount(cell_N, wrong[inside], minlength=count)
        chosen = [int(k) for k in np.argsort(-wrong_K, kind="stable")[: _SHOWN // 2] if wrong_K[k]]
    classes_K = np.bincount(pairs // 256, minlength=count)
    rest = (int(k) for k in np.argsort(-classes_K, kind="stable") if classes_K[k] and int(k) not in chosen)
    chosen += islice(rest, _SHOWN - len(chosen))
    places = (divmod(k, cols) for k in chosen)
    whole = Window(part.row, part.col, part.height, part.width)
    return [
        Window(part.row + r * tile, part.col + c * tile, tile, tile).intersection(whole) for r, c in places
    ]


def _label(job: MapJob) -> str | None:
    return None if job.label is None else str(job.label)


def _is_current(call: Call, job: MapJob) -> bool:
    """Return whether a picture of a map and this label exists that is newer than both."""
    drawn = call.journal.settings(_picture_entry(job))
    if drawn is None or drawn.get("label", "") != _label(job):  # earlier versions did not note it
        return False
    return _is_newer(_view(job), *filter(None, (job.output, job.label)))


def _is_newer(path: Path, *others: Path) -> bool:
    """Return whether a file exists that is newer than others."""
    try:
        return path.stat().st_mtime_ns > max(other.stat().st_mtime_ns for other in others)
    except OSError:
        return False
