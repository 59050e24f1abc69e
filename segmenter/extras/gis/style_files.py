"""Files beside a map that tell a GIS how to show it: `STEM.qml` for QGIS, the attribute table for GDAL.

They are written with the map, whole. Unlike it they may be changed by others: QGIS keeps a style that was
saved as the default under the same name, and statistics in the table's file. So a map is finished whatever
they hold; one that is gone is written again without computing anything, and a style that QGIS saved is left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import OutputError, SegmenterError
from segmenter.base.files import sync
from segmenter.extras.gis.attribute_table import attribute_table
from segmenter.extras.gis.legend import is_ours
from segmenter.extras.gis.styles import class_style, share_style, style_file
from segmenter.extras.upload import Uploads
from segmenter.grid.geometry import Size
from segmenter.grid.labels import class_pixels
from segmenter.grid.windows import COLUMN, grid
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.raster import read_label

_AT_ONCE = Size(512, COLUMN)
"""Pixels of a finished map that are read at once."""
_COUNTED_AT_ONCE = 1 << 20
"""Pixels; NumPy takes 8 bytes for each while it counts."""


class StyleFiles:
    """The style files of one job on their way: they get their names after the map has its own.

    Attributes:
        left: styles of others, which stay.

    Args:
        paths: of these files; None: all.
    """

    def __init__(self, job: MapJob, style: MapStyle, paths: Iterable[Path] | None = None) -> None:
        self._job, self._style = job, style
        self._pixels_K: NDArray[np.int64] | None = np.zeros(len(style.classes), np.int64)
        names = job.shown_by if paths is None else tuple(paths)
        self._aside = {path: path.with_name(f".{path.name}.tmp-{os.getpid()}") for path in names}
        self.left: list[Path] = []

    def count(self, ids: NDArray[np.uint8]) -> None:
        """Count the classes of a window of the map."""
        if not self._aside or self._pixels_K is None:
            return
        rows = max(1, _COUNTED_AT_ONCE // max(1, ids.shape[1]))
        for top in range(0, len(ids), rows):
            self._pixels_K += class_pixels(ids[top : top + rows], len(self._pixels_K))

    def count_map(self) -> None:
        """Count those of the map that is there; where it lies elsewhere, the table has no pixels."""
        try:
            for place in grid(self._job.part.size, _AT_ONCE):
                self.count(self._style.ids(self._job, read_label(self._job.output, place.keep)))
        except SegmenterError:
            self._pixels_K = None

    def finish(self) -> None:
        """Write them all, not yet under their names.

        Raises:
            OutputError: there is no space, or no permission.
        """
        with self._writing():
            for path, aside in self._aside.items():
                aside.unlink(missing_ok=True)  # it would be written through a link
                aside.write_bytes(self._content(path))
                sync(aside)

    def publish(self) -> None:
        """Give them their names.

        Raises:
            OutputError: the folder refuses it.
        """
        with self._writing():
            for path, aside in self._aside.items():
                if path.suffix == ".qml" and _of_others(path):
                    self.left.append(path)
                else:
                    aside.replace(path)
            if self._aside:
                sync(self._job.output.parent)

    def discard(self) -> None:
        """Remove what is temporary."""
        for aside in self._aside.values():
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)

    def _content(self, path: Path) -> bytes:
        if path.suffix == ".xml":
            counted = None if self._pixels_K is None else self._pixels_K.tolist()
            return attribute_table(self._style.legend(self._job, counted))
        of_classes = path.name == f"{self._job.name}.qml"
        return style_file(class_style(self._style.legend(self._job)) if of_classes else share_style())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self._job.output}: its style files cannot be written: {error.strerror}; is there space?"
            ) from None


def restore(job: MapJob, style: MapStyle, uploads: Uploads | None = None) -> list[Path]:
    """Write the style files of a finished map that are gone, from what it holds; gives these.

    Args:
        uploads: where they may be as well.

    Raises:
        OutputError: they cannot be written.
    """
    gone = [path for path in job.shown_by if not path.exists() and not (uploads and uploads.has(path.name))]
    if not gone:
        return []
    files = StyleFiles(job, style, gone)
    try:
        if any(path.suffix == ".xml" for path in gone):
            files.count_map()
        files.finish()
        files.publish()
    finally:
        files.discard()
    return gone


def remove_styles(path: Path) -> None:
    """Remove what showed an output that is gone, but for a style of others."""
    style = path.with_suffix(".qml")
    for beside in (path.with_name(f"{path.name}.aux.xml"), *([] if _of_others(style) else [style])):
        beside.unlink(missing_ok=True)


def left_alone(paths: Sequence[Path]) -> str | None:
    """What there is to be said of styles that QGIS saved; None where there are none."""
    if not paths:
        return None
    return f"{paths[0]}: is a style that was saved by QGIS or by hand, and is left; remove it for a new one"


def _of_others(path: Path) -> bool:
    try:
        return not is_ours(path.read_bytes())
    except FileNotFoundError:
        return False
    except OSError:
        return True
