"""Protocol of files that appear whole: `raster.RasterWriter`, and writers of files beside a map."""

from __future__ import annotations

from typing import Protocol


class Completed(Protocol):
    """Files completed in two steps: written to disk, then renamed; `discard` removes unnamed ones."""

    def finish(self) -> None:
        """Write the file to the disk under a temporary name."""

    def publish(self) -> None:
        """Rename the file to its final name."""

    def discard(self) -> None:
        """Remove temporary files."""
