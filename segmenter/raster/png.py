"""Whether a PNG holds all the pixels that it declares: GDAL gives zeros or other rows for those that lack."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

_SIGNATURE_BYTES, _CHECKSUM_BYTES, _PIECE_BYTES = 8, 4, 1 << 20
_MAX_INTERLACED = 1 << 28
"""Bytes of pixels of an interlaced image: GDAL decodes all of it for each 100 MB that it gives."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""(column, row, columns apart, rows apart) of an interlaced image's passes."""


def check_png(path: Path) -> None:
    """Refuse a PNG that ends early or has fewer pixels than it declares; once for each state of a file.

    Raises:
        OSError: what it lacks.
    """
    status = path.stat()
    if (fault := _fault(path, status.st_size, status.st_mtime_ns)) is not None:
        raise OSError(fault)


@lru_cache(maxsize=1 << 20)
def _fault(path: Path, size: int, changed: int) -> str | None:
    with path.open("rb") as file:
        try:
            wanted, got = _counted(file)
        except (zlib.error, struct.error, KeyError) as error:
            return f"its chunks are damaged ({error})" if str(error) else "its chunks are damaged"
        except OverflowError as error:
            return str(error)
        except EOFError:
            return "it ends early"
    return f"it has {got} of the {wanted} bytes of its pixels" if got < wanted else None


def _counted(file: BinaryIO) -> tuple[int, int]:
    """Bytes of pixels that a file declares, and that it has (see the PNG specification, sections 5, 7, 8)."""
    file.seek(_SIGNATURE_BYTES)
    inflating = zlib.decompressobj()
    wanted = got = 0
    while True:
        head = file.read(8)
        if len(head) < 8:
            raise EOFError
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IEND":
            return wanted, got
        if kind == b"IHDR":
            wanted = _declared(file.read(length))
        elif kind == b"IDAT":
            got += _inflated(file, length, inflating)
        else:
            file.seek(length, 1)
        file.seek(_CHECKSUM_BYTES, 1)


def _declared(header: bytes) -> int:
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    bits, total = depth * _CHANNELS[colour], 0
    if interlaced and width * height * bits // 8 > _MAX_INTERLACED:
        raise OverflowError("it is interlaced and large, and cannot be read piece by piece; save it plainly")
    for col, row, cols, rows in _PASSES if interlaced else ((0, 0, 1, 1),):
        w, h = -(-(width - col) // cols), -(-(height - row) // rows)
        if w > 0 and h > 0:
            total += h * (1 + -(-w * bits // 8))  # each row has its filter's number before it
    return total


def _inflated(file: BinaryIO, length: int, inflating: zlib._Decompress) -> int:
    """Bytes that a chunk holds, never many of them in memory."""
    got = 0
    while length:
        data = file.read(min(length, _PIECE_BYTES))
        if not data:
            raise EOFError
        length -= len(data)
        while data and not inflating.eof:
            got += len(inflating.decompress(data, _PIECE_BYTES))
            data = inflating.unconsumed_tail
    return got
