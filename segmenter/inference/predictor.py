"""Rasters to class maps, window by window: law 4, *tiles disappear*, and law 6, *memory is bounded*.

Memory depends on the window and on a column's width (`windows.Columns`), which follows from `--memory`, never
on the raster's width, height or file size.

One thread reads ahead and another computes (several with more devices, `dealing`), while results are written.
Windows of one shape are batched across rasters, so that a folder of small tiles keeps the model as busy as
one large scene. This module handles arrays and windows only; a `Predictor` computes.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DeviceError
from segmenter.base.threads import Prefetch
from segmenter.grid.geometry import Window
from segmenter.inference.blending import Blender
from segmenter.inference.events import Batch, Event, Failed, Finished, J, MappedWindow, Piece
from segmenter.inference.prediction import (
    ExtraOutputs,
    Prediction,
    Predictor,
    Worker,
)
from segmenter.inference.reading import Tiling, read_batches

_WAITING = 2
"""Results that may wait for an earlier one, for each batch that the devices take at once."""


def places(predict: Predictor) -> int:
    """Return the number of batches that all devices of a predictor take at once."""
    return sum(worker.at_once for worker in predict.workers)


def compute_all(
    batches: Iterable[Batch[J]], predict: Predictor, *, blended: bool
) -> Iterator[tuple[Batch[J], Iterator[Any]]]:
    """Yield each batch with the results for its pieces, in order."""
    if (count := places(predict)) == 1:
        device = _Device(predict.workers[0], blended)
        for batch in batches:
            yield batch, device.compute(batch)
        return
    with ThreadPoolExecutor(count, "device") as pool:
        dealt = Prefetch(_deal(batches, predict.workers, pool, blended), _WAITING * count, "dealer")
        with closing(dealt):
            for batch, future in dealt:
                yield batch, future.result()


def _deal(
    batches: Iterable[Batch[J]], workers: Sequence[Worker], pool: ThreadPoolExecutor, blended: bool
) -> Iterator[tuple[Batch[J], Future[Iterator[Any]]]]:
    """Yield each batch with its future result, in order, once a device has room for it."""
    devices = [_Device(worker, blended) for worker in workers]
    free: queue.SimpleQueue[_Device] = queue.SimpleQueue()
    for turn in range(max(worker.at_once for worker in workers)):  # each device has one before any has two
        for device, worker in zip(devices, workers, strict=True):
            if turn < worker.at_once:
                free.put(device)

    def compute(device: _Device, batch: Batch[J]) -> Iterator[Any]:
        try:
            return device.compute(batch)
        finally:
            free.put(device)

    for batch in batches:
        if batch.image is None:  # no device is asked
            nothing: Future[Iterator[Any]] = Future()
            nothing.set_result(iter(()))
            yield batch, nothing
        else:
            future = pool.submit(compute, free.get(), batch)
            yield replace(batch, image=None, valid=None), future  # pixels need not wait for an earlier result


class _Device:
    """One device's model, with the largest batch that fits its memory."""

    def __init__(self, worker: Worker, blended: bool) -> None:
        self._worker, self._blended = worker, blended
        self._most: dict[tuple[int, ...], int] = {}

    def compute(self, batch: Batch[Any]) -> Iterator[Any]:
        """Compute each piece that has data: the prediction of its `keep`, or weighted probabilities."""
        if batch.image is None:
            return iter(())
        pieces = [entry for entry in batch.entries if isinstance(entry, Piece) and entry.computed]
        results = list(self._halving(batch.image, batch.valid, pieces))
        return iter(results)

    def _halving(
        self, image: NDArray[Any], valid: NDArray[np.bool_], pieces: Sequence[Piece[Any]]
    ) -> Iterator[Any]:
        start, shape = 0, valid.shape[1:]
        while start < len(pieces):
            count = min(len(pieces) - start, self._most.get(shape, len(pieces)))
            part = slice(start, start + count)
            try:
                result = self._run(image[part], valid[part], pieces[part])
            except DeviceError:
                if count == 1:
                    raise
                self._most[shape] = count // 2
                continue
            yield from result
            start += count

    def _run(self, image: NDArray[Any], valid: NDArray[np.bool_], pieces: Sequence[Piece[Any]]) -> list[Any]:
        if self._blended:
            rows, cols = (np.stack([p.weights[axis] for p in pieces]) for axis in (0, 1))
            return list(self._worker.weighted(image, valid, rows, cols))
        # One part of all windows: no more than that leaves the device, where it can.
        box = Window.around(piece.within for piece in pieces)
        prediction = self._worker.part(image, valid, box)
        parts = [piece.within.relative_to(box).slices() for piece in pieces]
        return [prediction[i][where].masked(pieces[i].valid) for i, where in enumerate(parts)]


__all__ = [
    "ExtraOutputs",
    "Failed",
    "Finished",
    "MappedWindow",
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
                        yield MappedWindow(entry.job, window, prediction)
                elif isinstance(entry, Piece):
                    blank = Prediction.blank(entry.keep.size, wanted, classes)
                    yield MappedWindow(entry.job, entry.keep, next(found) if entry.computed else blank)
                if not isinstance(entry, Piece):
                    yield entry
