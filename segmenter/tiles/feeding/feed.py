"""Feed: prefetched batches of epochs in the order of use, identical whoever makes them."""

from __future__ import annotations

import queue
import threading
import time
import weakref

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.base.files import Closing
from segmenter.sampling import Plan
from segmenter.tiles.batches import Batch, BatchLoader, DrawCounts
from segmenter.tiles.feeding.orders import BatchShape, FeedClosedError, Order
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.feeding.sizes import ahead_of, threads_for

_POLL_SECONDS = 0.2
_CLOSING_SECONDS = 5.0
"""Time for the batches in progress; a disk that does not answer must not keep a program from ending."""


class Threads:
    """Maker of batches in threads of this process; the GIL limits how much runs in parallel.

    A maker takes orders under the lock of a feed; `WorkerPool` is the other one.

    Args:
        threads: number of threads.
        ahead: batches that may be in progress or waiting.
    """

    def __init__(self, loader: BatchLoader, threads: int, ahead: int) -> None:
        self._loader, self._ahead = loader, ahead
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Batch | BaseException]] = queue.SimpleQueue()
        self._under_way: set[int] = set()
        self._dropped: set[int] = set()
        self._made: dict[int, Batch | BaseException] = {}
        self._closed = False
        self._threads = []
        for number in range(threads):
            # Daemons: a disk that does not answer must not keep a program from ending. They do not know this
            # object, so that it is let go of, and ends them, with the last who knows it.
            arguments = (loader, self._orders, self._done, self._dropped)
            thread = threading.Thread(target=_work, args=arguments, name=f"input {number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._end = weakref.finalize(self, _end, self._orders, threads)

    @property
    def room(self) -> int:
        """Number of further orders that may be given now; this limits memory."""
        return self._ahead - len(self._under_way) - len(self._made)

    @property
    def drawn(self) -> DrawCounts:
        """Copy of the counts of all draws so far."""
        return self._loader.drawn

    def begin(self, order: Order) -> None:
        """Begin a batch; requires `room`."""
        self._under_way.add(order.ticket)
        self._orders.put(order)

    def result(self, ticket: int) -> Batch | None:
        """Return a batch, valid until dropped, or raise its error; None: not finished yet."""
        made = self._made.get(ticket)
        if isinstance(made, BaseException):
            raise made
        return made

    def drop(self, ticket: int) -> None:
        """Release a batch that was used or is no longer needed."""
        if ticket in self._under_way:
            self._dropped.add(ticket)
        else:
            del self._made[ticket]

    def wait(self) -> None:
        """Wait until a batch may have been finished (FeedClosedError: the maker is closed)."""
        try:
            ticket, made = self._done.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if self._closed:
                raise FeedClosedError from None
            return
        self._under_way.discard(ticket)
        if ticket in self._dropped:
            self._dropped.discard(ticket)
        else:
            self._made[ticket] = made

    def check(self) -> None:
        """Do nothing: threads cannot die before the program."""

    def close(self) -> None:
        """End the work, even while another thread waits."""
        self._closed = True
        self._dropped |= self._under_way
        self._end()
        # A thread that is in native code while the interpreter ends aborts the process.
        until = time.monotonic() + _CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def _work(
    loader: BatchLoader,
    orders: queue.SimpleQueue[Order | None],
    done: queue.SimpleQueue[tuple[int, Batch | BaseException]],
    dropped: set[int],
) -> None:
    while (order := orders.get()) is not None:
        if order.ticket in dropped:
            done.put((order.ticket, FeedClosedError()))
            continue
        try:
            made: Batch | BaseException = loader.load(order.plan(), order.epoch, order.step)
        except BaseException as error:  # whatever it is, the taking side must hear of it
            made = error
        done.put((order.ticket, made))


def _end(orders: queue.SimpleQueue[Order | None], threads: int) -> None:
    for _ in range(threads):
        orders.put(None)


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
            loader.preload_labels()
            pool.serve(loader)
        threads = threads_for()
        self._maker = pool or Threads(loader, threads, ahead_of(threads, self.shape.bytes))
        self._lock = threading.Lock()
        self._plan: Plan | None = None
        self._epoch = self._next = self._sent = 0
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
                ticket, made = self._take_batch(step)
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
        assert self._plan is not None
        while self._maker.room and self._sent < self._plan.steps:
            order = Order.of(self._plan, self._epoch, self._sent)
            self._ordered[self._sent] = order.ticket
            self._maker.begin(order)
            self._sent += 1

    def _take_batch(self, step: int) -> tuple[int, Batch]:
        """Wait for a step's batch; return its order's ticket and the batch."""
        while True:
            self._fill()  # what was given up may have made room only now
            ticket = self._ordered.get(step)
            if ticket is not None and (made := self._maker.result(ticket)) is not None:
                return ticket, made
            self._maker.wait()
