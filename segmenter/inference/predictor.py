"""Rasters to class maps, window by window: law 4, *tiles disappear*, and law 6, *memory is bounded*.

Memory depends on the window and on a column's width (`tiling.Columns`), which follows from `--memory`, never
on the raster's width, height or file size.

One thread reads ahead and another computes, while what is done is written. Windows of one shape are batched
together across rasters, so that a folder of small tiles keeps the model as busy as one large scene does.
This module knows arrays and windows only: what computes is a `Predictor`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import DeviceError
from segmenter.geometry import Window
from segmenter.inference.blending import Blender
from segmenter.inference.events import Batch, Event, Failed, Finished, J, Job, Mapped, Piece, Readable
from segmenter.inference.prediction import (
    ExtraOutputs,
    FunctionPredictor,
    Prediction,
    Predictor,
    Worker,
    checked,
)
from segmenter.inference.reading import Tiling, read_batches
from segmenter.threads import Prefetch

__all__ = [
    "Event",
    "ExtraOutputs",
    "Failed",
    "Finished",
    "FunctionPredictor",
    "Job",
    "Mapped",
    "Prediction",
    "Predictor",
    "Tiling",
    "classify",
    "classify_all",
]

_READ_AHEAD, _COMPUTED_AHEAD = 1, 1
"""Batches that wait between two threads; one more is in each thread's hands."""


def classify_all(jobs: Iterable[J], tiling: Tiling, predict: Predictor) -> Generator[Event[J], None, None]:
    """Predictions for many rasters, as they are computed.

    The windows of a job come row by row (each row of windows complete before the next begins; blended, a
    window is some complete rows), of wide ones column by column, then its `Finished`, or its `Failed` at any
    time; jobs may interleave. At
    most about `4 * batch + 64` windows are between reading and being given, which also bounds how many jobs
    are under way. A window without a valid pixel is not computed.

    Raises:
        DeviceError: a single window does not fit into the device's memory; a batch that does not is halved.
    """
    wanted, classes = predict.wanted, predict.classes
    blender = Blender(wanted, classes) if tiling.blend is not None else None
    reader = Prefetch(read_batches(jobs, tiling), _READ_AHEAD, "raster reader")
    computed = Prefetch(_compute_all(reader, predict, blended=blender is not None), _COMPUTED_AHEAD, "model")
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


def classify(
    raster: Readable, part: Window, tiling: Tiling, predict: Predictor
) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
    """Class ids of a part of one open raster: windows in its coordinates, row by row.

    The raster is read in another thread: do not use it until the last window came.

    Raises:
        RasterError: where a window cannot be read.
    """
    for event in classify_all([_Opened(raster, part)], tiling, predict):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Mapped):
            yield event.window, event.ids


@dataclass(frozen=True)
class _Opened:
    raster: Readable
    part: Window
    columns: None = None
    done_rows: int = 0
    abandoned: bool = False

    def open(self) -> contextlib.AbstractContextManager[Readable]:
        return contextlib.nullcontext(self.raster)


# ---------------------------------------------------------------------------------- computing


def _compute_all(
    batches: Iterable[Batch[J]], predict: Predictor, *, blended: bool
) -> Iterator[tuple[Batch[J], Iterator[Any]]]:
    """Each batch with what is computed of its pieces, in order; several devices work at once."""
    workers = [_Device(worker, blended) for worker in predict.workers]
    if len(workers) == 1:
        for batch in batches:
            yield batch, workers[0].compute(batch)
        return
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in workers]
        under_way: deque[tuple[Batch[J], Future[Iterator[Any]]]] = deque()
        for number, batch in enumerate(batches):
            if len(under_way) == len(workers):
                done, future = under_way.popleft()
                yield done, future.result()
            turn = number % len(workers)
            under_way.append((batch, pools[turn].submit(workers[turn].compute, batch)))
        for done, future in under_way:
            yield done, future.result()


class _Device:
    """One device's model, with the largest batch that fits into its memory."""

    def __init__(self, worker: Worker, blended: bool) -> None:
        self._worker, self._blended = worker, blended
        self._most: dict[tuple[int, ...], int] = {}

    def compute(self, batch: Batch[Any]) -> Iterator[Any]:
        """Of each piece that has data: the prediction of its kept part, or its weighted probabilities."""
        if batch.image is None:
            return iter(())
        pieces = [entry for entry in batch.entries if isinstance(entry, Piece) and entry.computed]
        found = list(self._halving(batch.image, batch.valid, pieces))
        return iter(found)

    def _halving(
        self, image: NDArray[Any], valid: NDArray[np.bool_], pieces: Sequence[Piece[Any]]
    ) -> Iterator[Any]:
        start, shape = 0, valid.shape[1:]
        while start < len(pieces):
            count = min(len(pieces) - start, self._most.get(shape, len(pieces)))
            part = slice(start, start + count)
            try:
                found = self._run(image[part], valid[part], pieces[part])
            except DeviceError:
                if count == 1:
                    raise
                self._most[shape] = count // 2
                continue
            yield from found
            start += count

    def _run(self, image: NDArray[Any], valid: NDArray[np.bool_], pieces: Sequence[Piece[Any]]) -> list[Any]:
        if self._blended:
            rows, cols = (np.stack([p.weights[axis] for p in pieces]) for axis in (0, 1))
            return list(self._worker.weighted(image, valid, rows, cols))
        # One part of all windows: no more than that leaves the device, where it can.
        box = Window.around(piece.within for piece in pieces)
        found = checked(self._worker.part(image, valid, box), (len(valid), box.height, box.width))
        parts = [piece.within.relative_to(box).slices() for piece in pieces]
        return [found[i][where].masked(pieces[i].valid) for i, where in enumerate(parts)]
