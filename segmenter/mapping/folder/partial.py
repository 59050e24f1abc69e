"""Partial maps: computed windows of a large raster, saved beside its unfinished map as `.NAME.partial`.

Each computed window is appended with a checksum before it is used otherwise. After a kill the same call reads
the windows back, up to the last complete strip, and passes them to the writers in the same order, as if just
computed: the files come out the same, byte for byte. The file takes the size of the uncompressed results (one
byte a pixel for a class map) and is removed when the outputs are in place.

A window is a line of JSON, with checksums of itself and of the arrays, followed by the arrays' bytes. Windows
after the first one that is damaged or out of order are computed again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.base.sealed import seal, unseal
from segmenter.grid.geometry import Window
from segmenter.inference.events import Strips

LEAST_PIXELS = 1 << 22
"""Smaller rasters are done again: that takes seconds, and a file more for each tile of a folder too."""
MUCH_PIXELS = 1 << 26
"""From this many on, computed pixels are kept if the raster cannot be read on: a disk may be at fault."""
_LONGEST_LINE = 1 << 16
_FORMAT = 2

Arrays = dict[str, NDArray[Any]]


class PartialMap:
    """Finished windows of one raster.

    Args:
        output: path of its map.
        key: digest of task, model and options; windows of another key are ignored.
        columns: columns to map.

    Attributes:
        rows: rows of the columns that were complete when it was opened.
        pixels: number of pixels in the file.
    """

    def __init__(self, output: Path, key: str, columns: Strips) -> None:
        self.path = output.with_name(f".{output.name}.partial")
        self.rows = self.pixels = 0
        self._head = json.dumps({"partial": _FORMAT, "key": key}).encode() + b"\n"
        self._columns = columns
        self._end = 0
        self._file: BinaryIO | None = None

    def recover(self) -> int:
        """Open the file and return the number of complete rows; drop everything after them."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        file = self._file = os.fdopen(handle, "r+b")
        self.rows, self._end, filled = 0, 0, 0
        if file.read(len(self._head)) == self._head:
            self._end = file.tell()
            height = 0
            for window, _ in read_windows(file, _size(file)):
                left = next(self._columns.remaining(self.rows), None)
                height = window.height if filled == 0 else height
                if left is None or height > left.height:
                    break
                if (window.row, window.col, window.height) != (left.row, left.col + filled, height):
                    break  # of columns of another width, for instance
                filled += window.width
                if filled == left.width:
                    self.rows, self._end, filled = self.rows + window.height, file.tell(), 0
        self.pixels = self._columns.pixels(self.rows)
        file.seek(self._end)
        file.truncate()
        if not self._end:
            file.write(self._head)
            file.flush()
        return self.rows

    def part_from_others(self) -> None:
        """Continue with a copy: without locks, another process may be writing to the existing file."""
        aside = self.path.with_name(f"{self.path.name}.tmp-{os.getpid()}")
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(self.path, aside, follow_symlinks=False)
                os.replace(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)

    def replay(self) -> Iterator[tuple[Window, Arrays]]:
        """Yield the complete windows in the order of their addition; exhaust it before `add`."""
        if self._file is not None:
            self._file.seek(len(self._head))
            left = self.pixels
            for window, arrays in read_windows(self._file, _size(self._file)):
                left -= window.size.pixels
                yield window, arrays
            if left:
                raise RasterError(
                    self.path, "has changed while it was read", remedy="remove it, and start again"
                )
            self._file.seek(0, os.SEEK_END)

    def add(self, window: Window, arrays: Arrays) -> None:
        """Append a window; raise OSError if the disk is full."""
        if self._file is None:
            return
        write_window(self._file, window, arrays)
        self._file.flush()
        self.pixels += window.size.pixels

    def close(self) -> None:
        """Close the file without removing it."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what a full disk did not take
                file.close()

    def remove(self) -> None:
        """Close the file and remove it."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def write_window(file: BinaryIO, window: Window, arrays: Arrays) -> None:
    """Append a window to a file: a header line, then the arrays' bytes."""
    parts = [np.ascontiguousarray(array).data.cast("B") for array in arrays.values()]
    line = {
        "window": [window.row, window.col, window.height, window.width],
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()],
        "data": _checksum(parts),
    }
    file.write(seal(json.dumps(line)).encode() + b"\n")
    for part in parts:
        file.write(part)


def read_windows(file: BinaryIO, size: int) -> Iterator[tuple[Window, Arrays]]:
    """Yield windows from the current position in a file of `size` bytes, up to the first damaged one."""
    while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
        if (record := unseal(line)) is None:
            return
        shapes = [(name, np.dtype(kind), tuple(shape)) for name, kind, shape in record["arrays"]]
        lengths = [kind.itemsize * math.prod(shape) for _, kind, shape in shapes]
        if sum(lengths) > size - file.tell():
            return
        parts = [file.read(length) for length in lengths]
        if _checksum(parts) != record["data"]:
            return
        arrays = zip(shapes, parts, strict=True)
        yield (
            Window(*record["window"]),
            {name: np.frombuffer(part, kind).reshape(shape) for (name, kind, shape), part in arrays},
        )


def _checksum(parts: Sequence[bytes | memoryview]) -> int:
    total = 0
    for part in parts:
        total = zlib.crc32(part, total)
    return total
