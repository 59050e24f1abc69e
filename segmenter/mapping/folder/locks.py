"""Locks of outputs: one process at a time for each."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import RasterError
from segmenter.base.locks import FileLock

_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


class OutputLock(FileLock):
    """A lock on an output, `.NAME.lock` beside it."""

    def __init__(self, output: Path) -> None:
        super().__init__(output.with_name(f".{output.name}.lock"))
        self._output = output

    def take(self) -> None:
        """Take the lock.

        Raises:
            RasterError: another process has it, or its file cannot be made.
        """
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            super().take()
        except BlockingIOError:
            raise RasterError(
                f"{self._output}: is being written by another process; left to that one"
            ) from None
        except OSError as error:
            advice = "; is there permission to write?" if error.errno in _NO_PERMISSION else ""
            raise RasterError(f"{self._output}: cannot be written: {error.strerror}{advice}") from None


class OutputLocks:
    """Locks on all files of a map, taken together: another format's map may have some of them too."""

    def __init__(self, outputs: Sequence[Path]) -> None:
        self._locks = [OutputLock(output) for output in outputs]

    @property
    def names(self) -> set[str]:
        """Of the locks' files."""
        return {lock.path.name for lock in self._locks}

    @property
    def missing(self) -> str | None:
        """Why nothing keeps another process out: the file system has no locks; None where it has."""
        return next((lock.missing for lock in self._locks if lock.missing is not None), None)

    def take(self) -> None:
        """Take all of them, or none.

        Raises:
            RasterError: another process has one, or its file cannot be made.
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
