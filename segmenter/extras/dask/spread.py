"""`threads.in_threads` over the workers of a cluster: the same interface and results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

from segmenter.base.bars import Bar
from segmenter.base.errors import ClusterError, SegmenterError, plain
from segmenter.base.threads import Spread, in_threads
from segmenter.extras.dask.connect import connect_workers
from segmenter.extras.dask.options import ClusterOptions

if TYPE_CHECKING:
    from segmenter.extras.dask.pool import ItemResult, Pool

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_ONCE, _EACH = 256, 16
"""Items that are dealt together, at most, and in how many lots for each place: dealing takes milliseconds."""


@contextlib.contextmanager
def spread_over(options: ClusterOptions | None, root: Path) -> Iterator[Spread]:
    """Yield a function that runs work on many items: in threads here, or on a cluster's workers.

    Args:
        root: folder that the workers must be able to read.

    Raises:
        ClusterError: the workers are not available.
    """
    if options is None:
        yield in_threads
        return
    with connect_workers(options) as pool:
        pool.warn = lambda text: tqdm.write(f"warning: {plain(text)}")
        yield on_workers(pool, root)


def on_workers(pool: Pool, root: Path) -> Spread:
    """Return what works as `in_threads` does; `work` is sent with a copy of all that it holds."""
    places, root = sum(threads for *_, threads in pool.machines().values()), root.absolute()

    def spread(
        work: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        description: str,
        unit: str,
        workers: int | None = None,
        progress: bool = True,
        at_end: Callable[[], None] = lambda: None,
    ) -> Iterator[Result]:
        at_once = max(1, min(_AT_ONCE, len(items) // (_EACH * max(1, places))))
        lots = [items[first : first + at_once] for first in range(0, len(items), at_once)]
        with (
            Bar(total=len(items), desc=description, unit=unit, shown=progress and bool(items)) as bar,
            contextlib.closing(pool.in_order(_lot(work, root), lots, alone=False)) as results,
        ):
            try:
                for _, answers in results:
                    for answer in [answers] if answers.error is not None else answers.value:
                        if answer.error is not None:
                            raise answer.error
                        bar.update()
                        yield answer.value
            finally:
                at_end()

    return spread


def _lot(work: Callable[[Item], Result], root: Path) -> Callable[[Sequence[Item]], list[ItemResult]]:
    def each(items: Sequence[Item]) -> list[ItemResult]:
        """Return the answers of the items, up to the first error."""
        if not root.is_dir():
            raise ClusterError(
                root, "is not there; workers read files themselves, under the caller's paths: mount it"
            )
        from segmenter.extras.dask.pool import ItemResult

        answers: list[ItemResult] = []
        for item in items:
            try:
                answers.append(ItemResult(work(item)))
            except SegmenterError as error:
                return [*answers, ItemResult(error=error)]
        return answers

    return each
