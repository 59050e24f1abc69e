"""Rasters made from other files and cached: labels on an image's grid, bands of one scene.

Each is made once for a state of its sources, and is then a raster like any other: tile index, packs and
training read it without its sources. Its name contains the state; it appears when complete. If the sources
give no raster, an empty file records that.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, failing
from segmenter.base.files import make_folder
from segmenter.base.keyed_folder import KeyedFolder
from segmenter.base.sealed import digest
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.raster.header import RasterInfo
from segmenter.raster.stamps import stamp_of
from segmenter.raster.write import RasterSpec, RasterWriter, remove_leftovers

_OUTDATED_SECONDS = 30 * 86_400.0
"""Age at which a file with changed sources is removed; a training may still use a younger one."""
_LONGEST = 60
_NONE = ".none"
"""Ending of the file that says that nothing comes of the sources."""


class MadeRasters(KeyedFolder):
    """Cache of rasters made by one rule."""

    def __init__(self, folder: Path, rule: str) -> None:
        """Store a folder and `rule`, a digest of everything except the sources that determines the result."""
        super().__init__(folder)
        self._rule = rule
        self._lock, self._began = threading.Lock(), False
        self._starts: set[str] = set()
        self._kept: set[Path] = set()

    def get(self, name: str, sources: Sequence[Path], make: Callable[[Path], bool]) -> Path | None:
        """Return the raster of a scene, making it if needed; None if its sources give no raster.

        Args:
            name: unique name of the scene, or a path.
            sources: source files; a change of any makes a new raster.
            make: writes the complete raster to a path, or returns False if there is nothing to write.

        Raises:
            DatasetError: the folder is not writable, or a source changed while it was read.
        """
        before = _states(sources)
        start, path = self._place(name, sources, before)
        none = path.with_suffix(_NONE)
        if path.exists():
            return path
        if none.exists():
            return None
        self._begin()
        is_made = make(path)
        if (after := _states(sources)) != before:
            path.unlink(missing_ok=True)
            changed = next(s for s, one, other in zip(sources, before, after, strict=True) if one != other)
            raise DatasetError(
                changed, "changed while it was read", remedy="wait until it is saved, and call again"
            )
        if not is_made:
            self.save(none.name, b"")
        with self._lock:
            self._starts.add(start)
            self._kept |= {path, none}
        return path if is_made else None

    def tidy(self) -> None:
        """Remove old rasters made from earlier states of the same sources, and leftovers of killed calls."""

        def is_outdated(path: Path) -> bool:
            return path.name[: path.name.rfind("-") + 1] in self._starts and path not in self._kept

        if self._began:
            self.remove_older(_OUTDATED_SECONDS, is_outdated)

    def _place(self, name: str, sources: Sequence[Path], before: list[str]) -> tuple[str, Path]:
        """Return the file-name prefix of one raster in all states, and the file of the current state."""
        names = [os.path.relpath(source, self.path) for source in sources]
        plain = re.sub(r"[^\w.-]", "_", Path(name).name)[:_LONGEST]
        start = f"{plain}-{digest([name, sources[-1].name, self._rule], 12)}-"
        return start, self.path / f"{start}{digest([names, before], 12)}.tif"

    def _begin(self) -> None:
        with self._lock:
            if self._began:
                return
            with failing(
                DatasetError, self.path, "cannot write there", remedy="name another folder in dataset.cache"
            ):
                make_folder(self.path)
            remove_leftovers(self.path)
            self._began = True


def _states(files: Sequence[Path]) -> list[str]:
    return [stamp_of(file).key for file in files]


def write_strips(
    path: Path,
    size: Size,
    spec: RasterSpec,
    strips: Iterable[tuple[Window, NDArray[Any]]],
    wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Write a raster from strips as wide as it is; return False where it is not wanted after the last one."""
    writer = RasterWriter(path, size, spec, column=size.width)
    with contextlib.ExitStack() as stack:
        stack.callback(writer.discard)
        writer.open()
        for window, values in strips:
            writer.write(window, values)
        if not wanted():
            return False
        writer.finish()
        if not path.exists():  # by another process, which would find its file changed
            writer.publish()
    return True


# ---------------------------------------------------------------------------------------------- labels


class MadeLabels(MadeRasters):
    """Labels on the grid of each image, made of a file that may lie on several images.

    Attributes:
        classes: of the labels that are made, as `labels.rasterised_classes` gives them.
    """

    classes: ClassMap

    def label(self, name: str, image: Path, source: Path, *, shared: bool) -> Path | None:
        """Return the label of an image, made if necessary; None where a shared source does not reach it.

        Args:
            name: of the scene, or a path: another for each image.
            shared: the source is that of all images; else it must reach this one.

        Raises:
            SegmenterError: it cannot be a label of this image, holds a value that is no class, or the label
                cannot be written.
        """
        sources = self.sources(image, source)
        return self.get(name, sources, lambda path: self.make(path, image, source, shared))

    def sources(self, image: Path, source: Path) -> list[Path]:
        """Return all files that a label is made of."""
        raise NotImplementedError

    def make(self, path: Path, image: Path, source: Path, shared: bool) -> bool:
        """Write a label by `write`; return False where nothing comes of its source."""
        raise NotImplementedError

    def write(
        self,
        path: Path,
        info: RasterInfo,
        tags: dict[str, str],
        strips: Iterable[tuple[Window, NDArray[np.uint8]]],
        wanted: Callable[[], bool],
    ) -> bool:
        """Write class ids as a label on an image's grid; see `write_strips`."""
        spec, stored = label_spec(info, self.classes, tags), stored_values(self.classes)
        values = ((window, stored[ids_HW].astype(spec.dtype)) for window, ids_HW in strips)
        return write_strips(path, info.size, spec, values, wanted)


def stored_values(classes: ClassMap) -> NDArray[np.uint16]:
    """Return (256,) stored value of each class id; `classes` come from `labels.rasterised_classes`."""
    none = classes.ignored[0]
    assert isinstance(none, int), "they hold codes"
    table = np.full(256, none, np.uint16)
    table[: len(classes)] = classes.codes()
    return table


def label_spec(info: RasterInfo, classes: ClassMap, tags: dict[str, str]) -> RasterSpec:
    """Return the format of a made label, readable for people: colours, names, sources.

    Args:
        info: header of the image whose grid the label has.
        classes: from `labels.rasterised_classes`.
    """
    values = stored_values(classes)
    dtype, colours = "uint8" if values.max() <= 0xFF else "uint16", None
    if dtype == "uint8":
        colours = np.zeros((256, 3), np.uint8)
        colours[classes.codes()] = [each.colour for each in classes.classes]
    return RasterSpec(
        dtype=dtype,
        crs=info.crs,
        transform=info.transform,
        nodata=int(values[IGNORE]),
        colour_table=colours,
        tags={f"CODE_{each.code}": each.name for each in classes.classes} | tags,
    )
