"""A test's own time: seconds that it ran or slept, without those that it waited for a processor.

A limit in seconds of the clock fails on a busy machine, where everything takes many times as long; one in
seconds of the processor never ends a deadlock. Linux counts for each thread how long it ran, and how long
it was ready to run and did not. From the two follows how much of a second was the test's own: all of it
while it sleeps or has a core, a tenth where ten others share the core. A deadlock and an endless loop both
end: on an idle machine after the seconds of the limit, on a busy one after as many more as it is busy.
Limits are those of pytest-timeout (`timeout` in pyproject.toml, `@pytest.mark.timeout`); nothing else in
the tests limits time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout

Counts = dict[int, tuple[int, int]]
"""Thread → nanoseconds that it ran, and that it was ready and waited."""
_TICK = 0.5
_LONGEST_TICK = 5.0
"""Seconds; a longer one means that the machine itself stood still."""
_ASLEEP = 0.05
"""Share of a tick up to which a test counts as asleep: what a loop that looks now and then needs."""
_GRACE = 30.0
"""Own seconds that a test has to end in after it was interrupted."""


def descendants(process: int) -> set[int]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):  # it has ended meanwhile
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, waiting = {process}, {process}
    while waiting:
        waiting = {child for child, parent in parents.items() if parent in waiting} - found
        found |= waiting
    return found


def _counts(processes: Iterable[int]) -> Counts:
    """Of all threads of processes; empty where the system does not count."""
    found: Counts = {}
    for process in processes:
        with suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                with suppress(OSError, ValueError):
                    ran, waited, _ = (thread / "schedstat").read_text().split()
                    found[int(thread.name)] = int(ran), int(waited)
    return found


def own_seconds(passed: float, ran: float, waited: float) -> float:
    """Seconds of those passed that were a test's own, whose threads together ran and waited for so many."""
    passed = min(passed, _LONGEST_TICK)
    busy = ran + waited
    return passed if busy <= _ASLEEP * passed else passed * ran / busy


class OwnTime:
    """The clock of a process and all that it starts; `seconds` has to be asked once a second or so."""

    def __init__(self, process: int) -> None:
        self._process, self._total = process, 0.0
        self._before, self._counts = time.monotonic(), _counts(descendants(process))

    def seconds(self) -> float:
        """Own seconds since the clock was made."""
        now, counts = time.monotonic(), _counts(descendants(self._process))
        nothing = (0, 0)
        ran, waited = (
            sum(counts[thread][i] - self._counts.get(thread, nothing)[i] for thread in counts) / 1e9
            for i in (0, 1)
        )
        self._total += own_seconds(now - self._before, ran, waited)
        self._before, self._counts = now, counts
        return self._total


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
