"""Pack file: decoded pixels of many scenes in chunks, written whole or not at all, checked when read.

    chunks        raw, or compressed with LZ4 if that is smaller
    table         16 bytes a chunk: position, length, CRC-32
    contents      sealed JSON: the scenes' keys, types, shapes and first chunks
    end           signature, position and length of the contents, CRC-32 of these fields

A scene's image has a chunk for each square of 128 pixels, row by row, followed by as many validity chunks,
empty if all pixels have data; a class map has no validity. Scenes of about a tile are one chunk. Checking
whole packs at each start would read all of the data, which may be 200 GB: a chunk is checked when a process
reads it for the first time (1.2 GB/s on one core).
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import mmap
import os
import stat
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segmenter.base.errors import DatasetError
from segmenter.base.sealed import seal, unsealed_text
from segmenter.config.datasets import CacheCodec
from segmenter.grid.geometry import Size, Window

CHUNK = 128
"""Side of a chunk: a tile of 256² at any position touches 9 of them, 2.25 times its pixels."""
STRIP_ROWS = 4 * CHUNK
"""Rows of a scene that are decoded at once."""
_WHOLE_PIXELS = 1 << 16
"""Pixels up to which a scene is one chunk: as tiles such scenes are read whole."""
FORMAT = 3
"""1 and 2 were folders of plain arrays."""
END = struct.Struct("<8sQII")
SIGNATURE = b"SEGPACK\n"
TABLE = np.dtype([("offset", "<u8"), ("length", "<u4"), ("crc", "<u4")])
_MOST_CONTENTS = 1 << 28

Kind = Literal["image", "label"]
KINDS: tuple[Kind, ...] = ("image", "label")
Rows = tuple[NDArray[Any], NDArray[np.bool_] | None]
"""Rows of a scene: (h, W, C) pixels and (h, W) validity, or (h, W) class ids and None."""
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Side = Annotated[int, Field(ge=1, lt=1 << 31)]
_WORTH = 0.9
"""Share of its bytes that a chunk may keep at most to be stored compressed."""


class DamagedError(Exception):
    """A chunk differs from the data written; the scene must be decoded again."""


class Content(BaseModel):
    """A scene's image or class map in a pack; `nodata` as in `raster.validity.void_values`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    key: str = Field(pattern=r"^[0-9a-f]{24}$")
    dtype: str = Field(pattern=r"^[<|][buif][1248]$")
    shape: Annotated[tuple[Side, ...], Field(min_length=2, max_length=3)]
    chunk: tuple[Side, Side]
    codec: CacheCodec
    first: Count
    nodata: tuple[float | None, ...] = ()

    @property
    def size(self) -> Size:
        """Size of the scene."""
        return Size(self.shape[0], self.shape[1])

    @property
    def grid(self) -> tuple[int, int]:
        """Number of chunks down and across."""
        return -(-self.shape[0] // self.chunk[0]), -(-self.shape[1] // self.chunk[1])

    def fits(self, kind: Kind, chunks: int) -> bool:
        """Return True if this content is consistent with a table of `chunks` chunks."""
        down, across = self.grid
        right = len(self.shape) == 3 if kind == "image" else len(self.shape) == 2 and self.dtype == "|u1"
        right &= self.chunk == chunk_of(self.size)
        return right and self.first + down * across * (2 if kind == "image" else 1) <= chunks


class _Contents(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal[3]
    kind: Kind
    chunks: Count
    table_crc: Count
    contents: tuple[Content, ...]


def chunk_of(size: Size) -> tuple[int, int]:
    """Return height and width of a scene's chunks."""
    if size.pixels <= _WHOLE_PIXELS and size.height <= STRIP_ROWS:
        return size.height, size.width
    return CHUNK, CHUNK


# ------------------------------------------------------------------------------------- reading


@dataclass
class _Mapped:
    """A memory-mapped pack: its bytes, its table, and flags of chunks already checked."""

    bytes: memoryview
    table: NDArray[Any]
    checked_N: NDArray[np.bool_]


class CacheFile:
    """A finished pack; safe to read from several threads, and opened by the process that first reads it.

    Attributes:
        path: path of the file.
        contents: scenes in the pack.
    """

    def __init__(self, path: Path) -> None:
        """Read the pack's contents and table position."""
        self.path, self._lock = path, threading.Lock()
        self._mapped: _Mapped | None = None
        with _open_file(path) as file:
            self.bytes = os.fstat(file.fileno()).st_size
            facts, table_at = _read_contents(file, self.bytes)
        if not path.name.startswith(facts.kind):
            raise DamagedError("has the name of another")
        self.contents, self._table_at = facts.contents, table_at
        self._chunks, self._crc = facts.chunks, facts.table_crc

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"_mapped", "_lock", "contents"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _mapped=None, _lock=threading.Lock(), contents=())

    def chunk(self, number: int) -> memoryview:
        """Return the checked, stored bytes of a chunk without a copy (DamagedError: the chunk is damaged)."""
        mapped = self._mapped or self._map()
        offset, length, crc = mapped.table[number].item()
        stored = mapped.bytes[offset : offset + length]
        if not mapped.checked_N[number]:
            if len(stored) != length or zlib.crc32(stored) != crc:
                raise DamagedError(f"chunk {number} is damaged")
            mapped.checked_N[number] = True
        return stored

    def _map(self) -> _Mapped:
        with self._lock:
            if self._mapped is None:
                try:
                    with _open_file(self.path) as file:
                        if os.fstat(file.fileno()).st_size != self.bytes:
                            raise DamagedError("has another size")
                        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                except (OSError, ValueError) as error:
                    raise DamagedError(f"cannot be read ({error})") from None
                table = np.frombuffer(content, TABLE, self._chunks, self._table_at)
                if zlib.crc32(table.data) != self._crc:
                    raise DamagedError("its table is damaged")
                self._mapped = _Mapped(content, table, np.zeros(len(table), np.bool_))
            return self._mapped


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read; treat a pipe or device, which might block, as damage."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DamagedError("is no file")
        yield file


def _read_contents(file: BinaryIO, size: int) -> tuple[_Contents, int]:
    try:
        file.seek(max(0, size - END.size))
        end = file.read(END.size)
        signature, at, length, crc = END.unpack(end)
        if signature != SIGNATURE or zlib.crc32(end[:-4]) != crc or length > _MOST_CONTENTS:
            raise DamagedError("its end is damaged")
        file.seek(at)
        facts = _Contents.model_validate_json(unsealed_text(file.read(length)) or b"")
    except (struct.error, ValidationError, ValueError, OverflowError) as error:
        raise DamagedError(f"its contents are damaged ({type(error).__name__})") from None
    table_at = at - facts.chunks * TABLE.itemsize
    if table_at < 0 or not all(one.fits(facts.kind, facts.chunks) for one in facts.contents):
        raise DamagedError("its contents do not fit together")
    return facts, table_at


class CachedArray(NamedTuple):
    """A scene's image or class map in a pack."""

    pack: CacheFile
    content: Content

    def read(self, window: Window, out: NDArray[Any] | None, valid: NDArray[np.bool_] | None = None) -> None:
        """Read pixels of a window inside the scene into `out`, and their validity into `valid`.

        Args:
            out: (h, w, C) or (h, w); None: pixels are not read.
            valid: (h, w), only for images.

        Raises:
            DamagedError: a chunk is damaged.
        """
        content = self.content
        (down, across), first, codec = content.grid, content.first, content.codec
        dtype, bands = np.dtype(content.dtype), content.shape[2:]
        cols = list(_spans(window.col, window.col_stop, content.chunk[1], content.shape[1]))
        for i, high, rows, into_rows in _spans(
            window.row, window.row_stop, content.chunk[0], content.shape[0]
        ):
            for j, wide, columns, into_columns in cols:
                number, shape = first + i * across + j, (high, wide)
                into, part = (into_rows, into_columns), (rows, columns)
                if out is not None:
                    out[into] = _expand_chunk(self.pack.chunk(number), dtype, (*shape, *bands), codec)[part]
                if valid is not None:
                    stored = self.pack.chunk(number + down * across)
                    valid[into] = _mask(stored, shape, codec)[part] if stored else True


def _spans(start: int, stop: int, step: int, size: int) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield the chunks under a range of rows (or columns): number, length, slice in it, slice of range."""
    for number in range(start // step, -(-stop // step)):
        at = number * step
        end = min(at + step, size)
        begin, last = max(at, start), min(end, stop)
        yield number, end - at, slice(begin - at, last - at), slice(begin - start, last - start)


def _mask(stored: memoryview, shape: tuple[int, int], codec: CacheCodec) -> NDArray[np.bool_]:
    pixels = shape[0] * shape[1]
    bits = _expand_chunk(stored, np.dtype(np.uint8), (-(-pixels // 8),), codec)
    return np.unpackbits(bits, count=pixels).reshape(shape).view(np.bool_)


def _expand_chunk(
    stored: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], codec: CacheCodec
) -> NDArray[Any]:
    """Return a chunk as an array; uncompressed chunks are not copied."""
    size = math.prod(shape) * dtype.itemsize
    try:
        raw = stored if len(stored) == size or codec == "none" else lz4().decompress(stored, size)
        return np.frombuffer(raw, dtype).reshape(shape)
    except (pa.ArrowException, ValueError, OSError):
        raise DamagedError("a chunk has another size") from None


@functools.cache
def lz4() -> Any:
    """Return the LZ4 codec: over 2 GB/s a core, releases the GIL; pyarrow is needed for the index anyway."""
    return pa.Codec("lz4_raw")


# ---------------------------------------------------------------------------------------------------- writing


class CacheWriter:
    """Writer of a pack under a temporary name, for one thread; `finish` gives it its final name.

    Attributes:
        bytes: number of bytes written so far.
    """

    def __init__(self, path: Path, aside: Path, kind: Kind, codec: CacheCodec) -> None:
        """Begin a pack (OSError: the file cannot be written there)."""
        self._path, self._aside, self._kind, self._codec = path, aside, kind, codec
        self._file = aside.open("xb")
        self._table: list[tuple[int, int, int]] = []
        self._contents: list[Content] = []
        self.bytes = 0

    def add(self, key: str, size: Size, rows: Iterable[Rows], nodata: tuple[float | None, ...] = ()) -> None:
        """Add a scene's rows from the top, in strips whose height is a multiple of `CHUNK` except the last.

        After an error the pack is unchanged.

        Raises:
            DatasetError: the rows do not match the scene; OSError: the disk is full.
        """
        chunk, table, masks = chunk_of(size), len(self._table), list[tuple[int, int, int]]()
        try:
            form, dtype, done = (size.width,), "", 0
            for pixels, valid in rows:
                if dtype and (pixels.dtype.str, pixels.shape[1:]) != (dtype, form):
                    raise _changed_error(self._path)
                dtype, form = pixels.dtype.str, pixels.shape[1:]
                self._add_strip(pixels, valid, chunk, masks)
                done += len(pixels)
            if done != size.height or form[0] != size.width:
                raise _changed_error(self._path)
        except BaseException:
            del self._table[table:]
            self.bytes = sum(length for _, length, _ in self._table)
            self._file.seek(self.bytes)  # on a full disk an error of its own: the pack is lost
            self._file.truncate()
            raise
        self._table += masks
        shape = (size.height, *form)
        self._contents.append(
            Content(
                key=key,
                dtype=dtype,
                shape=shape,
                chunk=chunk,
                codec=self._codec,
                first=table,
                nodata=nodata,
            )
        )

    def _add_strip(
        self,
        pixels: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        chunk: tuple[int, int],
        masks: list[tuple[int, int, int]],
    ) -> None:
        for row in range(0, len(pixels), chunk[0]):
            for col in range(0, pixels.shape[1], chunk[1]):
                part = slice(row, row + chunk[0]), slice(col, col + chunk[1])
                self._table.append(self._store(pixels[part]))
                if valid is not None:
                    none_lacks = bool(valid[part].all())
                    masks.append((0, 0, 0) if none_lacks else self._store(np.packbits(valid[part])))

    def _store(self, array: NDArray[Any]) -> tuple[int, int, int]:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if self._codec == "lz4":
            small = lz4().compress(raw, asbytes=True)
            raw = memoryview(small) if len(small) < _WORTH * len(raw) else raw
        self._file.write(raw)
        at, self.bytes = self.bytes, self.bytes + len(raw)
        return at, len(raw), zlib.crc32(raw)

    def finish(self) -> None:
        """Sync the pack to the disk and rename it; remove it if it has no scene."""
        if not self._contents:
            return self.discard()
        table = np.array(self._table, TABLE)
        facts = {"format": FORMAT, "kind": self._kind, "chunks": len(table)}
        facts |= {"table_crc": zlib.crc32(table.data)}
        contents = [one.model_dump(mode="json") for one in self._contents]
        text = seal(json.dumps({**facts, "contents": contents})).encode()
        end = END.pack(SIGNATURE, self.bytes + table.nbytes, len(text), 0)[:-4]
        self._file.write(table.data)
        self._file.write(text + end + struct.pack("<I", zlib.crc32(end)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._aside.rename(self._path)
        return None

    def discard(self) -> None:
        """Remove the unfinished file."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._aside.unlink(missing_ok=True)


def _changed_error(path: Path) -> DatasetError:
    return DatasetError(path, "the scene has changed while it was decoded", remedy="start again")
