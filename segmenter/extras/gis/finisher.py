"""Style files as a finisher of maps, with its option."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.options import option
from segmenter.mapping.finisher import Companion, Finisher
from segmenter.mapping.request.map_request import GIS

if TYPE_CHECKING:
    from segmenter.base.errors import SegmenterError
    from segmenter.mapping.call import Call
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.outcome import Outcome
    from segmenter.raster import RasterInfo


@dataclass(frozen=True)
class Styles(Finisher):
    """Writes style files with each map; without `styles`, only removes older ones."""

    styles: bool = option(
        True,
        "write no style files beside the maps; otherwise STEM.qml shows classes by name and colour in "
        "QGIS, and STEM.tif.aux.xml holds the attribute table",
        group=GIS,
    )

    def companion_files(self, call: Call, name: str, info: RasterInfo) -> tuple[Path, ...]:
        """Return a style for each raster, and the attribute table of a GeoTIFF.

        No style is written beside an image with the map's stem: QGIS would apply it to the image.
        """
        from segmenter.extras.gis.style_files import files_of

        return files_of(call.style, name, info) if self.styles else ()

    def companion(self, call: Call, job: MapJob) -> Companion | None:
        """Return the writer of a map's style files."""
        from segmenter.extras.gis.style_files import StyleFiles

        return StyleFiles(job, call.style, job.unchecked) if self.styles else None

    def restore(self, call: Call, job: MapJob) -> None:
        """Write missing style files of a finished map again."""
        from segmenter.extras.gis.style_files import write_gone

        if self.styles:
            write_gone(call, job)

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Remove the style files of older maps, if new ones have none."""
        for job in () if self.styles else outcome.written:
            for path in job.files:
                self.forget(path)
        return []

    def forget(self, output: Path) -> None:
        """Remove the style files of a removed output."""
        from segmenter.extras.gis.style_files import remove_styles

        remove_styles(output)
