"""Clock of a program's own time: seconds that it ran or slept, not those that it waited for a processor.

Linux counts for each thread how long it ran, and how long it was ready to run and did not. From the two
follows how much of a second was the program's own: all of it while it sleeps or has a core, a tenth where
ten others share the core. By this clock a deadlock and an endless loop both end: on an idle machine after
the seconds of a limit, on a busy one after as many more as it is busy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

Counts = dict[int, tuple[int, int]]
"""Thread → nanoseconds that it ran, and that it was ready and waited."""
_LONGEST_TICK = 5.0
"""Seconds; a longer one means that the machine itself stood still."""
_ASLEEP = 0.05
"""Share of a tick up to which a program counts as asleep: what a loop that looks now and then needs."""


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
    """Seconds of those passed that were a program's own; its threads together ran and waited for so many."""
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
