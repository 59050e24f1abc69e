"""Label files made from polygons: a GeoTIFF for each image, in a cache folder.

Each is made once for a state of image, polygon file and rule, and is then a label like any other: see
`raster.made`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import DatasetError, counted
from segmenter.extras.vector_files.features import VectorFile, files_of
from segmenter.extras.vectors.burning import Burner
from segmenter.extras.vectors.rule import BurnRule
from segmenter.grid.labels import IGNORE
from segmenter.raster import crs_title, extent_text, raster_info
from segmenter.raster.made import MadeLabels

_VERSION = 2
"""Version of the rasterisation rules; part of the file name."""


class LabelFiles(MadeLabels):
    """Makes labels by one rule; safe to use from several threads, and by several processes."""

    def __init__(self, folder: Path, rule: BurnRule) -> None:
        """Store the rule and the folder, which is created with the first label."""
        super().__init__(folder, f"{_VERSION} {rule.key()}")
        self._burning, self.classes = rule, rule.classes
        self._files: dict[Path, VectorFile | DatasetError] = {}

    def sources(self, image: Path, source: Path) -> list[Path]:
        """Return the image and the polygons' files.

        Raises:
            DatasetError: there are no polygons.
        """
        if not source.exists():
            raise DatasetError(source, expected="a file of polygons, there is none")
        return [*files_of(source), image]

    def _file(self, polygons: Path) -> VectorFile:
        with self._lock:
            file = self._files.get(polygons)
            if file is None:
                rule = self._burning
                try:
                    file = VectorFile(polygons, rule.attribute, rule.layer, rule.crs)
                except DatasetError as error:  # of all images: it is not opened for each
                    file = error
                self._files[polygons] = file
        if isinstance(file, DatasetError):
            raise file
        return file

    def make(self, path: Path, image: Path, source: Path, shared: bool) -> bool:
        """Write a label, if any polygon covers the image."""
        info, polygons = raster_info(image), self._file(source)
        burner = Burner(polygons, info, self._burning)

        def wanted() -> bool:
            if not (burner.any_covered or shared) and polygons.count:
                raise DatasetError(
                    polygons.path,
                    expected=f"polygons on {image}, none of its {polygons.count} lies there",
                    remedy=f"the image extends over {extent_text(info)}",
                )
            return burner.any_covered or self._burning.outside_id != IGNORE

        return self.write(path, info, {"RASTERISED": polygons.path.name}, burner.strips(), wanted)

    def notes(self, pairs: Sequence[tuple[Path, Path]]) -> tuple[str, ...]:
        """Return lines on rasterised files, and on features that label nothing."""
        files = [self._file(each) for each in sorted({polygons for _, polygons in pairs})]
        first, *others = [file for file in files if file.count] or files
        more = f" and {len(others)} more" if others else ""
        empty = len(files) - len(others) - 1
        more += f", {counted(empty, 'file')} without any" if empty else ""
        crs = "no CRS" if first.crs is None else crs_title(first.crs)
        line = (
            f"labels: polygons of {first.path}{more} ({crs}), rasterised on the grid of each image, in "
            f"{self.path}"
        )
        return (line, *filter(None, (each.remark() for each in files)))
