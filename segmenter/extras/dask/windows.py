"""Maps on a cluster: workers compute strips; this process writes, scores and records as usual.

A strip is some rows of a job's column, or the whole column; small rasters are sent together. Its windows
equal those of a single process: an exact window belongs to the strip that contains its first kept row, so
none is cut; blended windows are those of the whole raster, and windows on a border are computed for both.
"""

from __future__ import annotations

import contextlib
import io
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import (
    CheckpointError,
    ClusterError,
    ConfigError,
    DeviceError,
    RasterError,
    SegmenterError,
    error_parts,
    extended_error,
)
from segmenter.base.machine import machine_memory
from segmenter.base.terminal import say
from segmenter.base.threads import Prefetch
from segmenter.extras.dask.connect import connect_workers
from segmenter.extras.dask.options import ClusterOptions
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns, Placement
from segmenter.inference.events import Event, Failed, Finished, MappedWindow, Readable
from segmenter.inference.loading import computing_on
from segmenter.inference.memory import SHARE_OF_MACHINE, ComputingChoice, plan_tiling, share_of
from segmenter.inference.predictor import ExtraOutputs, Prediction, Predictor, classify_all
from segmenter.inference.reading import Tiling
from segmenter.mapping.call import Compute, needs_of
from segmenter.mapping.folder.partial import read_windows, write_window
from segmenter.mapping.folder.state import warn_above_bar
from segmenter.mapping.jobs import MapJob
from segmenter.raster.mosaic import Mosaic

if TYPE_CHECKING:
    from segmenter.extras.dask.pool import Pool
    from segmenter.mapping.call import Call
    from segmenter.runs.ensemble import AnyRun

PIXELS = 1 << 24
"""Pixels that are sent out at once: seconds on a GPU, half a minute on a core; 16 MB of class ids."""
_LEAST_PIXELS = 1 << 20
"""Not smaller, for however many workers: each takes some milliseconds to be dealt."""
_EACH = 8
"""Pieces of work for each worker, so that all end at about the same time."""
_RESULT_BYTES = 1 << 26
"""Bytes that come back at once, before compression; but a band of windows is never cut."""
_BLENDED_BANDS = 8
"""Least bands of blended windows in a strip: one more is computed, and computed for the next strip too."""
_COMPRESSION = 1
"""zlib's fastest: class ids take a twentieth of their bytes on the way."""


@dataclass(frozen=True, eq=False)
class JobStrip:
    """Part of a job.

    Attributes:
        column: column of the job, or its rest; None: nothing is left, the raster is only checked.
        rows: first row and row after the last, in the raster's coordinates; None: the whole column.
        last: True if it is the job's last strip.
    """

    job: MapJob
    column: Window | None
    rows: tuple[int, int] | None = None
    last: bool = False

    @property
    def part(self) -> Window:
        """Window of the strip; exact windows may reach below it."""
        column = self.column or Window(self.job.part.row, self.job.part.col, 0, 0)
        if self.rows is None:
            return column
        return Window(self.rows[0], column.col, self.rows[1] - self.rows[0], column.width)

    def to_send(self) -> JobStrip:
        """Return the strip with the job's parts that a worker needs, without the mosaic, which it has."""
        info = replace(self.job.info, path=self.job.info.path.absolute())
        job = replace(self.job, info=info, mosaic=None, label=None, label_classes=None, beside=())
        return replace(self, job=job)


@dataclass(frozen=True)
class StripResult:
    """Result of a strip.

    Attributes:
        windows: windows in the format of a partial map, compressed.
        unseen: True if the worker does not find the raster.
    """

    windows: bytes
    remark: str | None = None
    error: SegmenterError | None = None
    unseen: bool = False

    def __iter__(self) -> Iterator[tuple[Window, Prediction]]:
        """Yield the windows in order."""
        content = zlib.decompress(self.windows)
        for window, arrays in read_windows(io.BytesIO(content), len(content)):
            yield window, Prediction(**arrays)


# ------------------------------------------------------------------------------------- how it is cut


