"""Ending long work on purpose: signals that are heard at once, and output that nobody reads any more."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

from segmenter.terminal import escaped

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
    """Go on where stdout or stderr is closed, full, or read by nobody any more, as after `| head`.

    What is printed there is lost, and nothing else. Characters that a terminal would obey are printed
    escaped, and so is what the terminal's encoding does not have.
    """
    _open_standard_files()
    out, err = _Enduring(sys.stdout, 1), _Enduring(sys.stderr, 2)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()  # what is kept until the exit would fail there
            err.flush()


def _open_standard_files() -> None:
    """Open the numbers 0 to 2 where they are closed (`2>&-`): the next file would get them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest that is free


class _Enduring:
    """A stream that is replaced by nowhere once it fails, so that its flush at the exit works as well."""

    def __init__(self, stream: Any, number: int) -> None:
        self._stream = open(number, "w", closefd=False) if stream is None else stream  # noqa: SIM115
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        with self._going_on():
            self._stream.write(escaped(text))
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
        except OSError:  # nobody reads it, or the disk below it is full
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
