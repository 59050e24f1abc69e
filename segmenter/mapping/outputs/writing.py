"""Maps of many rasters: each written whole or not at all, taken up where it was left, and scored."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from segmenter.base.errors import ChangedInputError, ClusterError, DeviceError, SegmenterError
from segmenter.base.files import may_be_full
from segmenter.evaluation.tallies import Tallies
from segmenter.extras.gis.style_files import StyleFiles, left_alone
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.inference.predictor import (
    Event,
    Failed,
    Mapped,
    Prediction,
    Tiling,
)
from segmenter.mapping.folder.state import FolderState
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.finished import MapFiles, MapStyle
from segmenter.mapping.own_pixels import OwnPixels
from segmenter.mapping.scoring import Outcome, Scorer

_COMPLETED_AT_ONCE = 4

Compute = Callable[[Iterable[MapJob]], Generator[Event[MapJob], None, None]]
"""Jobs, which it asks for as it gets on → their windows, as `predictor.classify_all` gives them."""


class _Output:
    """The map of one job while it is written and scored."""

    def __init__(self, job: MapJob, style: MapStyle, folder_state: FolderState) -> None:
        self.job, self._folder_state = job, folder_state
        self._files, self._styles = MapFiles(job, style), StyleFiles(job, style)
        self._partial = folder_state.partial(job)
        self._own = OwnPixels(job, style)
        self.scorer = Scorer(job, style.classes)
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
        """Keep a window against a kill, then write what is complete of the map; gives its pixels."""
        if self._partial is not None:
            arrays = {name: array for name, array in vars(prediction).items() if array is not None}
            try:
                self._leave_room()
                self._partial.add(window, arrays)
            except OSError as error:
                self._folder_state.give_way(self.job)  # which makes room for the map itself
                self._partial = None
                self.warning = f"{self.job.output}: cannot be resumed from within: {error.strerror}"
        return self._write(window, prediction)

    def _leave_room(self) -> None:
        """Raise OSError where the map would soon find no space beside its partial map.

        Of the two, it is the map that cannot be written again from the middle.
        """
        if shutil.disk_usage(self.job.output.parent).free < self._files.ahead_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, window: Window, prediction: Prediction) -> int:
        pixels = 0
        for own, found in self._own.of(window, prediction):
            self.empty = self.empty and not (found.ids != IGNORE).any()
            self._files.write(own, found)
            self.scorer.add(own, found.ids)
            self._styles.count(found.ids)
            pixels += own.size.pixels
        return pixels

    def complete(self) -> None:
        self._own.close()
        self._files.complete(lambda: self._folder_state.check_unchanged(self.job), [self._styles])
        self._folder_state.finished(self.job)

    @property
    def remark(self) -> str | None:
        """What there is to be said of its files."""
        return left_alone(self._styles.left)

    def discard(self) -> None:
        self._own.close()
        self.scorer.close()
        self._files.discard()


class Progress:
    """Counts pixels on a tqdm bar; those that an earlier call computed move it on without being fast."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def computed(self, pixels: int) -> None:
        """Pixels came from the model."""
        self._bar.update(pixels)

    def again(self, pixels: int) -> None:
        """Pixels are to be computed once more."""
        self._bar.total += pixels

    def found(self, pixels: int) -> None:
        """Pixels were there: they count for how much is left, not for the rate."""
        if self._bar.disable:
            return
        self._bar.initial += pixels
        self._bar.last_print_n += pixels
        self._bar.n += pixels


