"""Maps on a cluster: the workers compute strips, this process writes, scores and notes as ever."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tqdm import tqdm

from segmenter.base.errors import ClusterError, DeviceError, RasterError, SegmenterError, plain
from segmenter.base.machine import machine_memory
from segmenter.base.terminal import warn
from segmenter.base.threads import Prefetch
from segmenter.extras.dask.connect import connected
from segmenter.extras.dask.strips import Strip, StripResult, StripWork, cut, strip_pixels
from segmenter.inference.events import Event, Failed, Finished, Mapped
from segmenter.inference.loading import computing_on
from segmenter.inference.memory import SHARE_OF_MACHINE
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import classify_all
from segmenter.inference.reading import Tiling
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.writing import Compute
from segmenter.mapping.tiling import tiling_of_worker
from segmenter.raster.remote.settings import RemotePath

if TYPE_CHECKING:
    from segmenter.extras.dask.pool import Pool
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.runs.ensemble import AnyRun

_AHEAD = 2
"""Windows that wait to be written."""
_SHARE_OF_LIMIT = 0.6
"""Of what a foreign worker may have: Dask ends it at 0.95, and holds what waits there too."""


@dataclass
class Workers:
    """The workers of a call.

    Attributes:
        memory: bytes that each may take; None: their share of this machine's.
    """

    pool: Pool
    count: int
    memory: int | None

    def tiling(
        self, request: MapRequest, run: AnyRun, wanted: ExtraOutputs, jobs: Sequence[MapJob], tiling: Tiling
    ) -> Tiling:
        """What each of them takes of one process's tiling: the same windows, as far as they fit.

        Raises:
            ConfigError: they do not.
        """
        memory = self.memory
        if memory is None:
            memory = int(request.memory or machine_memory() * SHARE_OF_MACHINE) // self.count
        return tiling_of_worker(request, run, wanted, jobs, tiling, memory, self.pool.asked)

    def compute(
        self,
        request: MapRequest,
        run: AnyRun,
        wanted: ExtraOutputs,
        tiling: Tiling,
        precision: tuple[str, ...],
        jobs: Sequence[MapJob],
    ) -> Compute:
        """What takes the place of `classify_all` for these jobs."""
        paths = tuple(path.absolute() for path in request.runs)
        mosaic = jobs[0].mosaic and jobs[0].mosaic.absolute()
        work = StripWork(paths, run.checksum(), wanted, request.tta, precision, tiling, mosaic)
        total = sum(job.part.size.pixels for job in jobs)
        pixels = strip_pixels(total, self.count, wanted.pixel_bytes(len(run.classes)))

        def compute(waiting: Iterable[MapJob]) -> Generator[Event[MapJob], None, None]:
            stop = threading.Event()
            events = Prefetch(
                _events(self.pool, work, cut(waiting, tiling, pixels), stop.is_set), _AHEAD, "cluster"
            )
            try:
                yield from events
            finally:
                stop.set()
                events.close()

        return compute


@contextlib.contextmanager
def workers_of(request: MapRequest) -> Iterator[Workers | None]:
    """The workers that a request asks for, started or found; None where this process computes.

    What is planned inside is planned for their devices.

    Raises:
        ClusterError: they cannot be had.
    """
    if request.cluster is None:
        yield None
        return
    with connected(request.cluster) as pool:
        pool.warn = warn_above_bar
        machines = pool.machines()
        cards = [card for card, _, _ in machines.values()]
        limit = None if pool.local else int(_SHARE_OF_LIMIT * min(each for _, each, _ in machines.values()))
        card = None if None in cards else min(card for card in cards if card is not None)
        with computing_on(card):
            yield Workers(pool, len(machines), limit)


def computing(
    workers: Workers | None,
    request: MapRequest,
    run: AnyRun,
    wanted: ExtraOutputs,
    tiling: Tiling,
    precision: tuple[str, ...],
    jobs: Sequence[MapJob],
) -> Compute:
    """Computes jobs on the workers; or here, with the model that is loaded now."""
    if workers is not None:
        return workers.compute(request, run, wanted, tiling, precision, jobs)
    from segmenter.inference.loading import load_predictor, overlooked_gpus

    predict = load_predictor(run, wanted, request.tta, precision)
    if line := overlooked_gpus():
        warn(line)
    return functools.partial(classify_all, tiling=tiling, predict=predict)


def _events(
    pool: Pool, work: StripWork, pieces: Iterable[tuple[Strip, ...]], stop: Callable[[], bool]
) -> Iterator[Event[MapJob]]:
    """What one process would compute, each job's windows in order."""
    failed: set[int] = set()
    sent = ((strips, tuple(strip.to_send() for strip in strips)) for strips in pieces)
    given: list[tuple[Strip, ...]] = []

    def noted() -> Iterator[tuple[Strip, ...]]:
        for strips, small in sent:
            given.append(strips)
            yield small

    for _, answer in pool.in_order(work, noted(), stop=stop):
        strips = given.pop(0)
        if isinstance(answer.error, (ClusterError, DeviceError)) and not _of_a_raster(answer.error):
            raise answer.error
        for position, strip in enumerate(strips):
            if id(strip.job) in failed or strip.job.abandoned:
                continue
            if answer.value is None:
                assert answer.error is not None
                failed.add(id(strip.job))
                yield Failed(strip.job, RasterError(f"{strip.job.info.path}: {answer.error}"))
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
        said = result.remark.removeprefix(f"{path.absolute()}: ")
        whole = strip.rows is None and strip.column == job.part
        job.remark = f"{path}: {said}" if whole else f"{path}: at least {said}"
    if result.error is not None:
        if result.unseen and not isinstance(path, RemotePath) and path.exists():
            raise ClusterError(
                f"{path}: a worker does not find it; workers read runs and images themselves, under the "
                "caller's paths: mount them there"
            )
        text = str(result.error).replace(str(path.absolute()), str(path))
        yield Failed(job, type(result.error)(text))
    elif strip.last:
        yield Finished(job)


def warn_above_bar(text: str) -> None:
    """Say aside at once what is not as it should be, above a bar that may be there."""
    with tqdm.external_write_mode(file=sys.stderr):
        warn(plain(text))
