"""Steps in progress on workers: given in order, finished in any order."""

from __future__ import annotations

import queue
import threading
from typing import Any


class InFlight:
    """Steps given to a coordinator whose results are missing; a bounded number.

    Args:
        coordinator: TensorFlow's `ClusterCoordinator`.
        step: `tf.function` that a worker runs on a batch.
        most: most steps in progress; the chief keeps their batches, in case a worker is lost.
    """

    def __init__(self, coordinator: Any, step: Any, most: int) -> None:
        self._coordinator, self._step, self._most = coordinator, step, most
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._under_way: set[int] = set()

    @property
    def full(self) -> bool:
        """True if no further step may be given."""
        return len(self._under_way) >= self._most

    @property
    def under_way(self) -> list[int]:
        """Numbers of the unfinished steps."""
        return sorted(self._under_way)

    def give(self, number: int, batch: Any) -> None:
        """Give step `number` to the first free worker."""
        result = self._coordinator.schedule(self._step, args=tuple(batch))
        self._under_way.add(number)
        # A thread each, since TensorFlow has no way to wait for any of several; daemons, which a result that
        # never comes does not keep from ending with the program.
        threading.Thread(target=self._fetch, args=(number, result), daemon=True).start()

    def done(self, seconds: float) -> Any:
        """Return the result of the next step that ends; None if none ends within `seconds`.

        Raises:
            Exception: the error of a failed step.
        """
        try:
            number, result = self._done.get(timeout=seconds) if seconds else self._done.get_nowait()
        except queue.Empty:
            return None
        if isinstance(result, BaseException):
            raise result
        self._under_way.discard(number)
        return result

    def _fetch(self, number: int, result: Any) -> None:
        try:
            self._done.put((number, result.fetch()))
        except BaseException as error:  # whatever it is, the taking side must hear of it
            self._done.put((number, error))
