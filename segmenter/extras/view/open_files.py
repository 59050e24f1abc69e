"""Open files of a page: handles that several threads share, each used by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from segmenter.base.errors import ChangedInputError
from segmenter.base.files import Closing
from segmenter.raster.stamps import stamp_of

File = TypeVar("File", bound=Closing)
_KEPT_OPEN = 2


class OpenFiles(Generic[File]):
    """Handles of one file.

    Attributes:
        stamp: state of the file when the page was made.
    """

    def __init__(self, path: Path, opening: Callable[[], File]) -> None:
        self.path, self.stamp, self._opening = path, stamp_of(path), opening
        self._idle: list[File] = []
        self._lock = threading.Lock()

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
        with self._lock:
            own = self._idle.pop() if self._idle else None
        own = own or self._opening()
        try:
            yield own
        finally:
            with self._lock:
                if stays := len(self._idle) < _KEPT_OPEN:
                    self._idle.append(own)
            if not stays:
                own.close()

    def close(self) -> None:
        """Close the handles that nobody uses."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()
