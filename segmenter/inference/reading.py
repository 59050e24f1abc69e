"""Reading for prediction: choice of windows and rasters, and grouping into batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, SegmenterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import COLUMN, Columns, Placement, halo_windows, round_up
from segmenter.inference.blending import Blend, blend_windows
from segmenter.inference.events import Batch, Entry, Failed, Finished, J, Job, Piece, Readable

_MOST_AT_ONCE = 256
"""Windows of a batch, however small."""
_NO_DATA = np.zeros((), np.bool_)


@dataclass(frozen=True)
class Tiling:
    """Division of a raster into windows for the model.

    Attributes:
        window: size that the model sees at once, in pixels, including the halo; rounded up to the stride.
        halo: at least the model's receptive-field radius, in pixels; rounded up to the stride.
        stride: the model's total stride, in pixels.
        batch: number of windows computed at once.
        blend: settings of blending; None: each pixel is kept from one window, which is exact.
        pixels: smaller windows (small rasters) are batched up to this number of pixels; 0: `batch`.
        column: wider parts are cut into columns of this width in pixels, see `windows.Columns`.
    """

    window: Size
    halo: int
    stride: int
    batch: int
    blend: Blend | None = None
    pixels: int = 0
    column: int = COLUMN

    def __post_init__(self) -> None:
        least = 0 if self.blend else 2 * round_up(self.halo, self.stride)
        if min(self.window.height, self.window.width) <= least:
            raise ConfigError(
                "prediction window",
                expected=f"more than {least} pixels, twice the halo that the model needs",
                got=self.window,
            )

    @property
    def band_rows(self) -> int:
        """Rows that a row of windows adds to a map, at most; the first and last row may add more."""
        height = self.window.round_up(self.stride).height
        if self.blend is not None:
            return self.blend.step(height, self.stride)
        return height - 2 * round_up(self.halo, self.stride)

    def placements(self, extent: Window, part: Window) -> Iterator[Placement]:
        """Yield windows over the `part` of a raster with that `extent`, row by row.

        Blended windows are those of the whole raster, so that a part's map equals that part of the whole map;
        exact windows give the same map at any position.
        """
        if self.blend is not None:
            return blend_windows(extent, self.window, self.blend, self.stride, part)
        return halo_windows(extent, self.window, self.halo, self.stride, part)

    def at_once(self, read: Size) -> int:
        """Return the number of windows of that size to compute at once."""
        return max(self.batch, min(self.pixels // max(read.pixels, 1), _MOST_AT_ONCE))


Read = tuple[Placement, NDArray[Any] | None, NDArray[np.bool_]]
"""A window, its (H, W, C) pixels (None: known to hold no data), and (H, W) where they are valid."""


class _Group(Generic[J]):
    """Windows of one shape, waiting to form a batch."""

    def __init__(self) -> None:
        self.entries: list[Entry[J]] = []
        self.images: list[NDArray[Any]] = []
        self.valids: list[NDArray[np.bool_]] = []

    def batch(self) -> Batch[J]:
        if not self.images:
            return Batch(self.entries, None, None)
        if len(self.images) == 1:  # as large as they can be: no second copy
            return Batch(self.entries, self.images[0][None], self.valids[0][None])
        return Batch(self.entries, np.stack(self.images), np.stack(self.valids))


def read_batches(jobs: Iterable[J], tiling: Tiling, readers: int = 1) -> Iterator[Batch[J]]:
    """Yield windows of all jobs, batched by shape, type and bands.

    Entries of one job come in order; at most `4 * batch + 64` wait.

    Args:
        readers: number of threads that read a raster with that many windows side by side, each with its own
            handle, if the raster is `apart`.
    """
    groups: dict[Any, _Group[J]] = {}
    for job in jobs:
        key: Any = None
        end: Entry[J] = Finished(job)
        try:
            with job.open() as raster:
                for found, piece, image, valid in _read_job(job, raster, tiling, readers):
                    before, key = key, found if image is not None or key is None else key
                    if before not in (None, key) and before in groups:
                        yield groups.pop(before).batch()  # the job's own order: columns have other windows
                    yield from _add(groups, key, tiling, piece, image, valid)
        except SegmenterError as error:
            end = Failed(job, error)
        if key is None:  # nothing of it is waiting: no need to wait with the news
            yield Batch([end], None, None)
        else:
            yield from _add(groups, key, tiling, end)
    for group in groups.values():
        yield group.batch()


def _read_job(
    job: J, raster: Readable, tiling: Tiling, readers: int
) -> Iterator[tuple[Any, Piece[J], Any, Any]]:
    extent = raster.extent
    kind = raster.info.dtype, len(raster.bands)
    columns = job.columns or Columns(job.part or extent, tiling.column)
    for column in columns.remaining(job.done_rows):
        windows = _read_column(job, raster, tiling.placements(extent, column), tiling, column, readers)
        for place, image, valid in windows:
            inner = valid[place.keep.relative_to(place.read).slices()]
            piece = Piece(job, place, bool(inner.any()), inner, column)
            yield (place.read.size, *kind), piece, image, valid


def _read_column(
    job: Job,
    raster: Readable,
    places: Iterable[Placement],
    tiling: Tiling,
    column: Window,
    readers: int,
) -> Iterator[Read]:
    across = -(-column.width // tiling.band_rows)  # windows side by side, which are square
    readers = min(readers, across) if raster.apart else 1
    if readers < 2:
        for run in _runs(places, tiling):
            if job.abandoned:
                return
            yield from _read_run(raster, run)
        return
    runs = _runs(places, tiling, -(-across // readers))
    for windows in read_apart(job, raster, runs, readers, _read_run):
        yield from windows


def _without_data(places: Sequence[Placement]) -> Read:
    """Return adjoining windows as one that needs no computing."""
    place = Placement(
        *(Window.around(windows) for windows in zip(*((p.read, p.keep) for p in places), strict=True))
    )
    return place, None, np.broadcast_to(_NO_DATA, (place.read.height, place.read.width))


def _read_run(raster: Readable, run: Sequence[Placement]) -> Iterator[Read]:
    """Yield a run's windows, read at once; if that fails, one by one, to name the damaged one.

    Yields one window without pixels if the run is known to have no data.
    """
    around = Window.around(place.read for place in run)
    try:
        if raster.empty(around):
            yield _without_data(run)
            return
        image, valid = raster.read(around)
    except SegmenterError:
        if len(run) == 1:
            raise
        for place in run:
            yield (place, *raster.read(place.read))
        return
    parts = [place.read.relative_to(around).slices() for place in run]
    # Views hold all of the run; where some of its windows are not computed, the others may wait for long.
    inner = (valid[place.keep.relative_to(around).slices()] for place in run)
    alone = len(run) > 1 and not all(pixels.any() for pixels in inner)
    for place, part in zip(run, parts, strict=True):
        yield place, *((image[part].copy(), valid[part].copy()) if alone else (image[part], valid[part]))


def _runs(places: Iterable[Placement], tiling: Tiling, most: int | None = None) -> Iterator[list[Placement]]:
    """Yield lists of windows side by side, at most a batch, read at once: shared pixels are read once."""
    run: list[Placement] = []
    for place in places:
        first, read = (run or [place])[0].read, place.read
        long = tiling.at_once(first.size)
        if (read.row, read.size) != (first.row, first.size) or len(run) == min(long, most or long):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _add(
    groups: dict[Any, _Group[J]],
    key: Any,
    tiling: Tiling,
    entry: Entry[J],
    image: Any = None,
    valid: Any = None,
) -> Iterator[Batch[J]]:
    group = groups.setdefault(key, _Group())
    group.entries.append(entry)
    if isinstance(entry, Piece) and entry.computed:
        group.images.append(image)
        group.valids.append(valid)
    if len(group.images) >= tiling.at_once(key[0]):
        yield groups.pop(key).batch()
    elif sum(len(g.entries) for g in groups.values()) >= 4 * tiling.at_once(key[0]) + 64:
        yield groups.pop(next(iter(groups))).batch()


# ------------------------------------------------------------------------------------------- several readers


T = TypeVar("T")


def read_apart(
    job: Job,
    raster: Readable,
    runs: Iterable[Sequence[Placement]],
    readers: int,
    read: Callable[[Readable, Sequence[Placement]], Iterable[T]],
) -> Iterator[list[T]]:
    """Yield the result of reading each run, in order; each reader works on one run at a time.

    Args:
        raster: the job's raster, for the first reader; those of other readers are opened and closed here.
        runs: windows side by side, row by row.
        read: function called with a raster handle and a run.
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
            for number, run in _number_runs(runs):
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


def _number_runs(runs: Iterable[Sequence[Placement]]) -> Iterator[tuple[int, Sequence[Placement]]]:
    row, number = None, 0
    for run in runs:
        number = number + 1 if run[0].read.row == row else 0
        row = run[0].read.row
        yield number, run
