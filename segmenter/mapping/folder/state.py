"""State of a folder of maps: finished, begun, or being written by another process.

The life of a job: `unfinished` returns why it must be done; `take` locks its output and finds the partial map
of a killed run; `finished` writes it to the journal, or `leave` releases it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from segmenter.base.errors import RasterError, SegmenterError, failing, plain
from segmenter.base.files import FileLock, no_locks, on_disk
from segmenter.base.sealed import digest
from segmenter.base.terminal import warn
from segmenter.inference.reading import Tiling
from segmenter.mapping.folder.journal import Facts, JournalEntry, damage, file_facts, input_facts, label_rule
from segmenter.mapping.folder.partial import LEAST_PIXELS, MUCH_PIXELS, PartialMap
from segmenter.mapping.jobs import MapJob, changed_input_error, header, tag_at_server
from segmenter.raster import RasterInfo, leftovers
from segmenter.raster.opening import open_dataset

if TYPE_CHECKING:
    from segmenter.mapping.call import Call

_OF_ONE_FILE = {"GTiff", "COG", "PNG", "JPEG", "WEBP", "BMP"}
"""Drivers whose rasters lie in the file that is named, with the sidecars that `journal.input_facts` knows."""

_OF_PIXELS = ("bytes", "mtime_ns", "sample", ".msk")
"""Facts of `journal.input_facts` on what pixels are read from until the end. All else is read at the opening;
a viewer that puts statistics or overviews beside an image in the meantime does no harm."""


_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


class OutputLocks:
    """Locks on all files of a map, `.NAME.lock` beside each; maps of other formats may share some."""

    def __init__(self, outputs: Sequence[Path]) -> None:
        self._locks = {output: FileLock(output.with_name(f".{output.name}.lock")) for output in outputs}

    @property
    def names(self) -> set[str]:
        """Names of the lock files."""
        return {lock.path.name for lock in self._locks.values()}

    @property
    def missing(self) -> str | None:
        """Reason why other processes are not kept out (no locks on the file system); None if they are."""
        return next((lock.missing for lock in self._locks.values() if lock.missing is not None), None)

    def take(self) -> None:
        """Take all locks, or none."""
        for output, lock in self._locks.items():
            try:
                output.parent.mkdir(parents=True, exist_ok=True)
                lock.take()
            except OSError as error:
                self.release()
                if isinstance(error, BlockingIOError):
                    why = "is being written by another process; left to that one"
                else:
                    advice = "; is there permission to write?" if error.errno in _NO_PERMISSION else ""
                    why = f"cannot be written: {error.strerror}{advice}"
                raise RasterError(output, why) from None

    def release(self) -> None:
        """Release the locks, if taken."""
        for lock in self._locks.values():
            lock.release()


@contextlib.contextmanager
def of_one_run(folder: Path, model: str) -> Iterator[None]:
    """Keep calls of other runs, which would make these maps anew, out of a folder in the block.

    Calls of one run share it. A folder that cannot be locked has no such calls, or cannot keep them out.

    Raises:
        SegmenterError: a call of another run is at work there.
    """
    own = FileLock(folder / f".run-{model[:16]}.lock", shared=True)
    with contextlib.suppress(OSError):
        own.take()
    try:
        for path in set(folder.glob(".run-*.lock")) - {own.path}:
            other = FileLock(path)
            try:
                other.take()
            except BlockingIOError:
                raise SegmenterError(
                    folder,
                    "another process maps by another run there",
                    remedy="wait until it has ended, or name another --output",
                ) from None
            except OSError:
                continue
            other.release()  # of a killed call
        yield
    finally:
        own.release()


@dataclass
class _Held:
    locks: OutputLocks
    partial: PartialMap | None = None


class FolderState:
    """State of the jobs of one output folder.

    Attributes:
        removed: files of older maps that were removed because they did not belong to the new ones.

    Args:
        options: returns all facts that determine a job's outputs, as plain JSON.
    """

    def __init__(self, call: Call, options: Callable[[MapJob], Mapping[str, Any]]) -> None:
        folder = call.request.output
        self._call, self._store, self._redo = call, call.store, call.request.redo
        self.journal, self._folder, self._options = call.journal, folder, options
        self._run = {"name": call.run.recipe.name, "model": call.model}
        self.journal.settle(label_rule(call.style.weights), call.run.classes.to_dict())
        self._locks_missing_said = False
        self.removed: list[Path] = []
        self._entries: dict[int, JournalEntry] = {}
        self._seen: dict[str, JournalEntry | None] = {}
        self._held: dict[int, _Held] = {}
        self._leftovers = leftovers(folder)
        self._hidden = {path.name for path in folder.glob(".*")}

    def why_unfinished(self, job: MapJob) -> str | None:
        """Return why a job must be done, empty if it is new; None if its outputs are finished and intact.

        Raises:
            RasterError: a file of others has the name of an output.
        """
        entry = self._entry(job)
        if not self._redo and self._foreign(job) is not None:
            self.journal.refresh()  # another process may have written it meanwhile
            if (path := self._foreign(job)) is not None:
                raise RasterError(
                    path,
                    "exists already, and no earlier call made it",
                    remedy="name another --output, or replace it with --redo",
                )
        before = self._seen[job.name] = self.journal.find(job.name)
        reason = self._reason(job, entry, before)
        if reason is None:
            self._tidy(job)
        elif self._is_elsewhere(job):
            reason = None
        if reason is None:
            self._offer(job, entry)
        return reason

    def _foreign(self, job: MapJob) -> Path | None:
        """Return an existing output without journal entry, lock of a killed call, or a map's metadata."""
        entry = self.journal.find(job.name)
        known = {} if entry is None else entry.outputs
        for path in job.files:
            begun = path.name in known or f".{path.name}.lock" in self._hidden
            if not begun and path.is_file() and not path.is_symlink() and not _has_source(path):
                return path
        return None

    def _offer(self, job: MapJob, entry: JournalEntry) -> None:
        """Restore a finished job's missing files, and add them to the store if it lacks them."""
        if self._store is not None and self._store.keep:
            self._store.fetch(job.files)
        for finisher in self._call.finishers:
            finisher.restore(self._call, job)
        if self._store is not None:
            self._store.add((*job.files, *job.unchecked), entry)

    def _reason(self, job: MapJob, entry: JournalEntry, before: JournalEntry | None) -> str | None:
        if before is None:
            return ""
        if self._redo:
            return "asked for by --redo"
        if (reason := _not_looked_at(job.info)) is not None:
            return reason
        return before.difference(entry) or damage(self._folder, before, {path.name for path in job.files})

    def _is_elsewhere(self, job: MapJob, *, now: bool = False) -> bool:
        """Return whether the store has a job's outputs; `now`: check again."""
        if self._store is None or self._redo or _not_looked_at(job.info) is not None:
            return False
        return self._store.holds(job.files, self._entry(job), now=now)

    def _tidy(self, job: MapJob) -> None:
        """Remove leftovers of a call that was killed between its last journal line and its end."""
        locks, partial = OutputLocks(job.files), PartialMap(job.output, "", job.columns)
        if {*locks.names, partial.path.name} & self._hidden and id(job) not in self._held:
            with contextlib.suppress(RasterError):
                locks.take()
                partial.remove()
            locks.release()

    def take(self, job: MapJob) -> bool:
        """Lock a job's output, and set the rows that are already done (`job.done_rows`).

        Returns:
            True if the job must be done; False if another process has finished it.

        Raises:
            SegmenterError: another process is writing it.
        """
        held = _Held(OutputLocks(job.files))
        held.locks.take()
        self._held[id(job)] = held
        if held.locks.missing is not None and not self._locks_missing_said:
            warn_above_bar(no_locks(self._folder, held.locks.missing))
            self._locks_missing_said = True
        names = [path.name for path in (*job.files, *job.unchecked)]
        for leftover in (old for name in names for old in self._leftovers.pop(name, ())):
            if held.locks.missing is None:
                with contextlib.suppress(OSError):
                    leftover.unlink()  # whoever wrote it has not the lock
        before = self._seen.get(job.name)  # not what is known now: another job's look has read on
        self.journal.refresh()
        if self.journal.find(job.name) != before and self.why_unfinished(job) is None:
            self.release(job)
            return False
        with contextlib.suppress(SegmenterError):  # then it is made, whatever the store says now
            if self._is_elsewhere(job, now=True):  # another machine's call was faster
                self.release(job, keep=False)
                return False
        held.partial = self._recover(job)
        return True

    def partial(self, job: MapJob) -> PartialMap | None:
        """Return the partial map of a locked job; None for small jobs."""
        return self._held[id(job)].partial

    def drop_partial(self, job: MapJob) -> bool:
        """Remove a job's partial map to free space for its files; return True if there was one."""
        held = self._held.get(id(job))
        if held is None or held.partial is None:
            return False
        held.partial.remove()
        held.partial = None
        return True

    def check_unchanged(self, job: MapJob) -> None:
        """Refuse a map if its input, or a neighbouring file in a mosaic, has changed."""
        if job.tag is not None and tag_at_server(job.info.path) != job.tag:
            raise changed_input_error(job.info.path, f"what was {job.tag} at its server")
        entry = self._entry(job)
        around = (entry.options.get("mosaic") or {}).get("files", ())
        for path, facts in [(job.info.path, entry.input), *((Path(one["path"]), one) for one in around)]:
            if "remote" not in facts:
                now = input_facts(path, {})
                if any(facts.get(name) != now.get(name) for name in _OF_PIXELS):
                    raise changed_input_error(path)

    def finish(self, job: MapJob) -> None:
        """Write a job's outputs to the journal, and release the job."""
        with failing(RasterError, job.output, "cannot be read back"):
            facts = {path.name: file_facts(path) for path in job.files}
        entry = replace(self._entry(job), outputs=facts)
        before = self.journal.find(job.name)
        entry = entry if before is None else self._with_rest(entry, before)
        try:
            self.journal.append(entry)
        except SegmenterError:
            if not self.drop_partial(job):
                raise
            self.journal.append(entry)
        self.release(job, keep=False)
        if self._store is not None:
            self._store.add((*job.files, *job.unchecked), replace(self._entry(job), outputs=facts))

    def _with_rest(self, entry: JournalEntry, before: JournalEntry) -> JournalEntry:
        """Return an entry with still valid outputs of an earlier call; remove invalid ones.

        Only files that match the journal are removed: others have been changed by someone.
        """
        kept: dict[str, Facts] = {}
        alike = entry.extends(before)
        for name in before.outputs.keys() - entry.outputs.keys():
            path = self._folder / name
            other = self.journal.find(path.stem)
            if path.parent != self._folder or (other is not None and other.name != entry.name):
                continue
            with contextlib.suppress(OSError):
                if file_facts(path) != before.outputs[name]:
                    continue
                if alike:
                    kept[name] = before.outputs[name]
                else:
                    path.unlink()
                    self.removed.append(path)
                    for finisher in self._call.finishers:
                        finisher.forget(path)
        asked = {
            option: value
            for option, value in before.options.items()
            if any(name.startswith(f"{entry.name}.{option}.") for name in kept)
        }
        return replace(entry, outputs={**entry.outputs, **kept}, options={**asked, **entry.options})

    def release(self, job: MapJob, *, keep: bool = True) -> None:
        """Release a job; `keep`: leave its partial map for the next call."""
        held = self._held.pop(id(job), None)
        if held is not None:
            _release(held, keep=keep)

    def holds_much(self, job: MapJob) -> bool:
        """Return whether a job's partial map is large enough to be worth its disk space."""
        held = self._held.get(id(job))
        much = held is not None and held.partial is not None and held.partial.pixels >= MUCH_PIXELS
        return much and _not_looked_at(job.info) is None

    def release_all(self) -> None:
        """Release all jobs, leaving their partial maps."""
        for held in list(self._held.values()):
            _release(held, keep=True)
        self._held.clear()

    def _entry(self, job: MapJob) -> JournalEntry:
        """Return the job's journal entry without outputs, with the input's state at the first call."""
        if id(job) not in self._entries:
            facts = input_facts(job.info.path, header(job.info))
            source = str(job.info.path.resolve())
            entry = JournalEntry(job.name, source, facts, self._run, dict(self._options(job)), {})
            self._entries[id(job)] = entry
        return self._entries[id(job)]

    def _recover(self, job: MapJob) -> PartialMap | None:
        if job.part.size.pixels < LEAST_PIXELS or not job.kept_as_partial:
            return None
        entry = self._entry(job)
        partial = PartialMap(job.output, digest({"of": [entry.input, entry.run, entry.options]}), job.columns)
        try:
            if self._redo or _not_looked_at(job.info):
                partial.remove()
            if self._held[id(job)].locks.missing is not None:
                partial.part_from_others()
            job.done_rows = partial.recover()
            self.journal.flush()  # the windows of the partial map depend on what was chosen
        except OSError:  # then it is done without
            partial.remove()
            return None
        return partial


