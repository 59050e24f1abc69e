"""Protocols of what doors add to a call: finishers, which make something of its maps, and a store.

The core knows these protocols and none who fulfils them: style files, pictures, polygons, uploads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from segmenter.base.errors import SegmenterError

if TYPE_CHECKING:
    from segmenter.mapping.call import Call
    from segmenter.mapping.folder.journal import Entry
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.scoring import Outcome
    from segmenter.raster import RasterInfo


class Completed(Protocol):
    """A file, or several, in two steps: all on the disk, then its name; `discard` removes what has none."""

    def finish(self) -> None:
        """Bring it to the disk."""

    def publish(self) -> None:
        """Give it its name."""

    def discard(self) -> None:
        """Remove what is temporary."""


class Companion(Completed, Protocol):
    """Files that a finisher writes together with one map: they get their names after the map's own."""

    def add(self, ids: Any) -> None:
        """Take a window of the map, as (H, W) class ids."""

    @property
    def remark(self) -> str | None:
        """Return a line to warn of, once they are published; None if there is nothing."""


class Finisher:
    """Makes something of a call's maps; each step does nothing by default.

    Attributes:
        reads_maps: whether `finish` reads the maps, which are kept in the folder until then.
    """

    reads_maps = False

    def beside(self, call: Call, name: str, info: RasterInfo) -> tuple[Path, ...]:
        """Return the files that its companion writes with a raster's map; others may change them."""
        return ()

    def afterwards(self, job: MapJob) -> tuple[Path, ...]:
        """Return the files that `finish` writes for a map in the output folder."""
        return ()

    def check(self, call: Call, jobs: Sequence[MapJob]) -> None:
        """Refuse, by a SegmenterError, what would fail after hours of computing."""

    def companion(self, call: Call, job: MapJob) -> Companion | None:
        """Return what writes its files with a map that is begun; None if there are none."""
        return None

    def restore(self, call: Call, job: MapJob) -> None:
        """Write those of a finished map that are gone."""

    def forget(self, output: Path) -> None:
        """Remove what belonged to an output that is gone."""

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Do its work, once all maps are made and scored; return what went wrong."""
        return []

    def close(self) -> None:
        """Let go of everything, also after an error."""


class Store(Protocol):
    """Place that outputs go to once they are finished; what is there is finished too."""

    keep: bool
    """True: files stay in the output folder until the end."""

    def has(self, name: str) -> bool:
        """Return whether there was an object of that name when this was first asked."""

    def holds(self, files: Sequence[Path], entry: Entry, *, now: bool = False) -> bool:
        """Return whether all outputs of an input are there, made of what they would be made of now."""

    def fetch(self, files: Sequence[Path]) -> None:
        """Bring outputs back into the output folder that are not in it."""

    def add(self, files: Sequence[Path], entry: Entry | None = None) -> None:
        """Take finished files, the outputs of a journal's entry."""
