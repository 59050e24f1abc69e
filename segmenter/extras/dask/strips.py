"""Strips of rasters computed by a cluster's workers: division of rasters, and results.

A strip is some rows of a job's column, or the whole column; small rasters are sent together. Its windows
equal those of a single process: an exact window belongs to the strip that contains its first kept row, so
none is cut; blended windows are those of the whole raster, and windows on a border are computed for both
strips.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segmenter.base.errors import ClusterError, SegmenterError, extended_error
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns, Placement
from segmenter.inference.events import Failed, Finished, Mapped, Readable
from segmenter.inference.prediction import ExtraOutputs, Prediction, Predictor
from segmenter.inference.predictor import classify_all
from segmenter.inference.reading import Tiling
from segmenter.mapping.folder.partial import read_windows, write_window
from segmenter.mapping.jobs import MapJob
from segmenter.raster.mosaic import Mosaic

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
class Strip:
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

    def to_send(self) -> Strip:
        """Return the strip with the job's parts that a worker needs, without the mosaic, which it has."""
        info = replace(self.job.info, path=self.job.info.path.absolute())
        job = replace(self.job, info=info, mosaic=None, label=None, label_classes=None, beside=())
        return replace(self, job=job)


@dataclass(frozen=True)
class StripResult:
    """Result of a strip.

    Attributes:
        windows: windows in the format of a partial map, compressed.
        remark: warning about the raster.
        error: error that ended the strip early.
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


def cut(jobs: Iterable[MapJob], tiling: Tiling, pixels: int) -> Iterator[tuple[Strip, ...]]:
    """Yield jobs as strips, in order: several small columns at once, or one strip of a large column."""
    together: list[Strip] = []
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


def _strips(job: MapJob, tiling: Tiling, pixels: int) -> Iterator[Strip]:
    """Yield the strips of one job; none once it is abandoned."""
    columns = list(job.columns.left(job.done_rows))
    if not columns:
        yield Strip(job, None, last=True)
    for column in columns:
        end = column == columns[-1]
        height = _rows(column, tiling, pixels)
        if height >= column.height:
            yield Strip(job, column, last=end)
            continue
        for row in range(column.row, column.row_stop, height):
            if job.abandoned:
                return
            stop = min(row + height, column.row_stop)
            yield Strip(job, column, (row, stop), last=end and stop == column.row_stop)


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
        runs: run directories, by paths on the workers.
        model: checksum of the runs.
        mosaic: mosaic that the windows extend into.
    """

    runs: tuple[Path, ...]
    model: str
    wanted: ExtraOutputs
    tta: str
    precision: tuple[str, ...]
    tiling: Tiling
    mosaic: Mosaic | None = None
    _predictor: Predictor | None = None

    def __call__(self, strips: tuple[Strip, ...]) -> list[StripResult]:
        """Return the results of the strips, in order."""
        predictor = self._predictor = self._predictor or self._loaded()
        jobs = [_StripJob(replace(strip.job, mosaic=self.mosaic), strip, self.tiling) for strip in strips]
        results = [_Result() for _ in jobs]
        of = {id(job): result for job, result in zip(jobs, results, strict=True)}
        # Strips with rows come alone: the windows of others are theirs to the end.
        rows = strips[0].rows if len(strips) == 1 else None
        tiling = self.tiling if rows is None or self.tiling.blend else _rows_of(self.tiling, rows)
        for event in classify_all(jobs, tiling, predictor):
            of[id(event.job)].take(event)
        return [result.given(job) for job, result in zip(jobs, results, strict=True)]

    def _loaded(self) -> Predictor:
        from segmenter.extras.dask.remote import take_share
        from segmenter.inference.loading import load_predictor
        from segmenter.mapping.session import quiet_libraries
        from segmenter.raster import quiet_libtiff
        from segmenter.runs.ensemble import joined, uncalibrated
        from segmenter.runs.run import load_run

        take_share(_threads())
        quiet_libraries()
        quiet_libtiff()
        try:
            run = joined([load_run(path) for path in self.runs])
            run = run if run.checksum() == self.model else uncalibrated(run)  # --no-calibration
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


def _threads() -> int:
    from distributed import get_worker

    return int(get_worker().state.nthreads)


@dataclass(eq=False)
class _StripJob:
    """Strip as a `predictor.Job`."""

    job: MapJob
    strip: Strip
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
        if isinstance(event, Mapped):
            arrays = {name: array for name, array in vars(event.prediction).items() if array is not None}
            file = io.BytesIO()
            write_window(file, event.window, arrays)
            self._parts.append(self._compress.compress(file.getbuffer()))
        elif isinstance(event, Failed):
            self._error = event.error
        else:
            assert isinstance(event, Finished)

    def given(self, job: _StripJob) -> StripResult:
        windows = b"".join((*self._parts, self._compress.flush()))
        unseen = self._error is not None and not _is_there(job.job.info.path)
        return StripResult(windows, job.job.remark, self._error, unseen)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
