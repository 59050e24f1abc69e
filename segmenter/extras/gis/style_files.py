"""Style files beside a map for GIS programs: `STEM.qml` for QGIS, the attribute table for GDAL.

They are written completely, with the map. Unlike the map, others may change them: QGIS saves default styles
under the same name, and statistics in the table's file. So a map counts as finished whatever they contain; a
missing one is written again without computing, and a style saved by QGIS is kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import OutputError, SegmenterError, failing
from segmenter.base.files import real, sync
from segmenter.extras.gis.documents import (
    attribute_table,
    class_style,
    is_of_others,
    legend,
    share_style,
    style_file,
    style_remark,
)
from segmenter.grid.labels import class_pixels
from segmenter.mapping.style import SHARES

if TYPE_CHECKING:
    from segmenter.grid.geometry import Window
    from segmenter.mapping.call import Call
    from segmenter.mapping.finisher import Prediction
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.style import MapStyle
    from segmenter.raster import RasterInfo

_COUNTED_AT_ONCE = 1 << 20
"""Pixels; NumPy takes 8 bytes for each while it counts."""


def files_of(style: MapStyle, name: str, info: RasterInfo) -> tuple[Path, ...]:
    """Return the style files of a raster's map."""
    path = style.path(name, info)
    styles = [] if _lies_beside(path, name, info.path) else [path.with_name(f"{name}.qml")]
    styles += [one.with_suffix(".qml") for one in style.companion_files(name) if one.name.endswith(SHARES)]
    return (*styles, *([] if style.is_png(info) else [path.with_name(f"{path.name}.aux.xml")]))


def _lies_beside(path: Path, name: str, image: Path) -> bool:
    """Return whether a map goes into the folder of an image with the same stem."""
    return image.stem == name and real(image.parent) == real(path.parent)


class StyleFiles:
    """Style files of one job while they are written: renamed to their final names after the map."""

    def __init__(self, job: MapJob, style: MapStyle, paths: Iterable[Path]) -> None:
        self._job, self._style = job, style
        self._pixels_K: NDArray[np.int64] | None = np.zeros(len(style.classes), np.int64)
        self._aside = {path: path.with_name(f".{path.name}.tmp-{os.getpid()}") for path in paths}
        self._left: list[Path] = []

    @property
    def remark(self) -> str | None:
        """Warning about a style saved by QGIS, which is kept; None if no such style exists."""
        if not self._left:
            return None
        return style_remark(self._left[0])

    def take(self, window: Window, prediction: Prediction) -> None:
        """Count the classes of a window of the map."""
        self._count(prediction.ids)

    def _count(self, ids: NDArray[np.uint8]) -> None:
        if not self._aside or self._pixels_K is None:
            return
        rows = max(1, _COUNTED_AT_ONCE // max(1, ids.shape[1]))
        for top in range(0, len(ids), rows):
            self._pixels_K += class_pixels(ids[top : top + rows], len(self._pixels_K))

    def count_map(self) -> None:
        """Count the classes of an existing map; if it is stored elsewhere, the table has no pixel counts."""
        try:
            for _, ids in self._style.read_back(self._job):
                self._count(ids)
        except SegmenterError:
            self._pixels_K = None

    def finish(self) -> None:
        """Write all files under temporary names.

        Raises:
            OutputError: the disk is full, or permission is missing.
        """
        with self._writing():
            for path, aside in self._aside.items():
                aside.unlink(missing_ok=True)  # it would be written through a link
                aside.write_bytes(self._content(path))
                sync(aside)

    def publish(self) -> None:
        """Rename the files to their final names.

        Raises:
            OutputError: the folder does not allow it.
        """
        with self._writing():
            for path, aside in self._aside.items():
                if path.suffix == ".qml" and is_of_others(path):
                    self._left.append(path)
                else:
                    aside.replace(path)
            if self._aside:
                sync(self._job.output.parent)

    def discard(self) -> None:
        """Remove temporary files."""
        for aside in self._aside.values():
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)

    def _content(self, path: Path) -> bytes:
        if path.suffix == ".xml":
            counted = None if self._pixels_K is None else self._pixels_K.tolist()
            return attribute_table(legend(self._style, self._job, counted))
        of_classes = path.name == f"{self._job.name}.qml"
        return style_file(class_style(legend(self._style, self._job)) if of_classes else share_style())

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return failing(OutputError, self._job.output, "its style files cannot be written", "is there space?")


def write_gone(call: Call, job: MapJob) -> None:
    """Write the missing style files of a finished map from its content.

    Raises:
        OutputError: the files cannot be written.
    """
    store = call.store
    gone = [path for path in job.unchecked if not path.exists() and not (store and store.has(path.name))]
    if not gone:
        return
    files = StyleFiles(job, call.style, gone)
    try:
        if any(path.suffix == ".xml" for path in gone):
            files.count_map()
        files.finish()
        files.publish()
    finally:
        files.discard()


def remove_styles(path: Path) -> None:
    """Remove the style files of a removed output, except a style saved by others."""
    style = path.with_suffix(".qml")
    if not is_of_others(style):
        style.unlink(missing_ok=True)
    if path.suffix == ".tif":  # that of a PNG is not ours
        path.with_name(f"{path.name}.aux.xml").unlink(missing_ok=True)
