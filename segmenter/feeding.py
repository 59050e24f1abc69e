"""Batches on their way to the devices, one call's worth ahead of the one that computes."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_AHEAD = 1
"""Calls' batches that wait on the devices, beside the one that is computed with: memory is dear there."""
_POLL_SECONDS = 0.1
_PATIENCE = 10.0
"""Seconds that the end waits for a file; a disk that does not answer must not keep a program from ending."""


class Feeder:
    """Takes batches from an iterable and puts them on the devices, in a thread of its own.

    Copying to a GPU then goes on while it computes, and so does waiting for the files.

    Attributes:
        waited: seconds that the taking side has waited for batches.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        to_devices: Callable[[Any], Any],
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """`given_up` says whether the taking side need not wait any longer; the batches then end."""
        self._batches, self._to_devices, self._given_up = batches, to_devices, given_up
        self._queue: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self.waited = 0.0
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        """The batches on the devices; an error of the thread is raised here."""
        while True:
            started = time.perf_counter()
            item = self._take()
            self.waited += time.perf_counter() - started
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def _take(self) -> Any:
        while True:
            try:
                return self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._given_up():
                    return _End()

    def close(self) -> None:
        """Stop; returns when the thread has let go of its files."""
        self._stop.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        try:
            for batch in self._batches:
                self._put(self._to_devices(batch))
                if self._stop.is_set():
                    return
            self._put(_End())
        except BaseException as error:  # whatever it is, the waiting side must hear of it
            self._put(_End(error))

    def _put(self, item: Any) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_POLL_SECONDS)
                return


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
