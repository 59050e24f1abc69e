"""Maps on a cluster: workers compute strips; this process writes, scores and records as usual."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from segmenter.base.errors import (
    ClusterError,
    ConfigError,
    DeviceError,
    RasterError,
    SegmenterError,
    error_parts,
)
from segmenter.base.machine import machine_memory
from segmenter.base.terminal import say
from segmenter.base.threads import Prefetch
from segmenter.extras.dask.connect import connected
from segmenter.extras.dask.options import ClusterOptions
from segmenter.extras.dask.strips import Strip, StripResult, StripWork, cut, strip_pixels
from segmenter.inference.events import Event, Failed, Finished, Mapped
from segmenter.inference.loading import computing_on
from segmenter.inference.memory import SHARE_OF_MACHINE, Choice, plan_tiling, share_of
from segmenter.inference.reading import Tiling
from segmenter.mapping.computing import Compute, needs_of
from segmenter.mapping.folder.state import warn_above_bar
from segmenter.mapping.jobs import MapJob
from segmenter.raster.remote.settings import RemotePath

if TYPE_CHECKING:
    from segmenter.extras.dask.pool import Pool
    from segmenter.mapping.call import Call

_AHEAD = 2
"""Windows that wait to be written."""
_SHARE_OF_LIMIT = 0.6
"""Usable share of a foreign worker's memory: Dask kills it at 0.95, and stores waiting results there too."""


class ClusterWindows:
    """Computing by the workers of a cluster, which are started or connected when needed."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._pool: Pool
        self._count = 0
        self._memory: int | None = None
        """Bytes that each worker may take; None: its share of this machine's."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Connect the workers in a block; planning inside it counts their devices.

        Raises:
            ClusterError: the workers are not available.
        """
        with connected(self._options) as pool:
            pool.warn = warn_above_bar
            machines = pool.machines()
            cards = [card for card, _, _ in machines.values()]
            least = min(memory for _, memory, _ in machines.values())
            self._pool, self._count = pool, len(machines)
            self._memory = None if pool.local else int(_SHARE_OF_LIMIT * least)
            with computing_on(None if None in cards else min(card for card in cards if card is not None)):
                yield

    def tiling(self, call: Call, jobs: Sequence[MapJob], tiling: Tiling) -> Tiling:
        """Return the tiling for each worker from that of one process: the same windows, if they fit.

        Raises:
            ConfigError: the windows do not fit.
        """
        memory = self._memory
        if memory is None:
            memory = int(call.request.memory or machine_memory() * SHARE_OF_MACHINE) // self._count
        return tiling_of_worker(call, jobs, tiling, memory, self._pool.asked)

    def compute(self, call: Call, jobs: Sequence[MapJob], tiling: Tiling) -> Compute:
        """Return the function that replaces `classify_all` for these jobs."""
        request, run, wanted = call.request, call.run, call.wanted(jobs)
        paths = tuple(path.absolute() for path in request.runs)
        mosaic = jobs[0].mosaic and jobs[0].mosaic.absolute()
        work = StripWork(paths, run.checksum(), wanted, request.tta, call.precision, tiling, mosaic)
        total = sum(job.part.size.pixels for job in jobs)
        pixels = strip_pixels(total, self._count, wanted.pixel_bytes(len(run.classes)))

        def compute(waiting: Iterable[MapJob]) -> Generator[Event[MapJob], None, None]:
            stop = threading.Event()
            events = Prefetch(
                _events(self._pool, work, cut(waiting, tiling, pixels), stop.is_set), _AHEAD, "cluster"
            )
            try:
                yield from events
            finally:
                stop.set()
                events.close()

        return compute


def tiling_of_worker(call: Call, jobs: Sequence[MapJob], tiling: Tiling, memory: int, asked: str) -> Tiling:
    """Return the tiling for each of several processes: one process's windows, if they fit its memory.

    Otherwise smaller windows, with a message; not for blended windows, whose size changes the result.

    Args:
        memory: bytes of each process.
        asked: option that named the processes.

    Raises:
        ConfigError: blended windows do not fit.
    """
    request = call.request
    sizes, needs = needs_of(call, jobs, gpus=1)
    same, least = share_of(tiling, sizes, needs, memory, request.batch)
    if least <= memory or request.window_size is not None:
        return same
    if tiling.blend is not None:
        raise ConfigError(
            asked,
            expected=f"{least / 1e9:.1f}GB for each, which windows of {tiling.window} pixels take",
            got=f"{memory / 1e9:.1f}GB",
            remedy="take fewer workers, or choose --window-size",
        )
    small, _ = plan_tiling(sizes, needs, Choice("exact", memory=memory, batch=request.batch))
    say(
        f"{asked}: windows of {small.window} pixels, one process takes {tiling.window}; --memory gives "
        "more room"
    )
    return small


def _events(
    pool: Pool, work: StripWork, pieces: Iterable[tuple[Strip, ...]], stop: Callable[[], bool]
) -> Iterator[Event[MapJob]]:
    """Yield the same events as one process, each job's windows in order."""
    failed: set[int] = set()
    sent = ((strips, tuple(strip.to_send() for strip in strips)) for strips in pieces)
    sent_strips: list[tuple[Strip, ...]] = []

    def noted() -> Iterator[tuple[Strip, ...]]:
        for strips, small in sent:
            sent_strips.append(strips)
            yield small

    for _, answer in pool.in_order(work, noted(), stop=stop):
        strips = sent_strips.pop(0)
        if isinstance(answer.error, (ClusterError, DeviceError)) and not _of_a_raster(answer.error):
            raise answer.error
        for position, strip in enumerate(strips):
            if id(strip.job) in failed or strip.job.abandoned:
                continue
            if answer.value is None:
                assert answer.error is not None
                failed.add(id(strip.job))
                yield Failed(strip.job, RasterError(strip.job.info.path, answer.error))
                continue
            for event in _of_strip(strip, answer.value[position]):
                if isinstance(event, Failed):
                    failed.add(id(strip.job))
                yield event


def _of_a_raster(error: SegmenterError) -> bool:
    from segmenter.extras.dask.pool import PieceKilledError

    return isinstance(error, PieceKilledError)


def _of_strip(strip: Strip, result: StripResult) -> Iterator[Event[MapJob]]:
    job, path = strip.job, strip.job.info.path
    for window, prediction in result:
        yield Mapped(job, window, prediction)
    if result.remark is not None and job.remark is None:
        remark = result.remark.removeprefix(f"{path.absolute()}: ")
        whole = strip.rows is None and strip.column == job.part
        job.remark = f"{path}: {remark}" if whole else f"{path}: at least {remark}"
    if result.error is not None:
        if result.unseen and not isinstance(path, RemotePath) and path.exists():
            raise ClusterError(
                path,
                "a worker does not find it",
                remedy="workers read runs and images themselves, under the caller's paths: mount them there",
            )
        parts = error_parts(result.error).items()
        named = {name: part.replace(str(path.absolute()), str(path)) for name, part in parts}
        yield Failed(job, type(result.error)(**named))
    elif strip.last:
        yield Finished(job)
