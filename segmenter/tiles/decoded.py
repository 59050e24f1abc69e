"""Decoded copies: a scene's pixels as three plain arrays on the disk, whole or not at all, checked when read.

    HASH/image.npy valid.npy label.npy    (H, W, C), (H, W) and (H, W), mapped into memory
    HASH/copy.json                        types, shapes, and a CRC-32 of every 128 rows of each

Checking whole copies at each start would read all of the data, which may be 200 GB. So rows are checked when
a process reads them for the first time: over an epoch, which reads all of them anyway, that takes one pass of
CRC-32 (1.2 GB/s on one core). What is damaged is decoded anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tqdm import tqdm

from segmenter.errors import DatasetError, OutputError, SegmenterError
from segmenter.files import read_regular, write_whole
from segmenter.geometry import Size
from segmenter.sealed import sealed, unsealed_text

BLOCK_ROWS = 128
"""Rows with one checksum: few, so that a tile waits for little more than itself."""
_FORMAT = 2
"""1: without checksums."""
_FACTS = "copy.json"
_NAMES = ("image", "valid", "label")
_ASIDE = re.compile(r"\.[0-9a-f]{24}\.\w+")

Rows = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]
"""Image (h, W, C), validity (h, W), class ids (h, W)."""
Count = Annotated[int, Field(ge=0, lt=1 << 62)]


class _Array(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    dtype: str = Field(pattern=r"^[<|][buif][1248]$")
    shape: tuple[Count, ...]
    offset: Count
    crc: tuple[Count, ...]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal[2]
    rows: Annotated[int, Field(ge=1, le=1 << 20)]
    image: _Array
    valid: _Array
    label: _Array

    @property
    def arrays(self) -> dict[str, _Array]:
        return {"image": self.image, "valid": self.valid, "label": self.label}


@dataclass
class _Opened:
    """The arrays of a copy, mapped, and which of their blocks of rows were found whole."""

    facts: _Facts
    arrays: list[NDArray[Any]]
    checked_N: NDArray[np.bool_]

    def is_whole(self, first: int, stop: int) -> bool:
        """Whether rows first … stop are what was written; each block is looked at once."""
        rows = self.facts.rows
        for block in range(first // rows, -(-stop // rows) if first < stop else 0):
            if self.checked_N[block]:
                continue
            part = slice(block * rows, (block + 1) * rows)
            for array, said in zip(self.arrays, self.facts.arrays.values(), strict=True):
                if zlib.crc32(array[part].data) != said.crc[block]:
                    return False
            self.checked_N[block] = True
        return True


class DecodedScene:
    """The copy of one scene; safe to read from several threads.

    Args:
        folder: of the copy; its name depends on what it was made from.
        size: of the scene.
        decode: gives the scene's rows from the top, in bands of a multiple of `BLOCK_ROWS` but for the last.
    """

    def __init__(self, folder: Path, size: Size, decode: Callable[[], Iterator[Rows]]) -> None:
        self.folder, self._size, self._decode = folder, size, decode
        self._opened: _Opened | None = None
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        """Whether there is anything in the copy's place, whole or not."""
        return self.folder.is_dir()

    @property
    def exists(self) -> bool:
        """Whether the copy is there, with files of the right sizes; what they hold is checked when read."""
        return self._facts() is not None

    def rows(self, first: int, stop: int) -> Rows:
        """Image, validity and class ids of the scene, mapped: (H, W, C), (H, W), (H, W).

        Args:
            first, stop: the rows that will be read, which are whole; others may not be.

        Raises:
            DatasetError: they are damaged again right after they were decoded anew.
            SegmenterError: they are damaged, and cannot be decoded anew.
        """
        for attempt in range(2):
            opened = self._open()
            if opened is not None and opened.is_whole(first, stop):
                image, valid, label = opened.arrays
                return image, valid, label
            if attempt == 0:
                self._renew(opened)
        raise DatasetError(f"{self.folder}: damaged again right after it was decoded; is the disk failing?")

    def write(self, *, anew: bool = False) -> None:
        """Decode the scene into a folder that gets its name when it is complete.

        Args:
            anew: also where a copy is there.

        Raises:
            OutputError: there is no space; what was half-written is removed.
            SegmenterError: the scene cannot be read.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_unswept(self.folder.parent))
                aside = self._aside()
                aside.mkdir()
            except OSError as error:
                raise DatasetError(f"{self.folder.parent}: cannot write there: {error.strerror}") from None
            stack.callback(shutil.rmtree, aside, ignore_errors=True)
            try:
                self._write_arrays(aside)
                self._place(aside, anew)
            except OSError as error:
                raise OutputError(
                    f"{self.folder}: cannot write it: {error.strerror}; is the disk full? Make room, or "
                    "convert the scenes to tiled GeoTIFF, which needs no copies"
                ) from None

    def _facts(self) -> _Facts | None:
        """The copy's description of itself; None where it is not true, or there is none."""
        try:
            text = unsealed_text(read_regular(self.folder / _FACTS))
            facts = _Facts.model_validate_json(text or b"")
            for name, array in facts.arrays.items():
                self._check(array, facts.rows, name)
                if (self.folder / f"{name}.npy").stat().st_size != array.offset + array.bytes:
                    return None
        except (SegmenterError, ValidationError, ValueError, OSError):
            return None
        return facts

    def _check(self, array: _Array, rows: int, name: str) -> None:
        """Raises ValueError for an array that cannot be this scene's."""
        kinds = {"valid": "|b1", "label": "|u1"}
        fits = array.shape[:2] == (self._size.height, self._size.width)
        fits &= len(array.shape) == (3 if name == "image" else 2)
        fits &= len(array.crc) == -(-self._size.height // rows)
        if not fits or array.dtype != kinds.get(name, array.dtype):
            raise ValueError(f"{name} is of another scene")

    def _open(self) -> _Opened | None:
        """The copy, mapped once; None where it is not whole."""
        with self._lock:
            if self._opened is None and (facts := self._facts()) is not None:
                with contextlib.suppress(OSError, ValueError):  # it may just be removed
                    arrays = [
                        np.memmap(self.folder / f"{name}.npy", said.dtype, "r", said.offset, said.shape)
                        for name, said in facts.arrays.items()
                    ]
                    self._opened = _Opened(facts, [*arrays], np.zeros(len(facts.image.crc), np.bool_))
            return self._opened

    def _renew(self, damaged: _Opened | None) -> None:
        """Decode the scene anew, unless another thread has done so."""
        with self._lock:
            if self._opened is damaged:
                tqdm.write(f"{self.folder}: a damaged copy, the scene is decoded anew", file=sys.stderr)
                self.write(anew=True)
                self._opened = None

    def _write_arrays(self, folder: Path) -> None:
        """Written, not mapped: a full disk is an error here, and a signal there that ends the process."""
        writers: list[_Writer] = []
        with contextlib.ExitStack() as stack:
            for parts in self._decode():
                if not writers:
                    for name, part in zip(_NAMES, parts, strict=True):
                        file = stack.enter_context((folder / f"{name}.npy").open("wb"))
                        writers.append(_Writer(file, (self._size.height, *part.shape[1:]), part.dtype))
                for writer, part in zip(writers, parts, strict=True):
                    writer.add(part)
            facts = {name: writer.finished() for name, writer in zip(_NAMES, writers, strict=True)}
        text = sealed(json.dumps({"format": _FORMAT, "rows": BLOCK_ROWS, **facts}))
        write_whole(folder / _FACTS, text.encode())

    def _aside(self) -> Path:
        """A name beside the copy's that nobody else has, and that `sweep` knows."""
        return self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(8)}")

    def _place(self, aside: Path, anew: bool) -> None:
        """Give a complete folder its name; what has that name and is not wanted goes."""
        if not anew and self.exists:  # another training was faster
            return
        if self.is_there:
            old = self._aside()
            try:
                with contextlib.suppress(FileNotFoundError):  # another training was faster
                    self.folder.rename(old)
            finally:
                shutil.rmtree(old, ignore_errors=True)
        try:
            aside.rename(self.folder)
        except OSError:
            if not self.exists:  # else another training was faster
                raise


