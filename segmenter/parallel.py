"""Work on many files in threads (GDAL and NumPy release Python's lock), with a bar, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_WORKERS = 16
"""More threads than that wait for the disk; each holds a band of rows in memory."""
_AHEAD = 4
"""Results that may wait for an earlier one, per worker: what bounds the memory."""


def in_threads(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    description: str,
    unit: str,
    workers: int | None = None,
    progress: bool = True,
    note: Callable[[Result], str] | None = None,
) -> Iterator[Result]:
    """`work` of each item, in the order of the items; the first error ends it and is raised here.

    Args:
        description, unit: for the bar on stderr.
        workers: threads; None: one per processor, at most 16.
        note: what the bar says after a result.
    """
    count = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
    waiting: deque[Future[Result]] = deque()
    queue = iter(items)
    with (
        tqdm(total=len(items), desc=description, unit=unit, disable=not progress or not items) as bar,
        ThreadPoolExecutor(count) as pool,
    ):
        try:
            for _ in items:
                while len(waiting) < count * _AHEAD and (item := next(queue, None)) is not None:
                    waiting.append(pool.submit(work, item))
                result = waiting.popleft().result()
                bar.update()
                if note is not None:
                    bar.set_postfix_str(note(result), refresh=False)
                yield result
        finally:
            for future in waiting:
                future.cancel()
