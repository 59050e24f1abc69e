"""Share of a thread's time in which it holds Python's lock: the rest is what further threads can use.

A probe in another thread computes a hash, without the lock, for a random time, and then takes the lock again.
What its clock has gone on by beyond its own processor time, and beyond its time in the scheduler's queue, it
has waited for the lock. While it hashes, the lock is taken to be held as often as at the end.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_BLOCK = bytes(4 * 2**20)
_LEAST = 2**20
"""Bytes of a visit's hash: some 1 to 5 ms. Just after a visit the other thread takes the lock; shorter ones
would find it there more often than not."""
_WAITED = 10e-6
"""Seconds that are a wait: taking a free lock needs a tenth of it."""
_BUSY = 0.1
"""Share of the time in the scheduler's queue from which the machine is too busy to tell."""
_SCHEDULER = Path("/proc/thread-self/schedstat")

Times = tuple[float, float, float]


class ThreadTimes:
    """Times of the thread that makes it.

    Attributes:
        knows_queue: whether the kernel tells the time in the scheduler's queue; without, it is taken for 0.
    """

    def __init__(self) -> None:
        self.knows_queue = _SCHEDULER.exists()
        self._file = os.open(_SCHEDULER if self.knows_queue else os.devnull, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def now(self) -> Times:
        """Seconds by the clock, of the processor, and in the scheduler's queue."""
        queued = int(os.pread(self._file, 100, 0).split()[1]) / 1e9 if self.knows_queue else 0.0
        return time.perf_counter(), time.thread_time(), queued


def since(before: Times, now: Times) -> Times:
    """What has gone by."""
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]


@dataclass
class Visits:
    """Visits of the probe.

    Attributes:
        visits, waits: how many there were, and how many had to wait.
        elsewhere, waiting: seconds without need of the lock, and of waiting for it.
    """

    visits: int = 0
    waits: int = 0
    elsewhere: float = 0.0
    waiting: float = 0.0

    def add(self, wall: float, processor: float, queued: float) -> None:
        """A visit that took so many seconds by the clock, of its processor, and in the scheduler's queue."""
        waited = wall - processor - queued
        self.visits += 1
        if waited > _WAITED:
            self.waits += 1
            self.waiting += waited
        self.elsewhere += wall - max(0.0, waited)

    @property
    def held(self) -> float:
        """Share of the time in which another thread held the lock; 0 … 1."""
        if not self.visits:
            return 0.0
        met = self.waits / self.visits
        return (self.waiting + met * self.elsewhere) / (self.waiting + self.elsewhere)


def lock_share(work: Callable[[], object]) -> float | None:
    """Share of the time of `work`, which runs in this thread, in which it holds Python's lock; 0 … 1.

    None where that cannot be told: other programs kept this thread from running, so that it could not take
    the lock when it wanted it, or the kernel does not say whether they did.
    """
    visits, stop = Visits(), threading.Event()
    probe = threading.Thread(target=_probe, args=(visits, stop), name="lock probe")
    times = ThreadTimes()
    probe.start()
    try:
        before = times.now()
        work()
        wall, _, queued = since(before, times.now())
    finally:
        stop.set()
        probe.join()
    return visits.held if times.knows_queue and queued < _BUSY * wall else None


def _probe(visits: Visits, stop: threading.Event) -> None:
    rng, times = random.Random(0), ThreadTimes()
    while not stop.is_set():
        block = memoryview(_BLOCK)[: rng.randrange(_LEAST, len(_BLOCK))]
        before = times.now()
        hashlib.sha1(block, usedforsecurity=False)
        visits.add(*since(before, times.now()))