def write_maps(
    jobs: Sequence[MapJob],
    tiling: Tiling,
    compute: Compute,
    style: MapStyle,
    folder_state: FolderState,
    *,
    progress: Progress | None = None,
    fail_fast: bool = False,
) -> Outcome:
    """Map every job and write it, whole or not at all; one that fails does not stop the others.

    Args:
        compute: gives the windows of jobs, as `predictor.classify_all`.
        folder_state: locks the outputs, gives what an interrupted call left, and notes what is finished.
        progress: gets the numbers of finished pixels.
        fail_fast: stop at the first job that fails, and give up the others; so does an error of the device
            or of the cluster.
    """
    for job in jobs:
        job.set_column(tiling.column)
    with contextlib.closing(_Maps(style, folder_state, progress)) as maps:
        waiting = list(jobs)
        while waiting and maps.outcome.stopped is None and not (fail_fast and maps.outcome.failed):
            events = compute(maps.begun(waiting))
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
    """The maps under way.

    Completing a map waits for the disk (5 ms and more for a file of any size), so that some are completed
    at a time while the model goes on.
    """

    def __init__(self, style: MapStyle, folder_state: FolderState, progress: Progress | None) -> None:
        self.outcome = Outcome(Tallies(style.classes))
        self._style, self._folder_state, self._progress = style, folder_state, progress
        self._open: dict[int, _Output] = {}
        self._pool = ThreadPoolExecutor(_COMPLETED_AT_ONCE)
        self._completing: deque[tuple[_Output, Future[None]]] = deque()
        self._repeated: list[MapJob] = []

    def begun(self, jobs: Iterable[MapJob]) -> Iterator[MapJob]:
        """The jobs that are to be computed, each locked just before; runs in the reading thread."""
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
        """Write what came; a job that fails is given up and noted."""
        job = event.job
        if job.abandoned:
            return
        try:
            if isinstance(event, Failed):
                self._fail(job, event.error)
                return
            output = self._output(job)
            if isinstance(event, Mapped):
                self._count(output.add(event.window, event.prediction))
                return
        except SegmenterError as error:
            self._not_written(job, error)
            return
        del self._open[id(job)]
        self._completing.append((output, self._pool.submit(output.complete)))
        self.settle(2 * _COMPLETED_AT_ONCE)

    def _fail(self, job: MapJob, error: SegmenterError) -> None:
        """Give up a job that cannot be read on: it would fail there again, unless the disk is to blame."""
        much = self._folder_state.holds_much(job) and not isinstance(error, ChangedInputError)
        if much:
            self.outcome.warnings.append(
                f"{job.output}: what is computed of it is kept; if its input can be read again, the same "
                "call goes on from there"
            )
        self._give_up(job, error, keep=much)

    def _not_written(self, job: MapJob, error: SegmenterError) -> None:
        """Give up a job whose files cannot be written; it is begun anew if its partial map took the space."""
        if isinstance(error, ChangedInputError):
            self._give_up(job, error, keep=False)
        elif may_be_full(error) and self._folder_state.give_way(job):
            self.outcome.warnings.append(
                f"{job.output}: found no space beside what was kept of it, and was begun anew without"
            )
            self._let_go(job, keep=False)
            self._repeated.append(replace(job, abandoned=False, done_rows=0, kept_as_partial=False))
            if self._progress is not None:
                self._progress.again(job.part.size.pixels)
        else:
            self._give_up(job, error)

    def to_repeat(self) -> list[MapJob]:
        """Jobs that are to be done once more."""
        jobs, self._repeated = self._repeated, []
        return jobs

    def _output(self, job: MapJob) -> _Output:
        if id(job) not in self._open:
            self._open[id(job)] = _Output(job, self._style, self._folder_state)
            if self._progress is not None:
                self._progress.found(self._open[id(job)].replayed)
        return self._open[id(job)]

    def _count(self, pixels: int) -> None:
        if self._progress is not None:
            self._progress.computed(pixels)

    def settle(self, left: int = 0) -> None:
        """Wait until at most `left` maps are being completed, and note what came of the others."""
        while len(self._completing) > left:
            output, future = self._completing.popleft()
            try:
                future.result()
            except SegmenterError as error:
                self._not_written(output.job, error)
            else:
                self._note(output)

    def close(self) -> None:
        """Remove everything that is not complete, but for what a later call goes on from."""
        self._pool.shutdown(cancel_futures=True)
        for output in (*self._open.values(), *(output for output, _ in self._completing)):
            output.discard()
        self._folder_state.leave_all()

    def _note(self, output: _Output) -> None:
        self.outcome.written.append(output.job)
        found = [output.warning, output.job.remark, output.remark]
        if output.empty:
            found.append(f"{output.job.info.path}: has no pixel with data; its map is empty")
        self.outcome.warnings += [line for line in found if line is not None]
        self.outcome.add_score(output.job, output.scorer)

    def _give_up(self, job: MapJob, error: SegmenterError, *, keep: bool = True) -> None:
        self.outcome.failed.append((job, error))
        self._let_go(job, keep=keep)

    def _let_go(self, job: MapJob, *, keep: bool) -> None:
        job.abandoned = True
        output = self._open.pop(id(job), None)
        if output is not None:
            output.discard()
        self._folder_state.leave(job, keep=keep)
