"""Open files of a page: handles that several threads share, each used by one thread at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from segmenter.base.errors import ChangedInputError
from segmenter.base.files import Closing
from segmenter.raster.stamps import stamp_of

File = TypeVar("File", bound=Closing)
_MOST_IDLE = 64
"""Handles that nobody uses and that stay open, of all files: a folder may have thousands of maps."""
_idle: deque[tuple[Any, Any]] = deque()
_lock = threading.Lock()


class OpenFiles(Generic[File]):
    """Handles of one file.

    Attributes:
        stamp: state of the file when the page was made.
    """

    def __init__(self, path: Path, opening: Callable[[], File]) -> None:
        self.path, self.stamp, self._opening = path, stamp_of(path), opening

    @contextmanager
    def handle(self) -> Iterator[File]:
        """Yield a handle that nobody else uses.

        Raises:
            ChangedInputError: the file is not what it was, or gone.
            RasterError: it cannot be opened.
        """
        if stamp_of(self.path) != self.stamp:
            what = "has changed" if self.path.exists() else "has been removed"
            raise ChangedInputError(self.path, f"{what} meanwhile", remedy="start `segmenter view` again")
        own = next(self._take(1), None) or self._opening()
        try:
            yield own
        finally:
            with _lock:
                _idle.append((self, own))
                spare = _idle.popleft()[1] if len(_idle) > _MOST_IDLE else None
            if spare is not None:
                spare.close()

    def _take(self, most: int) -> Iterator[File]:
        """Take handles that nobody uses, the one used last first."""
        with _lock:
            own = [each for each in reversed(_idle) if each[0] is self][:most]
            for each in own:
                _idle.remove(each)
        yield from (handle for _, handle in own)

    def close(self) -> None:
        """Close the handles that nobody uses."""
        for handle in self._take(_MOST_IDLE):
            handle.close()
