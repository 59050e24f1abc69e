"""Rasters to class maps, window by window: law 4, *tiles disappear*, and law 6, *memory is bounded*.

Memory depends on the window and on a column's width (`windows.Columns`), which follows from `--memory`, never
on the raster's width, height or file size.

One thread reads ahead and another computes (several with more devices, `dealing`), while what is done is
written. Windows of one shape are batched
together across rasters, so that a folder of small tiles keeps the model as busy as one large scene does.
This module knows arrays and windows only: what computes is a `Predictor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable

from segmenter.base.threads import Prefetch
from segmenter.inference.blending import Blender
from segmenter.inference.dealing import compute_all
from segmenter.inference.events import Event, Failed, Finished, J, Job, Mapped, Piece
from segmenter.inference.prediction import (
    ExtraOutputs,
    Prediction,
    Predictor,
)
from segmenter.inference.reading import Tiling, read_batches

__all__ = [
    "Event",
    "ExtraOutputs",
    "Failed",
    "Finished",
    "Job",
    "Mapped",
    "Prediction",
    "Predictor",
    "Tiling",
    "classify_all",
]

_READ_AHEAD, _COMPUTED_AHEAD = 1, 1
"""Batches that wait between two threads; one more is in each thread's hands."""


def classify_all(
    jobs: Iterable[J], tiling: Tiling, predict: Predictor, readers: int | None = None
) -> Generator[Event[J], None, None]:
    """Yield predictions for many rasters, as they are computed.

    The windows of a job come row by row (each row of windows complete before the next begins; blended, a
    window is some complete rows), of wide ones column by column, then its `Finished`, or its `Failed` at any
    time; jobs may interleave. At most about `4 * batch + 64` windows are between reading and being given, and
    three batches more for each that several devices take at once, which also bounds how many jobs are under
    way. A window without a valid pixel is not computed.

    Args:
        readers: threads that read a large raster; None: one for each device.

    Raises:
        DeviceError: a single window does not fit into the device's memory; a batch that does not is halved.
    """
    wanted, classes = predict.wanted, predict.classes
    blender = Blender(wanted, classes) if tiling.blend is not None else None
    batches = read_batches(jobs, tiling, readers or len(predict.workers))
    reader = Prefetch(batches, _READ_AHEAD, "raster reader")
    computed = Prefetch(compute_all(reader, predict, blended=blender is not None), _COMPUTED_AHEAD, "model")
    with contextlib.closing(computed), contextlib.closing(reader):
        for batch, found in computed:
            for entry in batch.entries:
                if blender is not None:
                    value = next(found) if isinstance(entry, Piece) and entry.computed else None
                    for window, prediction in blender.take(entry, value):
                        yield Mapped(entry.job, window, prediction)
                elif isinstance(entry, Piece):
                    blank = Prediction.blank(entry.keep.size, wanted, classes)
                    yield Mapped(entry.job, entry.keep, next(found) if entry.computed else blank)
                if not isinstance(entry, Piece):
                    yield entry
