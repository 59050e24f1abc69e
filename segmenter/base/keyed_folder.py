"""Folder of cached files, each named by a key of everything that its content depends on.

A file appears when complete. One that is missing, damaged or of another format is made anew: no error of a
cache stops a program. A process locks files that it uses; locked files are never removed to make room, and
without file locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from segmenter.base.errors import DatasetError, SegmenterError, failing, plain, shorten
from segmenter.base.files import FileLock, make_folder, read_regular, write_whole
from segmenter.base.sealed import unsealed_text
from segmenter.base.terminal import say

Content = TypeVar("Content")
Errors = tuple[type[Exception], ...]
DAMAGE: Errors = (SegmenterError, OSError, ValueError, TypeError, KeyError)
"""Errors of reading a file, of JSON and of values that are not those expected."""
_MOST_BYTES = 1 << 28
"""Largest file that is read whole."""


class KeyedFolder:
    """Folder of cached files; safe for several threads and several processes.

    Attributes:
        path: the folder, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        """Name the folder."""
        self.path = path
        self._held: dict[str, FileLock] = {}

    def __getstate__(self) -> dict[str, object]:
        """Pickle without locks: they belong to this process."""
        return {**vars(self), "_held": {}}

    def load(self, name: str, read: Callable[[Path], Content], damage: Errors = DAMAGE) -> Content | None:
        """Return the content of a file; None if it is missing or, with a line on stderr, damaged.

        Args:
            read: reads the file.
            damage: its errors that mean damage.
        """
        path = self.path / name
        if not path.exists():
            return None
        try:
            return read(path)
        except damage as error:
            why = plain(shorten((str(error).splitlines() or [type(error).__name__])[0]))
            say(f"{path}: damaged, it is made anew ({why})", aside=True)
            return None

    def save(self, name: str, content: bytes) -> None:
        """Write a file completely; if that fails, print a line on stderr and go on."""
        try:
            write_whole(self.path / name, content)
        except SegmenterError as error:
            say(f"not cached: {error}", aside=True)

    # ----------------------------------------------------------------------------------- in use

    def hold(self, names: Iterable[str]) -> bool:
        """Lock files against removal for the life of this process, and mark them as used.

        Returns:
            False if one does not exist any more.
        """
        for name in names:
            if name not in self._held:
                lock = FileLock(self.path / name, shared=True, keeps_file=True)
                try:
                    lock.take()
                except OSError:
                    return False
                self._held[name] = lock
                with contextlib.suppress(OSError):  # a file that may only be read
                    os.utime(self.path / name)
        return True

    def release(self) -> None:
        """Release the locks of all files."""
        while self._held:
            self._held.popitem()[1].release()

    def __del__(self) -> None:
        self.release()

    def remove(self, path: Path) -> bool:
        """Remove a file of this or a similar folder, unless it is in use; return whether it is gone."""
        lock = FileLock(path, keeps_file=True)
        try:
            lock.take()
            if lock.missing is None:
                path.unlink()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        finally:
            lock.release()
        return lock.missing is None

    # ---------------------------------------------------------------------------------- tidying

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Create the folder, and keep other processes from `sweep` during the block."""
        lock = FileLock(self._lock_file, shared=True)
        with failing(DatasetError, self.path, "cannot write there", remedy="name another in dataset.cache"):
            make_folder(self.path)
            lock.take(wait=True)
        try:
            yield
        finally:
            lock.release()

    @property
    def _lock_file(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")

    def sweep(self, is_left: Callable[[str], object]) -> int:
        """Remove unfinished files of killed processes, by their names; return their number.

        If another process is writing, or that is unknown, nothing is removed until a later start.
        """
        left = [path for path in self.files() if is_left(path.name)]
        lock = FileLock(self._lock_file)
        if not left:
            return 0
        try:
            lock.take()
            if lock.missing is not None:
                return 0
            for path in left:
                path.unlink(missing_ok=True)
        except OSError:
            return 0
        finally:
            lock.release()
        return len(left)

    def remove_older(self, seconds: float, is_outdated: Callable[[Path], bool]) -> None:
        """Remove outdated files that have not changed for some time: until then others may use them."""
        for path in self.files():
            with contextlib.suppress(OSError):
                if is_outdated(path) and time.time() - path.stat().st_ctime > seconds:
                    path.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Return the files of the folder; empty if it cannot be read."""
        try:
            return list(self.path.iterdir())
        except OSError:
            return []


def read_sealed(path: Path) -> bytes:
    """Return the JSON text of a sealed file (ValueError: it is damaged)."""
    text = unsealed_text(read_regular(path, _MOST_BYTES))
    if text is None:
        raise ValueError("its checksum is another")
    return text
