"""Writing small files whole (law 8, *nothing half-written is ever visible*), and what files need besides."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from segmenter.errors import SegmenterError


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all; an older file stays until the new one is complete.

    Raises:
        SegmenterError: where the folder is missing or cannot be written, or the disk is full.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SegmenterError(f"{path}: cannot write there: {error.strerror}") from None
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o666 & ~_umask())  # mkstemp's 0600 would hide the result from colleagues
        aside.replace(path)
    except OSError as error:
        raise SegmenterError(f"{path}: cannot write it: {error.strerror}; is the disk full?") from None
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """The number of a file opened with `os.open`'s flags; a link in its place is not followed but refused."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    with opened(path, os.O_RDONLY) as handle:
        os.fsync(handle)


def _umask() -> int:
    """The process's file mode mask; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