def neighbour_facts(job: MapJob, tiling: Tiling) -> Facts:
    """Return facts that a map in a mosaic depends on: neighbouring files, grid origin, mosaic borders.

    Borders beyond the reach of a window have no effect; blended windows depend on the whole mosaic.
    """
    assert job.mosaic is not None
    exact, stride, path = tiling.blend is None, tiling.stride, job.info.path
    reach = tiling.halo + stride if exact else max(tiling.window.height, tiling.window.width)
    if job.grid is not None:  # whose pixels these are; what they are made of reaches one farther
        reach = math.ceil((reach + 2) * max(job.grid.rows, job.grid.cols)) + 1
    around = job.mosaic.extent(path)
    ends = [-around.row, -around.col, around.row_stop, around.col_stop]
    if exact and job.grid is None:
        size = job.info.size
        beyond = [*ends[:2], ends[2] - size.height, ends[3] - size.width]
        ends = [ends[0] % stride, ends[1] % stride, *(min(end, reach) for end in beyond)]
    near = job.mosaic.neighbours(path, reach)
    files = [{"path": str(other.resolve()), **input_facts(other, header(info))} for other, info in near]
    if any(_not_looked_at(info) for _, info in near):
        ends.append(time.time_ns())  # like no other call's
    return {"ends": ends, "files": sorted(files, key=lambda facts: str(facts["path"]))}


def _not_looked_at(info: RasterInfo) -> str | None:
    """Return why changes in an input's pixels cannot be detected; None if they can."""
    if not on_disk(info.path):
        with contextlib.suppress(OSError):
            if info.path.stat().st_mtime_ns > 0:
                return None
        return "its server does not tell when it was changed"
    if info.driver in _OF_ONE_FILE or info.driver.startswith("JP2"):
        return None
    return f"the files that a {info.driver} reads are not looked at"


def _has_source(path: Path) -> bool:
    """Return whether a file has the metadata of a GeoTIFF that is made for an input."""
    with contextlib.suppress(RasterError), open_dataset(path).dataset as dataset:
        return {"SOURCE", "RUN"} <= dataset.tags().keys()
    return False


def warn_above_bar(text: str) -> None:
    """Print a warning at once, above a progress bar if there is one."""
    with tqdm.external_write_mode(file=sys.stderr):
        warn(plain(text))


def _release(held: _Held, *, keep: bool) -> None:
    if held.partial is not None and keep:
        held.partial.close()
    elif held.partial is not None:
        held.partial.remove()
    held.locks.release()
