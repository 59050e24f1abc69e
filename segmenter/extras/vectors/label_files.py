"""Label files made from polygons: a GeoTIFF for each image, in a cache folder.

Each is made once for a state of image, polygon file and rule, and is then a label like any other: see
`raster.made`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import DatasetError
from segmenter.extras.vectors.burning import Burner
from segmenter.extras.vectors.features import VectorFile, files_of
from segmenter.extras.vectors.rule import BurnRule
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.raster import RasterWriter, crs_title, extent_text, raster_info
from segmenter.raster.made import MadeRasters, label_spec

_VERSION = 2
"""Version of the rasterisation rules; part of the file name."""


class LabelFiles:
    """Maker of labels by one rule; safe for several threads and several processes.

    Attributes:
        made: number of newly made labels.
    """

    def __init__(self, folder: Path, rule: BurnRule) -> None:
        """Store the rule and the folder, which is created with the first label."""
        self.folder, self._rule = folder, rule
        self._cache = MadeRasters(folder, f"{_VERSION} {rule.key()}")
        self._files: dict[Path, VectorFile | DatasetError] = {}
        self._lock = threading.Lock()
        self.made = 0

    @property
    def classes(self) -> ClassMap:
        """Class map of the labels made."""
        return self._rule.classes

    def label(self, name: str, image: Path, polygons: Path, *, shared: bool) -> Path | None:
        """Return the label of an image, making it if needed; None if no polygon covers it.

        Args:
            name: unique name of the scene, or a path.
            shared: True if the polygons serve all images; else some must lie on this image, if there are any.

        Raises:
            SegmenterError: the polygons cannot be labels of this image, or the file cannot be written.
        """
        if not polygons.exists():
            raise DatasetError(f"{polygons}: expected a file of polygons, there is none")
        sources = [*files_of(polygons), image]
        return self._cache.get(
            name, sources, lambda path: self._make(path, image, self._file(polygons), shared)
        )

    def has(self, name: str, image: Path, polygons: Path) -> bool:
        """Return whether the result is cached: a label, or the fact that there is none."""
        return self._cache.has(name, [*files_of(polygons), image])

    def tidy(self) -> None:
        """Tidy the cache; see `MadeRasters.tidy`."""
        self._cache.tidy()

    def _file(self, polygons: Path) -> VectorFile:
        with self._lock:
            file = self._files.get(polygons)
            if file is None:
                rule = self._rule
                try:
                    file = VectorFile(polygons, rule.attribute, rule.layer, rule.crs)
                except DatasetError as error:  # of all images: it is not opened for each
                    file = error
                self._files[polygons] = file
        if isinstance(file, DatasetError):
            raise file
        return file

    def _make(self, path: Path, image: Path, polygons: VectorFile, shared: bool) -> bool:
        """Write a label, if any polygon covers the image."""
        info = raster_info(image)
        burner, stored = Burner(polygons, info, self._rule), self._rule.stored()
        spec = label_spec(info, self.classes, {"RASTERISED": polygons.path.name})
        writer = RasterWriter(path, info.size, spec, column=info.size.width)
        with contextlib.ExitStack() as stack:
            stack.callback(writer.discard)
            writer.open()
            for window, ids_HW in burner.strips():
                writer.write(window, stored[ids_HW].astype(spec.dtype))
            if not (burner.any_covered or shared) and polygons.count:
                raise DatasetError(
                    f"{polygons.path}: expected polygons on {image}, none of its {polygons.count} lies "
                    f"there; the image extends over {extent_text(info)}"
                )
            if not burner.any_covered and self._rule.outside_id == IGNORE:
                return False
            writer.finish()
            if not path.exists():  # by another process, which would find its file changed
                writer.publish()
        with self._lock:
            self.made += 1
        return True

    def notes(self, pairs: Sequence[tuple[Path, Path]]) -> tuple[str, ...]:
        """Return lines on rasterised files, and on features that label nothing.

        Args:
            pairs: images and their polygon files.
        """
        first, *others = sorted({polygons for _, polygons in pairs})
        crs = self._file(first).crs
        more = f" and {len(others)} more" if others else ""
        line = (
            f"labels: polygons of {first}{more} ({'no CRS' if crs is None else crs_title(crs)}), rasterised "
            f"on the grid of each image, in {self.folder}"
        )
        return (line, *filter(None, (self._file(each).remark() for each in (first, *others))))
