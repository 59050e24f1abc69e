"""Stop of a training by a signal: heard at once, also in C; without TensorFlow."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HEARD = b"\nstopping after this call of the devices or validation; once more ends at once\n"


class StoppedError(Exception):
    """A signal stopped the training, which has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def stop_signal() -> Iterator[list[int]]:
    """Yield a list that SIGINT or SIGTERM fills, read between calls; a second signal ends at once.

    The second one exits with code 128 + its number, wherever the program is. Python's own handlers run only
    when the main thread returns from TensorFlow, and two signals may have become one by then; so a thread
    reads each from the interpreter's wake-up pipe. The next start removes unfinished files.
    """
    caught: list[int] = []
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    watch = threading.Thread(target=_watch, args=(reading, caught), name="signals", daemon=True)
    watch.start()
    before = {number: signal.signal(number, _nothing) for number in _SIGNALS}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield caught
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        watch.join()
        os.close(reading)


def _nothing(_number: int, _frame: Any) -> None:
    """Do nothing: a thread handles the signal, which would end the program without a handler."""


def _watch(reading: int, caught: list[int]) -> None:
    while heard := os.read(reading, 1):
        if heard[0] not in _SIGNALS:
            continue
        caught.append(heard[0])
        if len(caught) > 1:
            os._exit(128 + heard[0])
        with suppress(OSError):  # who reads it may have been stopped by the same key
            os.write(2, _HEARD)
