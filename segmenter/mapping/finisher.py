"""Protocols of additions to a call: finishers, which process its maps, and a store.

The core uses only these protocols, not their implementations: style files, pictures, polygons, uploads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from segmenter.base.errors import SegmenterError
from segmenter.mapping.completed import Completed

if TYPE_CHECKING:
    from segmenter.grid.geometry import Window
    from segmenter.inference.prediction import Prediction as Prediction
    from segmenter.mapping.call import Call
    from segmenter.mapping.folder.journal import JournalEntry
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.outcome import Outcome
    from segmenter.raster import RasterInfo


class Companion(Completed, Protocol):
    """Files that a finisher writes together with one map; they are renamed after the map."""

    def take(self, window: Window, prediction: Prediction) -> None:
        """Take a window of the map, in its pixels."""

    @property
    def remark(self) -> str | None:
        """Return a warning once the files are published, if any."""


class Finisher:
    """Processing of a call's maps; by default each step does nothing.

    Attributes:
        reads_maps: True if `finish` reads the maps, which then stay in the folder until it ends.
    """

    reads_maps = False

    def finished_files(self, call: Call, name: str) -> dict[str, Path]:
        """Return by option the files `STEM.OPTION.EXT` of its companion that belong to a finished map."""
        return {}

    def companion_files(self, call: Call, name: str, info: RasterInfo) -> tuple[Path, ...]:
        """Return the files that its companion writes with a raster's map; others may change these files."""
        return ()

    def afterwards(self, job: MapJob) -> tuple[Path, ...]:
        """Return the files that `finish` writes for a map in the output folder."""
        return ()

    def check(self, call: Call, jobs: Sequence[MapJob]) -> None:
        """Refuse, by a SegmenterError, requests that would fail only after hours of computing."""

    def companion(self, call: Call, job: MapJob) -> Companion | None:
        """Return the writer of files beside a new map; None if there are none."""
        return None

    def restore(self, call: Call, job: MapJob) -> None:
        """Write the missing files of a finished map again."""

    def forget(self, output: Path) -> None:
        """Remove the files that belong to a removed output."""

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Process the maps, once all are made and scored; return the errors."""
        return []

    def close(self) -> None:
        """Release all resources, also after an error."""


class OutputStore(Protocol):
    """Store for finished outputs; an output in the store counts as finished."""

    keep: bool
    """True: files stay in the output folder until the end."""

    def has(self, name: str) -> bool:
        """Return whether an object of that name existed at the first call."""

    def holds(self, files: Sequence[Path], entry: JournalEntry, *, now: bool = False) -> bool:
        """Return whether the store has all outputs of an input, in their current state."""

    def fetch(self, files: Sequence[Path]) -> None:
        """Copy outputs that are missing in the output folder back from the store."""

    def add(self, files: Sequence[Path], entry: JournalEntry | None = None) -> None:
        """Store finished files, the outputs of a journal's entry."""
