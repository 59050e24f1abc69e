"""Rasters to class maps, window by window: law 4, *tiles disappear*, and law 6, *memory is bounded*.

A thread reads ahead while the model computes. Windows of one shape are batched together across rasters, so
that a folder of small tiles keeps the model as busy as one large scene does. This module knows arrays and
windows only: what computes is a function, `PredictBatch`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import ConfigError, SegmenterError
from segmenter.geometry import Size, Window
from segmenter.labels import IGNORE
from segmenter.raster import Raster
from segmenter.tiling import Placement, halo_windows

PredictBatch = Callable[[NDArray[Any], NDArray[np.bool_]], NDArray[np.uint8]]
"""(B, H, W, C) pixels in the raster's own type and (B, H, W) valid → (B, H, W) class ids."""

_QUEUED = 2
"""Batches read ahead: one while the model computes, one more against slow files."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Tiling:
    """How a raster is cut for the model.

    Attributes:
        window: what the model sees at once, in pixels, halo included; rounded up to the stride.
        halo: at least the model's receptive-field radius, in pixels; rounded up to the stride.
        stride: the model's total stride, in pixels.
        batch: windows computed at once.
    """

    window: Size
    halo: int
    stride: int
    batch: int

    def __post_init__(self) -> None:
        least = 2 * -(-self.halo // self.stride) * self.stride
        if min(self.window.height, self.window.width) <= least:
            raise ConfigError(
                f"prediction window: expected more than {least} pixels, twice the halo that the model needs, "
                f"got {self.window}"
            )

    def placements(self, size: Size, part: Window) -> Iterator[Placement]:
        """Windows over the `part` of a raster of `size`, row by row.

        They are those of the whole raster, so that a part's map is that part of the whole's.
        """
        for place in halo_windows(size, self.window, self.halo, self.stride):
            keep = place.keep.intersection(part)
            if keep.size.pixels:
                yield Placement(place.read, keep)


class Job(Protocol):
    """A raster to be mapped."""

    @property
    def part(self) -> Window | None:
        """What to map; None for the whole raster."""

    @property
    def abandoned(self) -> bool:
        """Whether the rest of it is no longer wanted (its output failed)."""

    def open(self) -> contextlib.AbstractContextManager[Raster]:
        """Open the raster; called and used in the reading thread."""


@dataclass(frozen=True, eq=False)
class Mapped:
    """Class ids of a window of a job's raster, `IGNORE` where it has no data."""

    job: Any
    window: Window
    ids: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Finished:
    """Every window of the job was given."""

    job: Any


@dataclass(frozen=True, eq=False)
class Failed:
    """The job's raster cannot be read (on); no more of it will come."""

    job: Any
    error: SegmenterError


@dataclass(frozen=True, eq=False)
class _Piece:
    """A window as read; `image` is None where there is nothing to compute."""

    job: Any
    keep: Window
    within: Window  # `keep` in the coordinates of the window read
    image: NDArray[Any] | None
    valid: NDArray[np.bool_]


_Entry = _Piece | Finished | Failed


def classify_all(
    jobs: Iterable[Job], tiling: Tiling, predict: PredictBatch
) -> Iterator[Mapped | Finished | Failed]:
    """Class ids of many rasters, as they are computed.

    The windows of a job come row by row, then its `Finished`, or its `Failed` at any time; jobs may
    interleave. At most about `4 * batch + 64` windows are between reading and being given, which also
    bounds how many jobs are under way. A window without a valid pixel is not computed.
    """
    reader = _Reader(jobs, tiling)
    with contextlib.closing(reader):
        for entries in reader.batches():
            ids = _compute(entries, predict)
            for entry in entries:
                if isinstance(entry, _Piece):
                    yield Mapped(
                        entry.job, entry.keep, next(ids) if entry.image is not None else _empty(entry)
                    )
                else:
                    yield entry


