"""One process at a time for each output."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from segmenter.errors import RasterError


class OutputLock:
    """A lock on an output, `.NAME.lock` beside it.

    It is the system's (flock): it ends with its process, however that ends, so none is ever left behind. The
    file goes when the lock is given back; after a kill it stays, empty, until the next call.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self.path = output.with_name(f".{output.name}.lock")
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            RasterError: another process has it, or there can be none.
        """
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            while self._handle is None:
                self._handle = self._try()
        except BlockingIOError:
            raise RasterError(
                f"{self._output}: is being written by another process; left to that one"
            ) from None
        except OSError as error:
            raise RasterError(
                f"{self._output}: cannot be written: {error.strerror}; is there permission to write?"
            ) from None

    def _try(self) -> int | None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed the file in between: then this is a lock on nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                    kept, handle = handle, -1
                    return kept
            return None
        finally:
            if handle >= 0:
                os.close(handle)

    def give_back(self) -> None:
        """Give the lock back; harmless where it was not taken."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(handle)


class OutputLocks:
    """Locks on all files of a map, taken together: another format's map may have some of them too."""

    def __init__(self, outputs: Sequence[Path]) -> None:
        self._locks = [OutputLock(output) for output in outputs]

    @property
    def names(self) -> set[str]:
        """Of the locks' files."""
        return {lock.path.name for lock in self._locks}

    def take(self) -> None:
        """Take all of them, or none.

        Raises:
            RasterError: another process has one, or there can be none.
        """
        try:
            for lock in self._locks:
                lock.take()
        except RasterError:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Give them back; harmless where they were not taken."""
        for lock in self._locks:
            lock.give_back()
