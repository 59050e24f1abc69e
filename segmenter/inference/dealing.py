"""Batches distributed to devices: each to a free one, results in order, a bounded number at once.

A device gets as many batches as its worker takes at once (`Worker.at_once`, two on a GPU): while one is
computed, the next is copied to the device, and the previous results are copied back and cut. A slow device
gets fewer batches. Others do not wait for it if a batch takes at most twice their time, since that many
results may wait for an earlier one.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DeviceError
from segmenter.base.threads import Prefetch
from segmenter.grid.geometry import Window
from segmenter.inference.events import Batch, J, Piece
from segmenter.inference.prediction import Predictor, Worker

_WAITING = 2
"""Results that may wait for an earlier one, for each batch that the devices take at once."""


def places(predict: Predictor) -> int:
    """Return the number of batches that all devices of a predictor take at once."""
    return sum(worker.at_once for worker in predict.workers)


def compute_all(
    batches: Iterable[Batch[J]], predict: Predictor, *, blended: bool
) -> Iterator[tuple[Batch[J], Iterator[Any]]]:
    """Yield each batch with the results for its pieces, in order.

    Raises:
        DeviceError: a single window exceeds a device's memory; larger batches are halved.
    """
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
