"""Folder of packs: what is in it, written by several trainings at once, limited in size.

A pack in use is locked (flock) by the process that reads it; whoever makes room leaves it alone. What killed
processes left half-written is removed once no living one writes. Where a file system has no locks, all stays.
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

from segmenter.base.errors import DatasetError, OutputError
from segmenter.base.files import gibibytes
from segmenter.config.datasets import CacheCodec
from segmenter.tiles.cache.file import DamagedError, Kind, Pack, PackedArray, PackWriter

FOLDER = "packed"
_NAME = re.compile(r"(image|label)-[0-9a-f]{16}-[0-9a-f]{8}\.pack")
_ASIDE = re.compile(r"\.(image|label)-[0-9a-f]{16}-[0-9a-f]{8}\.pack\.part")


class PackFolder:
    """The packs of one dataset, as they were when last looked at; safe to use from several threads.

    Args:
        cache: folder that the packs' folder lies in.
        shared: `cache` is one of several below a folder that a limit is for.
    """

    def __init__(self, cache: Path, *, shared: bool = False) -> None:
        self.path, self._shared = cache / FOLDER, shared
        self._packs: dict[str, Pack] = {}
        self._found: dict[str, PackedArray] = {}
        self._held: dict[str, int] = {}
        self.damaged: list[Path] = []

    def __getstate__(self) -> dict[str, object]:
        """Pickle without locks: this process keeps its own on the packs."""
        return {**vars(self), "_packs": {}, "_found": {}, "_held": {}}

    def look(self) -> None:
        """Take notice of what is there now; of two packs with the same scene the newer counts."""
        names = sorted(path.name for path in _packs_in(self.path))
        for name in [name for name in names if name not in self._packs]:
            try:
                self._packs[name] = Pack(self.path / name)
            except DamagedError:
                if self.path / name not in self.damaged:
                    self.damaged.append(self.path / name)
            except OSError:  # it may just be removed
                continue
        self._packs = {name: self._packs[name] for name in names if name in self._packs}
        self._found = {
            one.key: PackedArray(pack, one) for pack in self._packs.values() for one in pack.contents
        }

    def find(self, key: str) -> PackedArray | None:
        """Return a scene's image or class map by its key; None if no pack has it."""
        return self._found.get(key)

    def hold(self, packs: Iterable[Pack]) -> bool:
        """Keep others from removing packs while this process lives, and note that they were used.

        Returns:
            Whether all are there still; where not, `look` again.
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
        """Give the packs back."""
        while self._held:
            os.close(self._held.popitem()[1])

    def __del__(self) -> None:
        self.release()

    # --------------------------------------------------------------------------------- writing

    def writer(self, kind: Kind, codec: CacheCodec) -> PackWriter:
        """Return a new pack under a unique name.

        Raises:
            OSError: it cannot be written there.
        """
        name = f"{kind}-{time.time_ns():016x}-{secrets.token_hex(4)}.pack"
        return PackWriter(self.path / name, self.path / f".{name}.part", kind, codec)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep others from sweeping while something is written; the folder is made.

        Raises:
            DatasetError: it cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(self._lock_file.open("a"))
            except OSError as error:
                raise DatasetError(f"{self.path}: cannot write there: {error.strerror}") from None
            with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there
                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @property
    def _lock_file(self) -> Path:
        return self.path.with_name(f".{FOLDER}.lock")

    def sweep(self) -> int:
        """Remove half-written packs that killed processes left; gives their number.

        Where another process is writing, or that is unknown, all stay until a later start.
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
        """Remove packs that are none, or of another format, unless they are in use; gives their number."""
        removed = sum(_removed(path) for path in self.damaged)
        self.damaged = []
        return removed

    def remove_replaced(self) -> int:
        """Remove packs of which all is in newer ones, unless they are in use; gives the bytes removed."""
        used = {one.pack.path for one in self._found.values()}
        old = [pack for pack in self._packs.values() if pack.path not in used]
        removed = sum(pack.bytes for pack in old if _removed(pack.path))
        self.look()
        return removed

    def make_room(self, needed: int, limit: int | None) -> int:
        """Remove packs that were not used for longest, until there is room; gives the bytes removed.

        Args:
            needed: bytes that are about to be written.
            limit: of all packs, in bytes; None: what the disk has.

        Raises:
            DatasetError: there is no room even so.
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
                f"{self.path}: decoding takes {gibibytes(needed)}, {gibibytes(free)} are free; free some, "
                "name another folder in dataset.cache, or convert the scenes to tiled GeoTIFF"
            )
        return removed

    def _under_the_limit(self) -> list[Path]:
        """Return all packs that one limit covers: of each dataset in a folder that the recipe names."""
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
    """Remove a pack that no process reads; gives whether it is gone."""
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
