"""Folder of packs: listing, writing by several trainings at once, size limit.

A process locks the packs that it reads; locked packs are never removed to make room (`KeyedFolder`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segmenter.base.errors import DatasetError, OutputError
from segmenter.base.files import file_state, gibibytes
from segmenter.base.keyed_folder import KeyedFolder
from segmenter.base.sealed import digest
from segmenter.base.threads import in_threads
from segmenter.config.datasets import CacheCodec
from segmenter.grid.geometry import Size
from segmenter.grid.scenes import Dataset, Scene
from segmenter.grid.windows import row_strips
from segmenter.raster import LabelRaster, RasterInfo, open_raster
from segmenter.raster.stamps import stamp_of
from segmenter.raster.validity import void_values
from segmenter.tiles.cache.file import (
    STRIP_ROWS,
    CachedArray,
    CacheFile,
    CacheWriter,
    DamagedError,
    Kind,
    Rows,
)

FOLDER = "packed"
_NAME = re.compile(r"(image|label)-[0-9a-f]{16}-[0-9a-f]{8}\.pack")
_ASIDE = re.compile(r"\.(image|label)-[0-9a-f]{16}-[0-9a-f]{8}\.pack\.part")


class CacheFolder(KeyedFolder):
    """Packs of one dataset, as of the last `look`; safe to use from several threads.

    Args:
        cache: parent of the packs' folder.
        shared: True if the size limit covers several such folders with one parent.
    """

    def __init__(self, cache: Path, *, shared: bool = False) -> None:
        super().__init__(cache / FOLDER)
        self._shared = shared
        self._packs: dict[str, CacheFile] = {}
        self._found: dict[str, CachedArray] = {}
        self.damaged: list[Path] = []

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_packs": {}, "_found": {}}

    def look(self) -> None:
        """List the packs again; if two packs have the same scene, use the newer one."""
        names = sorted(path.name for path in self.files() if _NAME.fullmatch(path.name))
        for name in [name for name in names if name not in self._packs]:
            try:
                self._packs[name] = CacheFile(self.path / name)
            except DamagedError:
                if self.path / name not in self.damaged:
                    self.damaged.append(self.path / name)
            except OSError:  # it may just be removed
                continue
        self._packs = {name: self._packs[name] for name in names if name in self._packs}
        self._found = {
            one.key: CachedArray(pack, one) for pack in self._packs.values() for one in pack.contents
        }

    def find(self, key: str) -> CachedArray | None:
        """Return a scene's image or class map by its key; None if no pack has it."""
        return self._found.get(key)

    # --------------------------------------------------------------------------------- writing

    def writer(self, kind: Kind, codec: CacheCodec) -> CacheWriter:
        """Return a writer of a new pack with a unique name (OSError: the file cannot be written there)."""
        name = f"{kind}-{time.time_ns():016x}-{secrets.token_hex(4)}.pack"
        return CacheWriter(self.path / name, self.path / f".{name}.part", kind, codec)

    def remove_unfinished(self) -> int:
        """Remove unfinished packs of killed processes; return their number."""
        return self.sweep(_ASIDE.fullmatch)

    def remove_damaged(self) -> int:
        """Remove damaged packs and packs of another format, unless in use; return their number."""
        removed = sum(self.remove(path) for path in self.damaged)
        self.damaged = []
        return removed

    def remove_replaced(self) -> int:
        """Remove packs whose scenes are all in newer packs, unless in use; return the bytes removed."""
        used = {one.pack.path for one in self._found.values()}
        old = [pack for pack in self._packs.values() if pack.path not in used]
        removed = sum(pack.bytes for pack in old if self.remove(pack.path))
        self.look()
        return removed

    def make_room(self, needed: int, limit: int | None) -> int:
        """Remove the least recently used packs until there is room; return the bytes removed.

        Args:
            needed: bytes to be written.
            limit: limit in bytes for all packs; None: the disk's space.

        Raises:
            DatasetError: there is still no room.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        sizes = {path: path.stat() for path in self._under_the_limit()}
        total, removed = sum(status.st_size for status in sizes.values()), 0
        if limit is not None:
            for path in sorted(sizes, key=lambda path: sizes[path].st_mtime_ns):
                if total + needed - removed <= limit:
                    break
                if self.remove(path):
                    removed += sizes[path].st_size
            if total + needed - removed > limit:
                used = total - removed
                raise DatasetError(
                    f"{self.path}: decoding takes {gibibytes(needed)}, dataset.cache_limit is "
                    f"{gibibytes(limit)}" + (f", of which {gibibytes(used)} are in use" if used else "")
                    + "; raise it, or convert the scenes to tiled GeoTIFF"
                )  # fmt: skip
        free = shutil.disk_usage(self.path).free
        if needed > free:
            raise OutputError(
                self.path,
                f"decoding takes {gibibytes(needed)}, {gibibytes(free)} are free",
                remedy="free some, name another folder in dataset.cache, or convert the scenes to tiled "
                "GeoTIFF",
            )
        return removed

    def _under_the_limit(self) -> list[Path]:
        """Return all packs under one limit: those of all datasets in a folder that the recipe names."""
        folders = self.path.parents[1].glob(f"*/{FOLDER}") if self._shared else [self.path]
        return [
            path for folder in folders for path in KeyedFolder(folder).files() if _NAME.fullmatch(path.name)
        ]


_VALIDITY = 3
"""Version of the validity rule: scenes packed under another one are packed again."""
_PACK_BYTES = 1 << 30
"""Size in bytes at which a pack is finished: a kill loses at most this for each thread."""
_MOST_PACKS = 128
"""Packs of one packing, about: each takes two of the 1024 files that a process may open."""


@dataclass(frozen=True)
class PackJob:
    """A scene's image or class map to pack.

    Attributes:
        bytes: size without compression.
        nodata: nodata value of each band of an image, from `raster.validity.void_values`.
    """

    scene: Scene
    kind: Kind
    key: str
    size: Size
    bytes: int
    nodata: tuple[float | None, ...] = ()

    @classmethod
    def of_image(cls, dataset: Dataset, scene: Scene, info: RasterInfo) -> PackJob:
        """Make the job of an image; `info` is its header."""
        bands = dataset.bands or [b for b in range(1, info.count + 1) if b not in info.alpha]
        wide = len(bands) * np.dtype(info.dtype).itemsize
        key = key_of(dataset, scene, "image") or ""
        return cls(scene, "image", key, info.size, info.size.pixels * wide, void_values(info, bands))

    @classmethod
    def of_label(cls, dataset: Dataset, scene: Scene, size: Size) -> PackJob:
        """Make the job of a label; `size` is that of the scene."""
        return cls(scene, "label", key_of(dataset, scene, "label") or "", size, size.pixels)


def bytes_read(jobs: Sequence[PackJob]) -> int:
    """Return the bytes of the files that are packed."""
    paths = [job.scene.image if job.kind == "image" else job.scene.label for job in jobs]
    return sum(path.stat().st_size for path in paths if path is not None)


def key_of(dataset: Dataset, scene: Scene, kind: Kind) -> str | None:
    """Return a key of everything that a scene's pixels depend on: the file's state, and decoding settings.

    A label's key also has the class map's values, but not its names. None if there is no such file.
    """
    path = scene.image if kind == "image" else scene.label
    if path is None:
        return None
    stamp = stamp_of(path)
    if stamp.file[1] < 0:
        return None
    if kind == "image":
        rule: tuple[object, ...] = _VALIDITY, dataset.bands
    else:
        classes = dataset.classes
        signs = [one.code if classes.encoding == "codes" else one.colour for one in classes.classes]
        rule = classes.encoding, signs, classes.ignored, classes.nodata
        if any(one.also for one in classes.classes):
            rule = *rule, [one.also for one in classes.classes]
    where = os.path.relpath(str(path), str(dataset.root)), stamp.key
    return digest([kind, where, rule], 24)


def rows_of(dataset: Dataset, scene: Scene, kind: Kind) -> Iterator[Rows]:
    """Yield a scene's image with its validity, or its class ids, in strips of rows from the top."""
    if kind == "image":
        with open_raster(scene.image, dataset.bands) as raster:
            for strip in row_strips(raster.info.size, STRIP_ROWS * raster.info.size.width):
                yield raster.read(strip)
    elif scene.label is not None:
        with LabelRaster(scene.label, dataset.classes) as label:
            for strip in row_strips(label.info.size, STRIP_ROWS * label.info.size.width):
                yield label.ids(strip), None


