"""Events of prediction: windows as read, windows as computed, and the end of a raster's job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Placement
from segmenter.inference.prediction import Prediction
from segmenter.raster.header import Readable as Readable


class Strips(Protocol):
    """Columns of a raster that are computed one after the other, each from top to bottom."""

    def left(self, done_rows: int) -> Iterator[Window]:
        """Yield the columns that are left after so many rows, counted through all of them."""

    def pixels(self, done_rows: int) -> int:
        """Return pixels in the first so many rows."""


class Job(Protocol):
    """A raster to be mapped."""

    @property
    def part(self) -> Window | None:
        """Part to map; None for the whole raster."""

    @property
    def columns(self) -> Strips | None:
        """The order in which the part is computed; None: in `windows.Columns` of the tiling's width."""

    @property
    def done_rows(self) -> int:
        """Rows of the part's columns that need not be computed: an earlier run finished them."""

    @property
    def abandoned(self) -> bool:
        """True if the rest of it is no longer wanted (its output failed)."""

    def open(self) -> contextlib.AbstractContextManager[Readable]:
        """Open the raster; called and used in the reading thread."""


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, eq=False)
class Weighted(Placement):
    """A window with the weights of its rows and of its columns; a pixel's weight is their product."""

    rows: NDArray[np.float32]
    cols: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Piece(Generic[J]):
    """A window as read.

    Attributes:
        place: where it lies; `Weighted` where windows are blended.
        computed: whether it has a valid pixel that is kept; else there is nothing to compute.
        valid: (H, W) of the part that is kept.
        part: what is wanted of the job's raster, or the column of it that the window is one of.
    """

    job: J
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
        """Weights of its rows and columns.

        Raises:
            TypeError: windows are not blended.
        """
        if not isinstance(self.place, Weighted):
            raise TypeError(f"{self.place.read}: expected a window with weights, as blended ones have")
        return self.place.rows, self.place.cols


@dataclass(frozen=True, eq=False)
class Finished(Generic[J]):
    """Every window of the job was given."""

    job: J


@dataclass(frozen=True, eq=False)
class Failed(Generic[J]):
    """The job's raster cannot be read (on); no more of it will come."""

    job: J
    error: SegmenterError


@dataclass(frozen=True, eq=False)
class Mapped(Generic[J]):
    """The prediction of a window of a job's raster."""

    job: J
    window: Window
    prediction: Prediction

    @property
    def ids(self) -> NDArray[np.uint8]:
        """(H, W) class ids, `IGNORE` where there is no data."""
        return self.prediction.ids


Entry = Piece[J] | Finished[J] | Failed[J]
"""Events that the reading thread gives."""

Event = Mapped[J] | Finished[J] | Failed[J]
"""Events that prediction gives."""


@dataclass(frozen=True, eq=False)
class Batch(Generic[J]):
    """Windows of one shape, in order, and news of jobs between them.

    Attributes:
        image: (B, H, W, C) pixels of those pieces that are computed; None where there is none.
        valid: (B, H, W) of the same.
    """

    entries: Sequence[Entry[J]]
    image: Any
    valid: Any
