"""Label files that are rasterised polygons: a GeoTIFF for each image, in a folder that is a cache.

Each is made once for a state of the image, of the polygons' file and of the rule, and then is a label like
any other: training reads its tiles without looking at polygons. Its name says what it was made of; it appears
when it is whole. Where no polygon lies on an image an empty file says that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from pathlib import Path

import numpy as np

from segmenter.errors import DatasetError, SegmenterError
from segmenter.files import make_folder, write_whole
from segmenter.labels import IGNORE
from segmenter.raster import (
    RasterInfo,
    RasterSpec,
    RasterWriter,
    crs_title,
    extent_text,
    raster_info,
    remove_leftovers,
)
from segmenter.raster.remote import RemotePath
from segmenter.vectors.burning import Burner
from segmenter.vectors.features import VectorFile, stamps
from segmenter.vectors.rule import BurnRule

_VERSION = 2
"""Of the rules that decide what is burned; it is part of the name."""
_OUTDATED_SECONDS = 30 * 86_400.0
"""Age from which on a label goes whose polygons have changed since; a training may be at work with it."""
_LONGEST = 60
_NONE = ".none"
"""Ending of the file that says that no polygon lies on an image."""


class LabelFiles:
    """Makes labels by one rule; safe to use from several threads, and by several processes.

    Attributes:
        made: labels that were not there.
    """

    def __init__(self, folder: Path, rule: BurnRule) -> None:
        """`folder`: is made when the first label is."""
        self.folder, self._rule = folder, rule
        self._key = rule.key()
        self._files: dict[Path, VectorFile | DatasetError] = {}
        self._lock, self._began = threading.Lock(), False
        self._starts: set[str] = set()
        self._kept: set[Path] = set()
        self.made = 0

    def label(self, name: str, image: Path, polygons: Path, *, shared: bool) -> Path | None:
        """The label of an image; None where no polygon lies on it.

        Args:
            name: of the scene, or a path: another for each image.
            shared: whether the polygons are those of all images; else some must lie on this one, if there are
                any.

        Raises:
            SegmenterError: the polygons cannot be labels of this image, or the file cannot be written.
        """
        before = stamps(polygons)
        if not before[0]:
            raise DatasetError(f"{polygons}: expected a file of polygons, there is none")
        start, path = self._place(name, image, polygons, before)
        none = path.with_suffix(_NONE)
        if path.exists():
            return path
        if none.exists():
            return None
        self._begin()
        found = self._make(path, image, self._file(polygons), shared)
        if stamps(polygons) != before:
            path.unlink(missing_ok=True)
            raise DatasetError(
                f"{polygons}: changed while it was read; wait until it is saved, and call again"
            )
        if not found:
            write_whole(none, b"")
        self._starts.add(start)
        self._kept |= {path, none}
        return path if found else None

    def has(self, name: str, image: Path, polygons: Path) -> bool:
        """Whether a label is made, or known to be none; False also where something is wrong."""
        try:
            _, path = self._place(name, image, polygons, stamps(polygons))
        except SegmenterError:
            return False
        return path.exists() or path.with_suffix(_NONE).exists()

    def _place(self, name: str, image: Path, polygons: Path, before: list[list[int]]) -> tuple[str, Path]:
        """The beginning of the names of one label's states, and the file of this one."""
        state = json.dumps([_VERSION, polygons.name, before, _image_state(image)])
        plain = re.sub(r"[^\w.-]", "_", Path(name).name)[:_LONGEST]
        start = f"{plain}-{_digest(name + image.name + self._key)}-"
        return start, self.folder / f"{start}{_digest(state)}.tif"

    def _file(self, polygons: Path) -> VectorFile:
        with self._lock:
            found = self._files.get(polygons)
            if found is None:
                rule = self._rule
                try:
                    found = VectorFile(polygons, rule.attribute, rule.layer, rule.crs)
                except DatasetError as error:  # of all images: it is not opened for each
                    found = error
                self._files[polygons] = found
        if isinstance(found, DatasetError):
            raise found
        return found

    def _begin(self) -> None:
        with self._lock:
            if self._began:
                return
            try:
                make_folder(self.folder)
            except OSError as error:
                raise DatasetError(
                    f"{self.folder}: labels cannot be rasterised there: {error.strerror}; name another "
                    "folder in dataset.cache"
                ) from None
            remove_leftovers(self.folder)
            self._began = True

    def _make(self, path: Path, image: Path, polygons: VectorFile, shared: bool) -> bool:
        """Write a label, if any polygon lies on the image."""
        info = raster_info(image)
        burner, stored = Burner(polygons, info, self._rule), self._rule.stored()
        writer = RasterWriter(path, info.size, self._spec(info, polygons.path), column=info.size.width)
        with contextlib.ExitStack() as stack:
            stack.callback(writer.discard)
            writer.open()
            for window, ids_HW in burner.strips():
                writer.write(window, stored[ids_HW].astype(self._dtype))
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

    @property
    def _dtype(self) -> str:
        return "uint8" if self._rule.stored().max() <= 0xFF else "uint16"

    def _spec(self, info: RasterInfo, polygons: Path) -> RasterSpec:
        """As a person would like to open it: colours, names, where it comes from."""
        classes = self._rule.classes
        colours = None
        if self._dtype == "uint8":
            colours = np.zeros((256, 3), np.uint8)
            colours[classes.codes()] = [each.colour for each in classes.classes]
        names = {f"CODE_{each.code}": each.name for each in classes.classes}
        return RasterSpec(
            dtype=self._dtype,
            crs=info.crs,
            transform=info.transform,
            nodata=int(self._rule.stored()[IGNORE]),
            colour_table=colours,
            tags={**names, "RASTERISED": polygons.name},
        )

    def crs_name(self, polygons: Path) -> str:
        """The CRS of a file of polygons, for people."""
        crs = self._file(polygons).crs
        return "no CRS" if crs is None else crs_title(crs)

    def remark(self, polygons: Path) -> str:
        """A line on features of a file that label nothing; empty if there are none."""
        return self._file(polygons).remark()

    def tidy(self) -> None:
        """Remove what was made of older states of the same polygons long ago, and what killed calls left."""
        if not self._began:
            return
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                old = path.name[: path.name.rfind("-") + 1] in self._starts and path not in self._kept
                if old and time.time() - path.stat().st_mtime > _OUTDATED_SECONDS:
                    path.unlink(missing_ok=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _image_state(image: Path) -> list[int]:
    """Size and time of change; of a remote image as its server says them."""
    try:
        state = image.stat()
    except OSError as error:
        where = image.address if isinstance(image, RemotePath) else image
        raise DatasetError(f"{where}: cannot open it: {error.strerror or error}") from None
    return [state.st_size, state.st_mtime_ns]
