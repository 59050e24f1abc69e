"""Folder of packs: listing, writing by several trainings at once, size limit.

A process that reads a pack locks it (flock); locked packs are never removed to make room. Unfinished files of
killed processes are removed once no process writes. On a file system without locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from segmenter.base.errors import DatasetError, OutputError, failing
from segmenter.base.files import gibibytes
from segmenter.config.datasets import CacheCodec
from segmenter.tiles.cache.file import CachedArray, CacheFile, CacheWriter, DamagedError, Kind

FOLDER = "packed"
_NAME = re.compile(r"(image|label)-[0-9a-f]{16}-[0-9a-f]{8}\.pack")
_ASIDE = re.compile(r"\.(image|label)-[0-9a-f]{16}-[0-9a-f]{8}\.pack\.part")


class CacheFolder:
    """Packs of one dataset, as of the last `look`; safe to use from several threads.

    Args:
        cache: parent of the packs' folder.
        shared: True if the size limit covers several such folders with one parent.
    """

    def __init__(self, cache: Path, *, shared: bool = False) -> None:
        self.path, self._shared = cache / FOLDER, shared
        self._packs: dict[str, CacheFile] = {}
        self._found: dict[str, CachedArray] = {}
        self._held: dict[str, int] = {}
        self.damaged: list[Path] = []

    def __getstate__(self) -> dict[str, object]:
        """Pickle without locks: they belong to this process."""
        return {**vars(self), "_packs": {}, "_found": {}, "_held": {}}

    def look(self) -> None:
        """List the packs again; if two packs have the same scene, use the newer one."""
        names = sorted(path.name for path in _packs_in(self.path))
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

    def hold(self, packs: Iterable[CacheFile]) -> bool:
        """Lock packs against removal for the life of this process, and mark them as used.

        Returns:
            True if all still exist; if not, call `look` again.
        """
        for pack in packs:
            if pack.path.name in self._held:
                continue
            try:
                handle = os.open(pack.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return False
            with contextlib.suppress(OSError):  # without locks nobody removes any
                fcntl.flock(handle, fcntl.LOCK_SH)
            if not _same(handle, pack.path):
                os.close(handle)
                return False
            self._held[pack.path.name] = handle
            with contextlib.suppress(OSError):  # one that may only be read
                os.utime(pack.path)
        return True

    def release(self) -> None:
        """Release the locks of all packs."""
        while self._held:
            os.close(self._held.popitem()[1])

    def __del__(self) -> None:
        self.release()

    # --------------------------------------------------------------------------------- writing

    def writer(self, kind: Kind, codec: CacheCodec) -> CacheWriter:
        """Return a writer of a new pack with a unique name.

        Raises:
            OSError: the file cannot be written there.
        """
        name = f"{kind}-{time.time_ns():016x}-{secrets.token_hex(4)}.pack"
        return CacheWriter(self.path / name, self.path / f".{name}.part", kind, codec)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Create the folder, and keep other processes from `sweep` during the block.

        Raises:
            DatasetError: the folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            with failing(DatasetError, self.path, "cannot write there"):
                self.path.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(self._lock_file.open("a"))
            with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there
                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @property
    def _lock_file(self) -> Path:
        return self.path.with_name(f".{FOLDER}.lock")

    def sweep(self) -> int:
        """Remove unfinished packs of killed processes; return their number.

        If another process is writing, or that is unknown, nothing is removed until a later start.
        """
        left = [path for path in _files_in(self.path) if _ASIDE.fullmatch(path.name)]
        if not left:
            return 0
        try:
            with self._lock_file.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in left:
                    path.unlink(missing_ok=True)
        except OSError:
            return 0
        return len(left)

    def remove_damaged(self) -> int:
        """Remove damaged packs and packs of another format, unless in use; return their number."""
        removed = sum(_removed(path) for path in self.damaged)
        self.damaged = []
        return removed

    def remove_replaced(self) -> int:
        """Remove packs whose scenes are all in newer packs, unless in use; return the bytes removed."""
        used = {one.pack.path for one in self._found.values()}
        old = [pack for pack in self._packs.values() if pack.path not in used]
        removed = sum(pack.bytes for pack in old if _removed(pack.path))
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
                if path.name not in self._held and _removed(path):
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
        return [path for folder in folders for path in _packs_in(folder)]


def _files_in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _packs_in(folder: Path) -> list[Path]:
    return [path for path in _files_in(folder) if _NAME.fullmatch(path.name)]


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _removed(path: Path) -> bool:
    """Remove a pack that no process reads; return True if it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
