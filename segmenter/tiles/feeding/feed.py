"""Feed: prefetched batches of epochs in the order of use, identical whoever makes them."""

from __future__ import annotations

import threading

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.base.files import Closing
from segmenter.sampling import Plan
from segmenter.tiles.batches import Batch, BatchLoader, DrawCounts
from segmenter.tiles.feeding.makers import Maker, Threads
from segmenter.tiles.feeding.orders import Order
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.feeding.sizes import ahead_of, threads_for
from segmenter.tiles.feeding.slots import BatchShape


class Feed(Closing):
    """Batches of a training, prefetched by threads of this process or by worker processes.

    A bounded number of batches is in progress or waiting, the next steps first. `begin` starts an epoch
    before its first batch is taken, so that devices are not idle after a validation.

    Attributes:
        loader: maker of the batches.
        fault: the original error, for callers to whom TensorFlow passes only its text.

    Args:
        pool: worker processes, closed together with the feed; None: threads of this process.
    """

    def __init__(self, loader: BatchLoader, batch: int, pool: WorkerPool | None = None) -> None:
        """Feed batches of `batch` tiles a step."""
        self.loader = loader
        self.fault: SegmenterError | None = None
        self.shape = BatchShape(batch, loader.tile_shape, loader.dtype)
        if pool is not None:
            loader.know_labels()
            pool.serve(loader)
        self._maker: Maker = pool or _threads(loader, self.shape)
        self._lock = threading.Lock()
        self._plan: Plan | None = None
        self._epoch = self._first = self._next = self._sent = 0
        self._ordered: dict[int, int] = {}

    @property
    def drawn(self) -> DrawCounts:
        """Copy of the counts of all draws so far."""
        return self._maker.drawn

    def begin(self, plan: Plan, epoch: int, first: int = 0) -> None:
        """Begin an epoch's batches at a step; drop batches of other epochs.

        If this epoch was already begun at that step, its batches are kept.
        """
        with self._lock:
            if self._plan is not plan or (self._epoch, self._next) != (epoch, first):
                self._restart(plan, epoch, first)
            self._fill()

    def take(self, plan: Plan, epoch: int, step: int, into: Batch) -> None:
        """Copy the batch of a step into arrays; fast if steps are taken in order.

        Raises:
            SegmenterError: a file is invalid; a worker process was killed or has no memory.
            FeedClosedError: the feed was closed in the meantime.
        """
        with self._lock:
            if self._plan is not plan or (self._epoch, self._next) != (epoch, step):
                self._restart(plan, epoch, step)
            try:
                ticket, made = self._made(step)
            except SegmenterError as error:
                self.fault = error
                raise
            for target, values in zip(into, made, strict=True):
                np.copyto(target, values)
            del self._ordered[step]
            self._maker.drop(ticket)
            self._next = step + 1
            self._fill()

    def check(self) -> None:
        """Raise TrainingError if a worker process has died, even while no batch is awaited."""
        self._maker.check()

    def close(self) -> None:
        """End the work, even while another thread waits for a batch."""
        self._maker.close()

    def _restart(self, plan: Plan, epoch: int, step: int) -> None:
        for ticket in self._ordered.values():
            self._maker.drop(ticket)
        self._ordered.clear()
        self._plan, self._epoch = plan, epoch
        self._next = self._sent = step

    def _fill(self) -> None:
        """Order as many of the next batches as fit."""
        assert self._plan is not None
        while self._maker.room and self._sent < self._plan.steps:
            order = Order.of(self._plan, self._epoch, self._sent)
            self._ordered[self._sent] = order.ticket
            self._maker.begin(order)
            self._sent += 1

    def _made(self, step: int) -> tuple[int, Batch]:
        """Wait for a step's batch; return its order's ticket and the batch."""
        while True:
            self._fill()  # what was given up may have made room only now
            ticket = self._ordered.get(step)
            made = None if ticket is None else self._maker.result(ticket)
            if ticket is not None and made is not None:
                return ticket, made
            self._maker.wait()


def _threads(loader: BatchLoader, shape: BatchShape) -> Threads:
    threads = threads_for()
    return Threads(loader, threads, ahead_of(threads, shape.bytes))
