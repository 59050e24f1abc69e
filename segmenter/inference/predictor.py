"""Rasters to class maps, window by window: law 4, *tiles disappear*, and law 6, *memory is bounded*.

Memory depends on the window and on a column's width (`windows.Columns`), which follows from `--memory`, never
on the raster's width, height or file size.

One thread reads ahead and another computes (several with more devices, `dealing`), while results are written.
Windows of one shape are batched across rasters, so that a folder of small tiles keeps the model as busy as
one large scene. This module handles arrays and windows only; a `Predictor` computes.
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
    """Yield predictions for many rasters as soon as they are computed.

    The windows of a job come row by row (each row of windows is complete before the next; a blended window is
    some complete rows), for wide rasters column by column, then its `Finished`; `Failed` may come at any
    time. Jobs may interleave. At most about `4 * batch + 64` windows are read but not yielded, plus three
    batches for each that several devices take at once, which also limits the number of open jobs. Windows
    without a valid pixel are not computed.

    Args:
        readers: number of threads that read a large raster; None: one for each device.

    Raises:
        DeviceError: a single window exceeds the device's memory; larger batches are halved.
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