def classify(
    raster: Raster, part: Window, tiling: Tiling, predict: PredictBatch
) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
    """Class ids of a part of one open raster: windows in its coordinates, row by row.

    The raster is read in another thread: leave it alone until the last window came.

    Raises:
        RasterError: where a window cannot be read.
    """
    for event in classify_all([_Opened(raster, part)], tiling, predict):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Mapped):
            yield event.window, event.ids


@dataclass(frozen=True)
class _Opened:
    raster: Raster
    part: Window
    abandoned: bool = False

    def open(self) -> contextlib.AbstractContextManager[Raster]:
        return contextlib.nullcontext(self.raster)


def _compute(entries: Sequence[_Entry], predict: PredictBatch) -> Iterator[NDArray[np.uint8]]:
    """Ids of the kept part of each piece that has data, nodata masked."""
    pieces = [e for e in entries if isinstance(e, _Piece) and e.image is not None]
    if not pieces:
        return
    valid = np.stack([p.valid for p in pieces])
    ids = predict(np.stack([p.image for p in pieces if p.image is not None]), valid)
    if ids.shape != valid.shape or ids.dtype != np.uint8:
        raise ValueError(f"predict gave {ids.shape} of {ids.dtype} for windows of {valid.shape}")
    ids = np.where(valid, ids, np.uint8(IGNORE))
    for piece, window in zip(pieces, ids, strict=True):
        yield window[piece.within.slices()]


def _empty(piece: _Piece) -> NDArray[np.uint8]:
    return np.full((piece.keep.height, piece.keep.width), IGNORE, np.uint8)


class _Reader:
    """Reads jobs in a thread of its own and hands over batches through a bounded queue."""

    def __init__(self, jobs: Iterable[Job], tiling: Tiling) -> None:
        self._jobs, self._tiling = jobs, tiling
        self._groups: dict[Any, list[_Entry]] = {}
        self._queue: queue.Queue[list[_Entry] | BaseException | None] = queue.Queue(_QUEUED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raster reader", daemon=True)
        self._thread.start()

    def batches(self) -> Iterator[list[_Entry]]:
        """Batches until all jobs are read; an unexpected error of the thread is raised here."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop reading; returns when the thread has let go of its file."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for job in self._jobs:
                if self._stop.is_set():
                    return
                self._read_job(job)
            for key in list(self._groups):
                self._hand_over(key)
            self._put(None)
        except BaseException as error:  # whatever it is, the waiting side must hear of it
            self._put(error)

    def _read_job(self, job: Job) -> None:
        key: Any = None
        end: _Entry = Finished(job)
        try:
            with job.open() as raster:
                size = raster.info.size
                for place in self._tiling.placements(size, job.part or Window.of(size)):
                    if self._stop.is_set() or job.abandoned:
                        break
                    key = (place.read.size, raster.info.dtype, len(raster.bands))
                    self._add(key, _read_piece(raster, job, place))
        except SegmenterError as error:
            end = Failed(job, error)
        if key is None:  # nothing of it is waiting: no need to wait with the news
            self._put([end])
        else:
            self._add(key, end)

    def _add(self, key: Any, entry: _Entry) -> None:
        group = self._groups.setdefault(key, [])
        group.append(entry)
        full = sum(isinstance(e, _Piece) and e.image is not None for e in group) >= self._tiling.batch
        if full:
            self._hand_over(key)
        elif sum(map(len, self._groups.values())) >= 4 * self._tiling.batch + 64:
            self._hand_over(next(iter(self._groups)))

    def _hand_over(self, key: Any) -> None:
        self._put(self._groups.pop(key))

    def _put(self, item: list[_Entry] | BaseException | None) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_POLL_SECONDS)
                return


def _read_piece(raster: Raster, job: Job, place: Placement) -> _Piece:
    within = place.keep.relative_to(place.read)
    image, valid = raster.read(place.read)
    computed = image if valid[within.slices()].any() else None
    return _Piece(job, place.keep, within, computed, valid)
