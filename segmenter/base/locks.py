"""File locks of the operating system (flock): released when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

_NONE_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
"""Errors of file systems without locks: Lustre mounted without them, some of FUSE, SMB and NFS."""


class FileLock:
    """Lock on a file that serves no other purpose.

    The file is deleted when the lock is released; after a kill it stays, empty, until the next lock.

    Attributes:
        missing: reason why the file system has no locks, set by `take`; None if it has. Without locks, other
            processes are not kept out, and no file stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.missing: str | None = None
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock at once, or fail.

        Raises:
            BlockingIOError: another process has the lock.
            OSError: the lock file cannot be made.
        """
        self.missing = None
        while self._handle is None and self.missing is None:
            self._handle = self._try()

    def _try(self) -> int | None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed the file in between: then this is a lock on nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                    kept, handle = handle, -1
                    return kept
        except BlockingIOError:
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.unlink()
            if error.errno not in _NONE_HERE:
                raise
            self.missing = error.strerror
        finally:
            if handle >= 0:
                os.close(handle)
        return None

    def give_back(self) -> None:
        """Release the lock, if it was taken."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(handle)
