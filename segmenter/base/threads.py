"""Work in threads: many files in order, prefetched results. GDAL, NumPy and TensorFlow release the GIL."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from segmenter.base.bars import Bar
from segmenter.base.terminal import say

Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

_MOST_WORKERS = 16
"""More threads than that wait for the disk; each holds a strip of rows in memory."""
_AHEAD = 4
"""Results per worker that may wait for an earlier one: this limits memory."""
_MANY, _TRIED, _QUICK, _AS_FAST = 256, 64, 0.02, 1.15
"""Items from which work without threads is tried, on how many of them, if threads take up to so many
seconds an item; it goes on so where it takes at most so many times as long."""
_POLL_SECONDS = 0.1
_END = object()


def in_threads(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    description: str,
    unit: str,
    workers: int | None = None,
    progress: bool = True,
    at_end: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Yield `work` of each item, in the order of the items; the first error ends it and is raised here.

    Many quick items are tried without threads, too: where the work is Python's, which runs in one thread at a
    time, this is as fast, and takes half the processor time.

    Args:
        workers: threads; None: one per processor, at most 16.
        at_end: is called before the threads are waited for, after the last result, an error or Ctrl-C.
    """
    count = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
    waiting: deque[Future[Result]] = deque()

    def spread(some: Sequence[Item]) -> Iterator[Result]:
        rest = iter(some)
        for _ in some:
            while len(waiting) < count * _AHEAD and (item := next(rest, None)) is not None:
                waiting.append(pool.submit(work, item))
            yield waiting.popleft().result()

    def results() -> Iterator[Result]:
        if workers is not None or len(items) < _MANY:
            yield from spread(items)
            return
        yield from spread(items[:_TRIED])  # what is loaded at first is not timed
        threaded = yield from _time_results(spread(items[_TRIED : 2 * _TRIED]))
        if threaded > _TRIED * _QUICK:
            yield from spread(items[2 * _TRIED :])
            return
        alone = yield from _time_results(map(work, items[2 * _TRIED : 3 * _TRIED]))
        rest = items[3 * _TRIED :]
        yield from map(work, rest) if alone <= threaded * _AS_FAST else spread(rest)

    with (
        Bar(total=len(items), desc=description, unit=unit, shown=progress and bool(items)) as bar,
        ThreadPoolExecutor(count) as pool,
    ):
        try:
            for result in results():
                bar.update()
                yield result
        finally:
            at_end()
            for future in waiting:
                future.cancel()


def _time_results(results: Iterable[Result]) -> Generator[Result, None, float]:
    """Yield results and return the seconds that they took."""
    begun = time.perf_counter()
    yield from results
    return time.perf_counter() - begun


@contextlib.contextmanager
def told_while(doing: str) -> Iterator[None]:
    """Print what the block is doing and for how long, once a minute."""
    ended = threading.Event()

    def tell() -> None:
        times = itertools.count(1)
        while not ended.wait(60):
            say(f"{doing}: {next(times)} min so far")

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(tell,), name="told while", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


Spread = Callable[..., Iterator[Any]]
"""Function that works as `in_threads`, perhaps on other machines (`extras.dask.spread`)."""


class Prefetch(Generic[T]):
    """Iterator that runs in its own thread: at most `depth` results wait, one more is in progress.

    An error of the iterator is raised to the consumer. `close` stops it after the result in progress, closes
    it, and returns when its thread has ended.

    Attributes:
        waited: seconds that the consumer has waited for results.

    Args:
        given_up: returns True if the consumer should stop waiting; the results then end.
        patience: seconds that `close` waits for the thread; None: until it ends. A dead disk must not keep
            the program from ending.
    """

    def __init__(
        self,
        items: Iterable[T],
        depth: int,
        name: str,
        *,
        given_up: Callable[[], bool] = lambda: False,
        patience: float | None = None,
    ) -> None:
        self._items, self._given_up, self._patience = items, given_up, patience
        self._queue: queue.Queue[Any] = queue.Queue(depth)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.waited = 0.0
        context = contextvars.copy_context()  # who listens here, listens there (`terminal.listening`)
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            started = time.perf_counter()
            item = self._take()
            self.waited += time.perf_counter() - started
            if item is _END:
                break
            yield item
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop the thread; waiting results are lost."""
        self._stop.set()
        self._thread.join(self._patience)

    def _take(self) -> Any:
        while not self._stop.is_set():
            try:
                return self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._given_up():
                    break
        return _END  # also where another thread closed it

    def _run(self) -> None:
        try:
            for item in self._items:
                self._put(item)
                if self._stop.is_set():
                    break
        except BaseException as error:  # whatever it is, the taking side must hear of it
            self._error = error
        finally:
            self._close_items()
            self._put(_END)

    def _close_items(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()

    def _put(self, item: Any) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_POLL_SECONDS)
                return