class _Writer:
    """Writes an array's rows as .npy, and takes their checksums."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._file, self._shape, self._dtype = file, shape, dtype
        self._crc: list[int] = []
        self._rows = 0
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        self._offset = file.tell()

    def add(self, rows: NDArray[Any]) -> None:
        """The next rows."""
        assert self._rows % BLOCK_ROWS == 0, "only the last strip may have another number of rows"
        if rows.shape[1:] != self._shape[1:] or rows.dtype != self._dtype:
            raise DatasetError(f"{self._file.name}: the scene has changed while it was decoded; start again")
        rows = np.ascontiguousarray(rows)
        self._crc += [zlib.crc32(rows[i : i + BLOCK_ROWS].data) for i in range(0, len(rows), BLOCK_ROWS)]
        self._file.write(rows.data)
        self._rows += len(rows)

    def finished(self) -> dict[str, Any]:
        """The copy's description of the array, once it is on the disk."""
        if self._rows != self._shape[0]:
            raise DatasetError(f"{self._file.name}: the scene has changed while it was decoded; start again")
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"dtype": self._dtype.str, "shape": self._shape, "offset": self._offset, "crc": self._crc}


# ----------------------------------------------------------------------- what killed processes leave


@contextlib.contextmanager
def _unswept(folder: Path) -> Iterator[None]:
    """Keep others from sweeping a folder of copies, which is made, while something is written there.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_file(folder).open("a") as file:
        with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def sweep(folder: Path) -> int:
    """Remove half-written copies that killed processes left; gives their number.

    Where another process is writing a copy, or that is unknown, all stay until a later start.
    """
    if not folder.is_dir():
        return 0
    left = [path for path in folder.iterdir() if _ASIDE.fullmatch(path.name) and path.is_dir()]
    if not left:
        return 0
    try:
        with _lock_file(folder).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in left:
                shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return 0
    return len(left)
