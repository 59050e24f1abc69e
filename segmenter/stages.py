"""Work that goes on in a thread of its own, a bounded number of results ahead of who takes them."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

_POLL_SECONDS = 0.1
_END = object()
T = TypeVar("T")


class Ahead(Generic[T]):
    """An iterator that runs in a thread: at most `depth` results wait, one more is being made.

    An error of the iterator is raised where its results are taken. `close` (or leaving `with`) stops it
    after the result that it is making, closes it, and returns when its thread has ended.
    """

    def __init__(self, items: Iterator[T], depth: int, name: str) -> None:
        self._items = items
        self._queue: queue.Queue[Any] = queue.Queue(depth)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while (item := self._get()) is not _END:
            yield item
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop it; results that wait are lost."""
        self._stop.set()
        self._thread.join()

    def _get(self) -> Any:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=_POLL_SECONDS)
        return _END  # another thread closed it: who takes the results ends too

    def _run(self) -> None:
        try:
            for item in self._items:
                self._put(item)
                if self._stop.is_set():
                    break
        except BaseException as error:  # whatever it is, the waiting side must hear of it
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