def strip_pixels(pixels: int, workers: int, out_bytes: int) -> int:
    """Return the number of pixels to send at once.

    Args:
        out_bytes: bytes of a pixel's result.
    """
    share = max(_LEAST_PIXELS, pixels // (_EACH * max(1, workers)))
    return min(PIXELS, share, max(1, _RESULT_BYTES // out_bytes))


def cut(jobs: Iterable[MapJob], tiling: Tiling, pixels: int) -> Iterator[tuple[JobStrip, ...]]:
    """Yield jobs as strips, in order: several small columns at once, or one strip of a large column."""
    together: list[JobStrip] = []
    for job in jobs:
        for strip in _strips(job, tiling, pixels):
            if strip.rows is None:
                together.append(strip)
                if sum(each.part.size.pixels for each in together) < pixels:
                    continue
            elif together:
                yield tuple(together)
                together = [strip]
            else:
                together = [strip]
            yield tuple(together)
            together = []
    if together:
        yield tuple(together)


def _strips(job: MapJob, tiling: Tiling, pixels: int) -> Iterator[JobStrip]:
    """Yield the strips of one job; none once it is abandoned."""
    columns = list(job.columns.remaining(job.done_rows))
    if not columns:
        yield JobStrip(job, None, last=True)
    for column in columns:
        end = column == columns[-1]
        height = _rows(column, tiling, pixels)
        if height >= column.height:
            yield JobStrip(job, column, last=end)
            continue
        for row in range(column.row, column.row_stop, height):
            if job.abandoned:
                return
            stop = min(row + height, column.row_stop)
            yield JobStrip(job, column, (row, stop), last=end and stop == column.row_stop)


def _rows(column: Window, tiling: Tiling, pixels: int) -> int:
    """Return the rows of a strip: about `pixels`, as a whole number of rows of windows."""
    band = tiling.band_rows
    bands = max(1, round(pixels / (band * max(1, column.width))))
    return band * (bands if tiling.blend is None else max(bands, _BLENDED_BANDS))


# ------------------------------------------------------------------------------------- on a worker


@dataclass(eq=False)
class StripWork:
    """Computation of strips; sent to each worker once, which loads the model at the first strip.

    Attributes:
        model: checksum of the runs.
    """

    runs: tuple[Path, ...]
    model: str
    wanted: ExtraOutputs
    tta: str
    precision: tuple[str, ...]
    tiling: Tiling
    mosaic: Mosaic | None = None
    _predictor: Predictor | None = None

    def __call__(self, strips: tuple[JobStrip, ...]) -> list[StripResult]:
        """Return the results of the strips, in order."""
        predictor = self._predictor = self._predictor or self._load()
        jobs = [_StripJob(replace(strip.job, mosaic=self.mosaic), strip, self.tiling) for strip in strips]
        results = [_Result() for _ in jobs]
        of = {id(job): result for job, result in zip(jobs, results, strict=True)}
        # Strips with rows come alone: the windows of others are theirs to the end.
        rows = strips[0].rows if len(strips) == 1 else None
        tiling = self.tiling if rows is None or self.tiling.blend else _rows_of(self.tiling, rows)
        for event in classify_all(jobs, tiling, predictor):
            of[id(event.job)].take(event)
        return [result.finish(job) for job, result in zip(jobs, results, strict=True)]

    def _load(self) -> Predictor:
        from segmenter.extras.dask.pool import take_share
        from segmenter.inference.loading import load_predictor
        from segmenter.mapping.session import quiet_libraries
        from segmenter.raster import quiet_libtiff
        from segmenter.runs.ensemble import join_runs, without_calibration
        from segmenter.runs.run import load_run

        take_share(_threads())
        quiet_libraries()
        quiet_libtiff()
        try:
            run = join_runs([load_run(path) for path in self.runs])
            run = run if _is_model(run, self.model) else without_calibration(run)  # --no-calibration
            if run.checksum() != self.model:
                raise ClusterError(self.runs[0], "holds another model here than where the call was made")
            return load_predictor(run, self.wanted, self.tta, self.precision)
        except ClusterError:
            raise
        except SegmenterError as error:
            raise extended_error(
                error,
                remedy="workers read runs and images themselves, under the caller's paths",
                kind=ClusterError,
            ) from None


def _is_model(run: AnyRun, model: str) -> bool:
    """Return whether a run has this checksum with its calibration, which may be of other weights."""
    with contextlib.suppress(CheckpointError):
        return run.checksum() == model
    return False


def _threads() -> int:
    from distributed import get_worker

    return int(get_worker().state.nthreads)


@dataclass(eq=False)
class _StripJob:
    """Strip as an `events.Job`."""

    job: MapJob
    strip: JobStrip
    tiling: Tiling
    done_rows: int = 0
    abandoned: bool = False

    @property
    def part(self) -> Window:
        whole = self.tiling.blend is None and self.strip.column is not None
        return self.strip.column if whole and self.strip.column else self.strip.part

    @property
    def columns(self) -> Columns:
        return Columns(self.part, max(1, self.part.width))

    def open(self) -> contextlib.AbstractContextManager[Readable]:
        return self.job.open()


@dataclass(frozen=True)
class _Rows(Tiling):
    """Tiling restricted to windows whose kept part begins in some rows."""

    rows: tuple[int, int] = (0, 0)

    def placements(self, extent: Window, part: Window) -> Iterator[Placement]:
        for place in super().placements(extent, part):
            if self.rows[0] <= place.keep.row < self.rows[1]:
                yield place


def _rows_of(tiling: Tiling, rows: tuple[int, int]) -> _Rows:
    return _Rows(**{**vars(tiling), "rows": rows})


class _Result:
    """Windows of one strip, compressed as they come."""

    def __init__(self) -> None:
        self._compress, self._parts = zlib.compressobj(_COMPRESSION), list[bytes]()
        self._error: SegmenterError | None = None

    def take(self, event: Any) -> None:
        if isinstance(event, MappedWindow):
            arrays = {name: array for name, array in vars(event.prediction).items() if array is not None}
            file = io.BytesIO()
            write_window(file, event.window, arrays)
            self._parts.append(self._compress.compress(file.getbuffer()))
        elif isinstance(event, Failed):
            self._error = event.error
        else:
            assert isinstance(event, Finished)

    def finish(self, job: _StripJob) -> StripResult:
        windows = b"".join((*self._parts, self._compress.flush()))
        unseen = self._error is not None and not _is_there(job.job.info.path)
        return StripResult(windows, job.job.remark, self._error, unseen)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


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
        with connect_workers(self._options) as pool:
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
        request, run, wanted = call.request, call.run, call.extra_outputs(jobs)
        paths = tuple(path.absolute() for path in request.runs)
        mosaic = jobs[0].mosaic and jobs[0].mosaic.absolute()
        work = StripWork(paths, call.model, wanted, request.tta, call.precision, tiling, mosaic)
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
    small, _ = plan_tiling(sizes, needs, ComputingChoice("exact", memory=memory, batch=request.batch))
    say(
        f"{asked}: windows of {small.window} pixels, one process takes {tiling.window}; --memory gives "
        "more room"
    )
    return small


def _events(
    pool: Pool, work: StripWork, pieces: Iterable[tuple[JobStrip, ...]], stop: Callable[[], bool]
) -> Iterator[Event[MapJob]]:
    """Yield the same events as one process, each job's windows in order."""
    failed: set[int] = set()
    sent = ((strips, tuple(strip.to_send() for strip in strips)) for strips in pieces)
    sent_strips: list[tuple[JobStrip, ...]] = []

    def record_strips() -> Iterator[tuple[JobStrip, ...]]:
        for strips, small in sent:
            sent_strips.append(strips)
            yield small

    for _, answer in pool.in_order(work, record_strips(), stop=stop):
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


def _of_strip(strip: JobStrip, result: StripResult) -> Iterator[Event[MapJob]]:
    job, path = strip.job, strip.job.info.path
    for window, prediction in result:
        yield MappedWindow(job, window, prediction)
    if result.remark is not None and job.remark is None:
        remark = result.remark.removeprefix(f"{path.absolute()}: ")
        job.remark = f"{path}: {remark}"
    if result.error is not None:
        if result.unseen and path.exists():
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
