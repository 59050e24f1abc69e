"""Events of prediction: windows read, windows computed, and the end of a raster's job."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns, Placement
from segmenter.inference.prediction import Prediction
from segmenter.raster.header import Readable as Readable
from segmenter.raster.resampled import GridColumns

Strips = Columns | GridColumns
"""Columns of a raster, computed one after the other, each from top to bottom."""


class Job(Protocol):
    """Interface of a raster to map."""

    @property
    def part(self) -> Window | None:
        """Part to map; None for the whole raster."""

    @property
    def columns(self) -> Strips | None:
        """Order in which the part is computed; None: `windows.Columns` of the tiling's width."""

    @property
    def done_rows(self) -> int:
        """Rows of the part's columns that an earlier run has finished."""

    @property
    def abandoned(self) -> bool:
        """True if the rest of the job is no longer wanted, because its output failed."""

    def open(self) -> contextlib.AbstractContextManager[Readable]:
        """Open the raster; called and used in the reading thread."""


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, eq=False)
class Weighted(Placement):
    """A window with weights for its rows and columns; a pixel's weight is their product."""

    rows: NDArray[np.float32]
    cols: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Piece(Generic[J]):
    """A window after reading.

    Attributes:
        place: position of the window; a `Weighted` if windows are blended.
        computed: True if a kept pixel is valid; else nothing is computed.
        valid: (H, W) mask of the part that is kept.
        part: the part of the job's raster to map, or the window's column of it.
    """

    job: J
    place: Placement
    computed: bool
    valid: NDArray[np.bool_]
    part: Window

    @property
    def keep(self) -> Window:
        """The kept part of the window, in the raster's coordinates."""
        return self.place.keep

    @property
    def within(self) -> Window:
        """The kept part in the coordinates of the window."""
        return self.place.keep.relative_to(self.place.read)

    @property
    def weights(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights of the window's rows and columns (TypeError: the windows are not blended)."""
        if not isinstance(self.place, Weighted):
            raise TypeError(f"{self.place.read}: expected a window with weights, as blended ones have")
        return self.place.rows, self.place.cols


@dataclass(frozen=True, eq=False)
class Finished(Generic[J]):
    """All windows of the job have been yielded."""

    job: J


@dataclass(frozen=True, eq=False)
class Failed(Generic[J]):
    """The job's raster cannot be read further; the job yields nothing more."""

    job: J
    error: SegmenterError


@dataclass(frozen=True, eq=False)
class MappedWindow(Generic[J]):
    """The prediction of a window of a job's raster."""

    job: J
    window: Window
    prediction: Prediction

    @property
    def ids(self) -> NDArray[np.uint8]:
        """(H, W) class ids; `IGNORE` where there is no data."""
        return self.prediction.ids


Entry = Piece[J] | Finished[J] | Failed[J]
"""Events that the reading thread gives."""

Event = MappedWindow[J] | Finished[J] | Failed[J]
"""Events that prediction gives."""


@dataclass(frozen=True, eq=False)
class Batch(Generic[J]):
    """Windows of one shape, in order, and ends of jobs between them.

    Attributes:
        image: (B, H, W, C) pixels of the pieces to compute; None if there are none.
        valid: (B, H, W) mask of the same pixels.
    """

    entries: Sequence[Entry[J]]
    image: Any
    valid: Any
