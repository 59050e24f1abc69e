"""Style files as a finisher of maps, with its option."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.options import option
from segmenter.mapping.finisher import Companion, Finisher
from segmenter.mapping.request.map_request import GIS

if TYPE_CHECKING:
    from segmenter.mapping.call import Call
    from segmenter.mapping.jobs import MapJob
    from segmenter.raster import RasterInfo


@dataclass(frozen=True)
class Styles(Finisher):
    """Writes with each map what shows its classes in a GIS; without `styles`, only removes older ones."""

    styles: bool = option(
        True,
        "without STEM.qml, by which QGIS shows classes by name and colour, and STEM.tif.aux.xml, the "
        "attribute table",
        group=GIS,
    )

    def beside(self, call: Call, name: str, info: RasterInfo) -> tuple[Path, ...]:
        """Return a style for each raster, and the attribute table of a GeoTIFF.

        No style beside an image of the map's stem: QGIS would show the image by it.
        """
        from segmenter.extras.gis.style_files import files_of

        return files_of(call.style, name, info) if self.styles else ()

    def companion(self, call: Call, job: MapJob) -> Companion | None:
        """Return what writes the style files of a map."""
        from segmenter.extras.gis.style_files import StyleFiles

        return StyleFiles(job, call.style, job.unchecked) if self.styles else None

    def restore(self, call: Call, job: MapJob) -> None:
        """Write those of a finished map that are gone."""
        from segmenter.extras.gis.style_files import write_gone

        if self.styles:
            write_gone(call, job)

    def forget(self, output: Path) -> None:
        """Remove what showed an output that is gone."""
        from segmenter.extras.gis.style_files import remove_styles

        remove_styles(output)
