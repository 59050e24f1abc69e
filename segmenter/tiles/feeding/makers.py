"""Makers of batches: the interface that a feed needs, and its implementation by threads."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod

from segmenter.tiles.batches import Batch, BatchLoader, DrawCounts
from segmenter.tiles.feeding.orders import Order

_POLL_SECONDS = 0.2
_CLOSING_SECONDS = 5.0
"""Time for the batches in progress; a disk that does not answer must not keep a program from ending."""


class FeedClosedError(Exception):
    """A batch was awaited while the feed was closed: the training has ended."""


class Maker(ABC):
    """Interface of makers of ordered batches; called under the lock of a feed, except `close`."""

    @property
    @abstractmethod
    def room(self) -> int:
        """Number of further orders that may be given now; this limits memory."""

    @property
    @abstractmethod
    def drawn(self) -> DrawCounts:
        """Copy of the counts of all draws so far."""

    @abstractmethod
    def begin(self, order: Order) -> None:
        """Begin a batch; requires `room`."""

    @abstractmethod
    def result(self, ticket: int) -> Batch | None:
        """Return a batch, valid until dropped, or raise its error; None: not finished yet."""

    @abstractmethod
    def drop(self, ticket: int) -> None:
        """Release a batch that was used or is no longer needed."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until a batch may have been finished.

        Raises:
            TrainingError: a worker process has died.
            FeedClosedError: the maker is closed.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise TrainingError if a worker process has died."""

    @abstractmethod
    def close(self) -> None:
        """End the work, even while another thread waits."""


class Threads(Maker):
    """Maker of batches in threads of this process; the GIL limits how much runs in parallel.

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
        return self._ahead - len(self._under_way) - len(self._made)

    @property
    def drawn(self) -> DrawCounts:
        return self._loader.drawn

    def begin(self, order: Order) -> None:
        self._under_way.add(order.ticket)
        self._orders.put(order)

    def result(self, ticket: int) -> Batch | None:
        made = self._made.get(ticket)
        if isinstance(made, BaseException):
            raise made
        return made

    def drop(self, ticket: int) -> None:
        if ticket in self._under_way:
            self._dropped.add(ticket)
        else:
            del self._made[ticket]

    def wait(self) -> None:
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
