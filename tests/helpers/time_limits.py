"""Limits of time for tests, by a clock of their own (`fuzz.own_time`).

A limit in seconds of the clock fails on a busy machine, one in seconds of the processor never ends a
deadlock. Limits are those of pytest-timeout (`timeout` in pyproject.toml, `@pytest.mark.timeout`); nothing
else in the tests limits time.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import pytest_timeout

from fuzz.own_time import OwnTime, descendants

_TICK = 0.5
_GRACE = 30.0
"""Own seconds that a test has to end in after it was interrupted."""


def wait_until(happened: Callable[[], Any], limit: float = 60) -> bool:
    """Wait until something happens; False where it has not within so many own seconds."""
    clock = OwnTime(os.getpid())
    while clock.seconds() <= limit:
        for _ in range(50):
            if happened():
                return True
            time.sleep(0.01)
    return bool(happened())


class _Watch:
    """Ends a test whose own time is over: interrupted first; where that does not help, with its process.

    A signal is seen when the main thread is back in Python, so that only the process's end helps against a
    collective that hangs; pytest-xdist then names the test and goes on with another process.
    """

    def __init__(self, item: pytest.Item, settings: Any) -> None:
        self._item, self._settings = item, settings
        self._there, self._ended = descendants(os.getpid()), threading.Event()
        self._interrupts = threading.current_thread() is threading.main_thread()
        if (
            self._interrupts
        ):  # stays: a signal that comes when the test has just ended must not end the process
            signal.signal(signal.SIGALRM, self._interrupt)
        threading.Thread(target=self._run, name="own time", daemon=True).start()

    def cancel(self) -> None:
        self._ended.set()

    def _interrupt(self, *_: Any) -> None:
        __tracebackhide__ = True
        if not self._ended.is_set():
            pytest_timeout.timeout_sigalrm(self._item, self._settings)

    def _over(self, limit: float) -> bool:
        """Whether a limit has passed, rather than that the test has ended."""
        clock = OwnTime(os.getpid())
        while not self._ended.wait(min(_TICK, limit)):
            if clock.seconds() > limit:
                return True
        return False

    def _run(self) -> None:
        if not self._over(self._settings.timeout) or self._is_debugged():
            return
        if self._interrupts:  # before its processes end: it must not go on as if they had done their work
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        for process in descendants(os.getpid()) - self._there:
            with suppress(OSError):  # it has ended meanwhile
                os.kill(process, signal.SIGKILL)
        if self._interrupts and not self._over(_GRACE):
            return
        pytest_timeout.timeout_timer(self._item, self._settings)

    def _is_debugged(self) -> bool:
        return not self._settings.disable_debugger_detection and pytest_timeout.is_debugging()


_WATCH = pytest.StashKey[_Watch]()


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Take the place of pytest-timeout's clock."""
    item.stash[_WATCH] = _Watch(item, settings)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    watch = item.stash.get(_WATCH, None)
    if watch is not None:
        watch.cancel()
    return True
