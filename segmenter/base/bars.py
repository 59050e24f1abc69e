"""Progress of long work: a bar with the time left on a terminal, else a line each minute."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from segmenter.base.terminal import collecting, no_bar, say

EVERY = 60.0
"""Seconds between two lines."""


class Bar(tqdm):  # type: ignore[type-arg]
    """Bar of tqdm on stderr; where that is no terminal, a line each minute on stderr.

    Args:
        shown: False: neither bar nor lines.
        lines: False: no lines, because the caller prints better ones.
    """

    def __init__(
        self, items: Iterable[Any] = (), *, shown: bool = True, lines: bool = True, **more: Any
    ) -> None:
        super().__init__(items, disable=no_bar(None if shown else True), **more)
        self._lines = shown and lines and self.disable and not collecting()
        self._what = more.get("desc") or more.get("unit", "work")
        self._first, self._done = int(more.get("initial", 0)), 0
        self._begun = self._said = time.monotonic()

    def __iter__(self) -> Iterator[Any]:
        """Yield the items, and count each once it is done."""
        with self:
            for item in self.iterable:
                yield item
                self.update()

    def update(self, n: float | None = 1) -> bool | None:
        """Count work that is done."""
        if self._lines:
            self._done += int(n or 0)
            now = time.monotonic()
            if now - self._said >= EVERY:
                self._said = now
                say(self._line(now - self._begun), aside=True)
        return super().update(n)

    def _line(self, seconds: float) -> str:
        if not self.total or not self._done:
            return f"{self._what}: {clock(seconds)} so far"
        done = self._first + self._done
        left = seconds / self._done * max(0, self.total - done)
        return f"{self._what}: {done / self.total:.0%}, {time_left(left)}"


def time_left(seconds: float) -> str:
    """Return the time left and the hour of the end, such as `21 min left (17:42)`."""
    end = time.localtime(time.time() + seconds)
    days = "" if seconds < 86400 - 3600 else time.strftime("%d %b ", end)
    return f"{clock(seconds)} left ({days}{time.strftime('%H:%M', end)})"


def clock(seconds: float) -> str:
    """Return a duration as text, such as 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    hours = f"{minutes // 60} h " if minutes >= 60 else ""
    return f"{hours}{minutes % 60} min"
