"""Writing small files whole: law 8, *nothing half-written is ever visible*."""

from __future__ import annotations

import os
import tempfile
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


def _umask() -> int:
    """The process's file mode mask; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