def pack(
    dataset: Dataset,
    folder: CacheFolder,
    jobs: Sequence[PackJob],
    *,
    progress: bool = True,
    advance: Callable[[PackJob, int], None] = lambda job, pixels: None,
    usable: Callable[[CachedArray], bool] = lambda array: True,
    workers: int | None = None,
) -> None:
    """Decode scenes into packs; the caller has made room for them.

    Args:
        advance: called with the number of pixels of every strip written, from any thread.
        usable: returns True if the result of another process, packed in the meantime, can be used.
        workers: number of threads; None: number of cores.

    Raises:
        OutputError: the disk is full; SegmenterError: a scene cannot be read. Completed packs stay.
    """
    if not jobs:
        return
    full = max(_PACK_BYTES, sum(job.bytes for job in jobs) // _MOST_PACKS)
    with folder.writing(), _Writers(dataset, folder, full, advance, usable) as writers:
        for _ in in_threads(
            writers.add,
            jobs,
            description="decoding scenes once",
            unit="file",
            workers=workers,
            progress=progress,
            at_end=writers.stop,
        ):
            pass
    folder.look()


class _Writers:
    """Packs being written: one of each kind per thread."""

    def __init__(
        self,
        dataset: Dataset,
        folder: CacheFolder,
        full: int,
        advance: Callable[[PackJob, int], None],
        usable: Callable[[CachedArray], bool],
    ) -> None:
        """Store the settings; a pack is finished once it has `full` bytes."""
        self._dataset, self._folder, self._full = dataset, folder, full
        self._advance, self._usable = advance, usable
        self._lock, self._stopped = threading.Lock(), False
        self._waiting: dict[Kind, list[CacheWriter]] = {"image": [], "label": []}
        self._seen = file_state(folder.path)

    def __enter__(self) -> _Writers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the packs with complete scenes; an earlier error takes precedence over one here."""
        for writer in [*self._waiting["image"], *self._waiting["label"]]:
            try:
                with _writing(self._folder.path, writer):
                    writer.finish()
            except OutputError:
                if kind is None:
                    raise

    def stop(self) -> None:
        """Abandon scenes being packed: after an error or Ctrl-C, nobody waits for large ones."""
        self._stopped = True

    def add(self, job: PackJob) -> None:
        """Pack one scene, unless another training was faster."""
        if self._is_there(job):
            return
        writer = self._take(job.kind)
        try:
            with _writing(self._folder.path, writer):
                writer.add(job.key, job.size, self._rows(job), job.nodata)
                if writer.bytes >= self._full:
                    writer.finish()
                    return
        except OutputError:
            raise
        except BaseException:
            self._give(job.kind, writer)
            raise
        self._give(job.kind, writer)

    def _is_there(self, job: PackJob) -> bool:
        with self._lock:
            now = file_state(self._folder.path)
            if now != self._seen:
                self._folder.look()
                self._seen = now
            array = self._folder.find(job.key)
        return array is not None and self._usable(array)

    def _take(self, kind: Kind) -> CacheWriter:
        with self._lock:
            if self._waiting[kind]:
                return self._waiting[kind].pop()
        with _writing(self._folder.path, None):
            return self._folder.writer(kind, self._dataset.cache_codec)

    def _give(self, kind: Kind, writer: CacheWriter) -> None:
        with self._lock:
            self._waiting[kind].append(writer)

    def _rows(self, job: PackJob) -> Iterator[Rows]:
        for pixels, valid in rows_of(self._dataset, job.scene, job.kind):
            if self._stopped:
                raise DatasetError(self._folder.path, "interrupted")  # nobody hears of it
            yield pixels, valid
            self._advance(job, pixels.shape[0] * pixels.shape[1])


@contextlib.contextmanager
def _writing(folder: Path, writer: CacheWriter | None) -> Iterator[None]:
    """Convert system errors in the block to a one-line OutputError; discard the affected pack."""
    try:
        yield
    except OSError as error:
        if writer is not None:
            writer.discard()
        raise OutputError(
            folder,
            f"cannot write it: {error.strerror}",
            remedy="is the disk full? Make room, or convert the scenes to tiled GeoTIFF, which needs no "
            "copies",
        ) from None
