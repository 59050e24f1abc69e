"""Several threads that read one raster, each from a handle of its own.

One thread reads some 50 to 140 megapixels a second, which several GPUs may outrun (docs/prediction.md). A
handle reads the same columns in each row of windows, and finds in GDAL's cache what the row above has read.
GDAL's own threads (its open option NUM_THREADS) are no way: GDAL 3.10 then passes over corrupt blocks without
an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from segmenter.grid.windows import Placement
from segmenter.inference.events import Job, Readable

T = TypeVar("T")


def read_apart(
    job: Job,
    raster: Readable,
    runs: Iterable[Sequence[Placement]],
    readers: int,
    read: Callable[[Readable, Sequence[Placement]], Iterable[T]],
) -> Iterator[list[T]]:
    """What is read of each run, in order; as many runs as there are readers are under way.

    Args:
        raster: the job's, for the first reader; those for the others are opened here, and closed.
        runs: windows side by side, row by row.
        read: what is called with a handle and a run.
    """
    handles: dict[int, Readable] = {0: raster}
    under_way: deque[Future[list[T]]] = deque()
    with ExitStack() as opened, ExitStack() as threads:  # these end first
        pools = [threads.enter_context(ThreadPoolExecutor(1, "raster reader")) for _ in range(readers)]

        def read_run(number: int, run: Sequence[Placement]) -> list[T]:
            if number not in handles:
                handles[number] = opened.enter_context(job.open())
            return list(read(handles[number], run))

        try:
            for number, run in _numbered(runs):
                if job.abandoned:
                    return
                if len(under_way) == readers:
                    yield under_way.popleft().result()
                turn = number % readers
                under_way.append(pools[turn].submit(read_run, turn, run))
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()


def _numbered(runs: Iterable[Sequence[Placement]]) -> Iterator[tuple[int, Sequence[Placement]]]:
    """Each run with its number in its row."""
    row, number = None, 0
    for run in runs:
        number = number + 1 if run[0].read.row == row else 0
        row = run[0].read.row
        yield number, run
