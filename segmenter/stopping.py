"""Ending long work on purpose: signals that are heard at once, and output that nobody reads any more."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HEARD = b"\nstopping after this call of the devices or validation; once more ends at once\n"


@contextmanager
def stop_signal() -> Iterator[list[int]]:
    """SIGINT or SIGTERM fills the list, to be seen after the call under way; a second one ends at once.

    At once: with 128 + its number as exit code, wherever the program is. Python's own handlers run only when
    the main thread is back from TensorFlow, and two signals are one by then; so a thread hears of each from
    the interpreter's wake-up pipe. What was half-written is removed by the next start.
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
    """The thread has heard it; without a handler, the signal would end the program."""


def _watch(reading: int, caught: list[int]) -> None:
    while heard := os.read(reading, 1):
        if heard[0] not in _SIGNALS:
            continue
        caught.append(heard[0])
        if len(caught) > 1:
            os._exit(128 + heard[0])
        with suppress(OSError):  # who reads it may have been stopped by the same key
            os.write(2, _HEARD)


@contextmanager
def enduring_output() -> Iterator[None]:
    """Go on where nobody reads stdout or stderr any more, as when Ctrl-C has ended `tee`, too."""
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(_Enduring(sys.stdout)))
        stack.enter_context(redirect_stderr(_Enduring(sys.stderr)))
        yield


class _Enduring:
    """A stream whose broken pipe is replaced by nowhere, so that its flush at the exit works as well."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._going_on():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._going_on():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
