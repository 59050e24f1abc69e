"""Maps of many rasters: each written whole or not at all, continued if interrupted, and scored."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import ChangedInputError, ClusterError, DeviceError, SegmenterError
from segmenter.base.files import may_be_full
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.inference.events import Event, Failed, MappedWindow
from segmenter.inference.prediction import Prediction
from segmenter.inference.reading import Tiling
from segmenter.inference.regridding import Regridder
from segmenter.mapping.call import Compute
from segmenter.mapping.folder.state import FolderState
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outcome import Outcome, Scorer
from segmenter.mapping.outputs.finished import MapFiles
from segmenter.mapping.style import MapStyle
from segmenter.raster.resampled import GridColumns, ValidRows

if TYPE_CHECKING:
    from segmenter.mapping.call import Call

_COMPLETED_AT_ONCE = 4


class OwnPixels:
    """Windows of one job in raster pixels, regridded if the job has a grid.

    The mask of raster pixels with data is read from the raster a second time, unless its header shows that
    all have data: only for the part being written, column by column.
    """

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self._raster = None if job.grid is None else job.request.open(job.info.path)
        self._regridder: Regridder | None = None
        if isinstance(columns := job.columns, GridColumns):
            valid = ValidRows(self._raster).of
            self._regridder = Regridder(columns, style.wanted, len(style.classes), valid)

    def of(self, window: Window, prediction: Prediction) -> Iterator[tuple[Window, Prediction]]:
        """Yield the rows that are complete with the next window."""
        if self._regridder is None:
            yield window, prediction
        else:
            yield from self._regridder.take(window, prediction)

    def close(self) -> None:
        """Close the raster."""
        if self._raster is not None:
            self._raster.close()


class _Output:
    def __init__(self, call: Call, job: MapJob, folder_state: FolderState) -> None:
        self.job, self._folder_state = job, folder_state
        self._files = MapFiles(job, call.style)
        begun = [finisher.companion(call, job) for finisher in call.finishers]
        self._companions = [each for each in begun if each is not None]
        self._partial = folder_state.partial(job)
        self._own = OwnPixels(job, call.style)
        self.scorer = Scorer(job, call.style.classes)
        self.warning: str | None = None
        self.empty = True
        self.replayed = 0
        with contextlib.ExitStack() as undo:
            undo.callback(self.discard)
            self._files.open()
            if self._partial is not None:
                for window, arrays in self._partial.replay():
                    self.replayed += self._write(window, Prediction(**arrays))
            undo.pop_all()

    def add(self, window: Window, prediction: Prediction) -> int:
        """Save a window to the partial map, then write complete parts of the map; return their pixels."""
        if self._partial is not None:
            arrays = {name: array for name, array in vars(prediction).items() if array is not None}
            try:
                # The map has priority: it cannot be continued from the middle.
                if shutil.disk_usage(self.job.output.parent).free < self._files.ahead_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._partial.add(window, arrays)
            except OSError as error:
                self._folder_state.drop_partial(self.job)  # which makes room for the map itself
                self._partial = None
                self.warning = f"{self.job.output}: cannot be resumed from within: {error.strerror}"
        return self._write(window, prediction)

    def _write(self, window: Window, prediction: Prediction) -> int:
        pixels = 0
        for own, own_prediction in self._own.of(window, prediction):
            self.empty = self.empty and not (own_prediction.ids != IGNORE).any()
            self._files.write(own, own_prediction)
            self.scorer.add(own, own_prediction.ids)
            for companion in self._companions:
                companion.take(own.relative_to(self.job.part), own_prediction)
            pixels += own.size.pixels
        return pixels

    def complete(self) -> None:
        self._own.close()
        self._files.complete(lambda: self._folder_state.check_unchanged(self.job), self._companions)
        self._folder_state.finish(self.job)

    @property
    def set_sizes(self) -> Any:
        return self._files.set_sizes

    @property
    def remarks(self) -> list[str]:
        remarks = [self.warning, self.job.remark, *(companion.remark for companion in self._companions)]
        if self.empty:
            remarks.append(f"{self.job.info.path}: has no pixel with data; its map is empty")
        return [line for line in remarks if line is not None]

    def discard(self) -> None:
        self._own.close()
        self.scorer.close()
        self._files.discard()


def write_maps(
    call: Call,
    jobs: Sequence[MapJob],
    tiling: Tiling,
    compute: Compute,
    folder_state: FolderState,
    bar: Any,
) -> Outcome:
    """Map every job and write it, whole or not at all; one that fails does not stop the others.

    With `fail_fast` the first that fails ends all; so does an error of the device or of the cluster.

    Args:
        folder_state: locks the outputs, has what an interrupted call left, and notes what is finished.
        bar: of tqdm, which counts pixels.
    """
    fail_fast = call.request.fail_fast
    for job in jobs:
        job.set_column(tiling.column)
    with contextlib.closing(_Maps(call, folder_state, bar)) as maps:
        waiting = list(jobs)
        while waiting and maps.outcome.stopped is None and not (fail_fast and maps.outcome.failed):
            events = compute(maps.jobs_to_compute(waiting))
            with contextlib.closing(events):  # a generator, whose threads end before the files are let go
                try:
                    for event in events:
                        maps.take(event)
                        if fail_fast and maps.outcome.failed:
                            break
                except (DeviceError, ClusterError) as error:
                    maps.outcome.stopped = error
            maps.settle()
            waiting = maps.to_repeat()
        return maps.outcome


class _Maps:
    """Maps in progress.

    Completing a map waits for the disk (at least 5 ms for any file), so several are completed in parallel
    while the model computes.
    """

    def __init__(self, call: Call, folder_state: FolderState, bar: Any) -> None:
        self.outcome = Outcome()
        self._call, self._folder_state, self._bar = call, folder_state, bar
        self._open: dict[int, _Output] = {}
        self._pool = ThreadPoolExecutor(_COMPLETED_AT_ONCE)
        self._completing: deque[tuple[_Output, Future[None]]] = deque()
        self._repeated: list[MapJob] = []

    def jobs_to_compute(self, jobs: Iterable[MapJob]) -> Iterator[MapJob]:
        """Yield the jobs to compute, each locked just before; runs in the reading thread."""
        for job in jobs:
            try:
                wanted = self._folder_state.take(job)
            except SegmenterError as error:
                self._give_up(job, error)
                continue
            if wanted:
                yield job
            else:
                self.outcome.kept.append(job)

    def take(self, event: Event[MapJob]) -> None:
        """Process an event: write a window, or give up and record a failed job."""
        job = event.job
        if job.abandoned:
            return
        try:
            if isinstance(event, Failed):
                self._fail(job, event.error)
                return
            output = self._output(job)
            if isinstance(event, MappedWindow):
                self._bar.update(output.add(event.window, event.prediction))
                return
        except SegmenterError as error:
            self._not_written(job, error)
            return
        del self._open[id(job)]
        self._completing.append((output, self._pool.submit(output.complete)))
        self.settle(2 * _COMPLETED_AT_ONCE)

    def _fail(self, job: MapJob, error: SegmenterError) -> None:
        """Give up a job whose raster cannot be read further; continuing would fail again."""
        much = self._folder_state.holds_much(job) and not isinstance(error, ChangedInputError)
        if much:
            self.outcome.warnings.append(
                f"{job.output}: what is computed of it is kept; if its input can be read again, the same "
                "call goes on from there"
            )
        self._give_up(job, error, keep=much)

    def _not_written(self, job: MapJob, error: SegmenterError) -> None:
        """Give up a job whose files cannot be written; repeat it if its partial map took the space."""
        if isinstance(error, ChangedInputError):
            self._give_up(job, error, keep=False)
        elif may_be_full(error) and self._folder_state.drop_partial(job):
            self.outcome.warnings.append(
                f"{job.output}: found no space beside what was kept of it, and was begun anew without"
            )
            self._release(job, keep=False)
            self._repeated.append(replace(job, abandoned=False, done_rows=0, kept_as_partial=False))
            self._bar.total += job.part.size.pixels  # once more
        else:
            self._give_up(job, error)

    def to_repeat(self) -> list[MapJob]:
        jobs, self._repeated = self._repeated, []
        return jobs

    def _output(self, job: MapJob) -> _Output:
        if id(job) not in self._open:
            self._open[id(job)] = _Output(self._call, job, self._folder_state)
            self._count_earlier(self._open[id(job)].replayed)
        return self._open[id(job)]

    def _count_earlier(self, pixels: int) -> None:
        """Count pixels of an earlier call: they reduce the rest but do not affect the rate."""
        if not self._bar.disable:
            for name in ("initial", "last_print_n", "n"):
                setattr(self._bar, name, getattr(self._bar, name) + pixels)

    def settle(self, left: int = 0) -> None:
        """Wait until at most `left` maps are being completed, and record the results of the others."""
        while len(self._completing) > left:
            output, future = self._completing.popleft()
            try:
                future.result()
            except SegmenterError as error:
                self._not_written(output.job, error)
            else:
                self._note(output)

    def close(self) -> None:
        """Remove everything incomplete, except partial maps for a later call."""
        self._pool.shutdown(cancel_futures=True)
        for output in (*self._open.values(), *(output for output, _ in self._completing)):
            output.discard()
        self._folder_state.release_all()

    def _note(self, output: _Output) -> None:
        self.outcome.written.append(output.job)
        self.outcome.set_sizes += output.set_sizes
        self.outcome.warnings += output.remarks
        self.outcome.add_score(output.job, output.scorer)

    def _give_up(self, job: MapJob, error: SegmenterError, *, keep: bool = True) -> None:
        self.outcome.failed.append((job, error))
        self._release(job, keep=keep)

    def _release(self, job: MapJob, *, keep: bool) -> None:
        job.abandoned = True
        output = self._open.pop(id(job), None)
        if output is not None:
            output.discard()
        self._folder_state.release(job, keep=keep)
