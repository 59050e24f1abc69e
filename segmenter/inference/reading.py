"""Reading for prediction: which windows of which rasters are read, and how they become batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import ConfigError, SegmenterError
from segmenter.geometry import Size, Window
from segmenter.inference.blending import Blend, blend_windows
from segmenter.raster import RasterInfo
from segmenter.windows import COLUMN, Columns, Placement, halo_windows, round_up

_MOST_AT_ONCE = 256
"""Windows of a batch, however small."""
_JOINED_PIXELS = 1 << 18
"""Of windows without data that are given as one, at most."""
_NO_DATA = np.zeros((), np.bool_)


@dataclass(frozen=True)
class Tiling:
    """How a raster is cut for the model.

    Attributes:
        window: what the model sees at once, in pixels, halo included; rounded up to the stride.
        halo: at least the model's receptive-field radius, in pixels; rounded up to the stride.
        stride: the model's total stride, in pixels.
        batch: windows computed at once.
        blend: how windows are blended; None: each pixel is kept of one window, which is exact.
        pixels: of windows that are smaller (small rasters), as many are computed at once as have so many
            pixels; 0: `batch`.
        column: a wider part is cut into columns of so many pixels, see `tiling.Columns`.
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
                f"prediction window: expected more than {least} pixels, twice the halo that the model needs, "
                f"got {self.window}"
            )

    @property
    def band_rows(self) -> int:
        """Pixels that a band of windows adds to a map's height, at most; the first and last may add more."""
        height = self.window.round_up(self.stride).height
        if self.blend is not None:
            return self.blend.step(height, self.stride)
        return height - 2 * round_up(self.halo, self.stride)

    def placements(self, extent: Window, part: Window) -> Iterator[Placement]:
        """Windows over the `part` of a raster of that `extent`, row by row.

        Blended windows are those of the whole raster, so that a part's map is that part of the whole's;
        exact ones give the same map wherever they lie.
        """
        if self.blend is not None:
            return blend_windows(extent, self.window, self.blend, self.stride, part)
        return halo_windows(extent, self.window, self.halo, self.stride, part)

    def at_once(self, read: Size) -> int:
        """How many windows of that size are computed at once."""
        return max(self.batch, min(self.pixels // max(read.pixels, 1), _MOST_AT_ONCE))


class Readable(Protocol):
    """What is read: a `raster.Raster`, or a view of a mosaic, which also has an `extent`."""

    info: RasterInfo
    bands: tuple[int, ...]

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """(H, W, C) pixels of a window and (H, W) where they are valid."""

    def empty(self, window: Window) -> bool:
        """Whether a window is known to hold no data without being read."""


class Job(Protocol):
    """A raster to be mapped."""

    @property
    def part(self) -> Window | None:
        """What to map; None for the whole raster."""

    @property
    def done_rows(self) -> int:
        """Rows of the part's columns that need not be computed: an earlier run finished them."""

    @property
    def abandoned(self) -> bool:
        """Whether the rest of it is no longer wanted (its output failed)."""

    def open(self) -> contextlib.AbstractContextManager[Readable]:
        """Open the raster; called and used in the reading thread."""


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
class Piece:
    """A window as read.

    Attributes:
        place: where it lies.
        computed: whether it has a valid pixel that is kept; else there is nothing to compute.
        valid: (H, W) of the part that is kept.
        part: what is wanted of the job's raster, or the column of it that the window is one of.
    """

    job: Any
    place: Placement
    computed: bool
    valid: NDArray[np.bool_]
    part: Window

    @property
    def keep(self) -> Window:
        """The window's own part, in the raster's coordinates."""
        return self.place.keep

    @property
    def within(self) -> Window:
        """The same in the coordinates of the window."""
        return self.place.keep.relative_to(self.place.read)

    @property
    def weights(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Of its rows and columns, where windows are blended."""
        return self.place.rows, self.place.cols  # type: ignore[attr-defined]


Entry = Piece | Finished | Failed


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows of one shape, in order, and news of jobs between them.

    Attributes:
        image: (B, H, W, C) pixels of those pieces that are computed; None where there is none.
        valid: (B, H, W) of the same.
    """

    entries: Sequence[Entry]
    image: Any
    valid: Any


Read = tuple[Placement, NDArray[Any] | None, NDArray[np.bool_]]
"""A window, its (H, W, C) pixels (None: known to hold no data), and (H, W) where they are valid."""


class _Group:
    """Windows of one shape that wait until they are a batch."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.images: list[NDArray[Any]] = []
        self.valids: list[NDArray[np.bool_]] = []

    def batch(self) -> Batch:
        if not self.images:
            return Batch(self.entries, None, None)
        if len(self.images) == 1:  # as large as they can be: no second copy
            return Batch(self.entries, self.images[0][None], self.valids[0][None])
        return Batch(self.entries, np.stack(self.images), np.stack(self.valids))


def read_batches(jobs: Iterable[Job], tiling: Tiling) -> Iterator[Batch]:
    """Windows of all jobs, batched by shape, type and bands.

    Entries of one job come in order; `4 * batch + 64` of them wait at most.
    """
    groups: dict[Any, _Group] = {}
    for job in jobs:
        key: Any = None
        end: Entry = Finished(job)
        try:
            with job.open() as raster:
                for found, piece, image, valid in _read_job(job, raster, tiling):
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


def _read_job(job: Job, raster: Readable, tiling: Tiling) -> Iterator[tuple[Any, Piece, Any, Any]]:
    extent = extent_of(raster)
    kind = raster.info.dtype, len(raster.bands)
    for column in Columns(job.part or extent, tiling.column).left(job.done_rows):
        for place, image, valid in _joined(_read_column(job, raster, extent, column, tiling), tiling):
            kept = valid[place.keep.relative_to(place.read).slices()]
            piece = Piece(job, place, bool(kept.any()), kept, column)
            yield (place.read.size, *kind), piece, image, valid


def _read_column(
    job: Job, raster: Readable, extent: Window, column: Window, tiling: Tiling
) -> Iterator[Read]:
    for run in _runs(tiling.placements(extent, column), tiling):
        if job.abandoned:
            return
        yield from _read_run(raster, run)


def _joined(windows: Iterable[Read], tiling: Tiling) -> Iterator[Read]:
    """Exact windows that are known to hold no data, one below the other, as one: a sparse file has many."""
    waiting: Read | None = None
    for read in windows:
        if waiting is not None:
            above, below = waiting[0].keep, read[0].keep
            both = Window.around((above, below))
            adjoin = (above.col, above.width, above.row_stop) == (below.col, below.width, below.row)
            if read[1] is None and adjoin and both.size.pixels <= _JOINED_PIXELS:
                waiting = _without_data((waiting[0], read[0]))
                continue
            yield waiting
            waiting = None
        if read[1] is None and tiling.blend is None:
            waiting = read
        else:
            yield read
    if waiting is not None:
        yield waiting


def _without_data(places: Sequence[Placement]) -> Read:
    """Windows that adjoin as one that need not be computed."""
    place = Placement(
        *(Window.around(windows) for windows in zip(*((p.read, p.keep) for p in places), strict=True))
    )
    return place, None, np.broadcast_to(_NO_DATA, (place.read.height, place.read.width))


def _read_run(raster: Readable, run: Sequence[Placement]) -> Iterator[Read]:
    """The windows of a run, read at once; where that fails, one by one, so that the damaged one is named.

    One without pixels where it is known that they hold no data.
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
    kept = (valid[place.keep.relative_to(around).slices()] for place in run)
    alone = len(run) > 1 and not all(pixels.any() for pixels in kept)
    for place, part in zip(run, parts, strict=True):
        yield place, *((image[part].copy(), valid[part].copy()) if alone else (image[part], valid[part]))


def _runs(places: Iterable[Placement], tiling: Tiling) -> Iterator[list[Placement]]:
    """Windows side by side that are read at once, so that what they share is read once: at most a batch."""
    run: list[Placement] = []
    for place in places:
        first, read = (run or [place])[0].read, place.read
        if (read.row, read.size) != (first.row, first.size) or len(run) == tiling.at_once(first.size):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _add(
    groups: dict[Any, _Group], key: Any, tiling: Tiling, entry: Entry, image: Any = None, valid: Any = None
) -> Iterator[Batch]:
    group = groups.setdefault(key, _Group())
    group.entries.append(entry)
    if isinstance(entry, Piece) and entry.computed:
        group.images.append(image)
        group.valids.append(valid)
    if len(group.images) >= tiling.at_once(key[0]):
        yield groups.pop(key).batch()
    elif sum(len(g.entries) for g in groups.values()) >= 4 * tiling.at_once(key[0]) + 64:
        yield groups.pop(next(iter(groups))).batch()


def extent_of(raster: Readable) -> Window:
    """The pixels that can be read: of a mosaic seen from one of its files, more than that file has."""
    extent: Window = getattr(raster, "extent", None) or Window.of(raster.info.size)
    return extent
