"""Completeness check of PNGs: for missing pixels GDAL returns zeros or other rows."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from segmenter.base.errors import RasterError
from segmenter.raster.remote.settings import open_bytes
from segmenter.raster.stamps import Stamp

_SIGNATURE_BYTES, _CHECKSUM_BYTES, _PIECE_BYTES = 8, 4, 1 << 20
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""(column, row, columns apart, rows apart) of an interlaced image's passes."""


_MOST_INTERLACED_BYTES = 1 << 28
"""Largest interlaced PNG: GDAL decodes such an image again for every 100 MB of its rows."""


def check_png(path: Path, stamp: Stamp) -> None:
    """Refuse a truncated PNG with fewer pixels than it declares; checked once for each state of a file.

    Raises:
        RasterError: the PNG is large and interlaced: decoding time grows with the square of its size.
        OSError: pixels are missing.
    """
    _check_interlacing(path)
    if (fault := _fault(path, stamp)) is not None:
        raise OSError(fault)


def _check_interlacing(path: Path) -> None:
    with open_bytes(path) as file:
        header = file.read(_SIGNATURE_BYTES + 8 + 13)[_SIGNATURE_BYTES + 8 :]
    if len(header) < 13 or not header[12] or header[9] not in _CHANNELS:
        return  # what else is wrong is found later
    if (declared := _declared(header)) > _MOST_INTERLACED_BYTES:
        raise RasterError(
            path,
            f"is an interlaced PNG of {declared >> 20} MiB, at most {_MOST_INTERLACED_BYTES >> 20} are "
            "decoded",
            remedy="save it without interlacing, or as a GeoTIFF",
        )


@lru_cache(maxsize=1 << 20)
def _fault(path: Path, stamp: Stamp) -> str | None:
    with open_bytes(path) as file:
        try:
            wanted, got = _counted(file)
        except (zlib.error, struct.error, KeyError) as error:
            return f"its chunks are damaged ({error})" if str(error) else "its chunks are damaged"
        except EOFError:
            return "it ends early"
    return f"it has {got} of the {wanted} bytes of its pixels" if got < wanted else None


def _counted(file: BinaryIO) -> tuple[int, int]:
    """Return the bytes of pixels that a file declares and contains (PNG specification, sections 5, 7, 8)."""
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
    for col, row, cols, rows in _PASSES if interlaced else ((0, 0, 1, 1),):
        w, h = -(-(width - col) // cols), -(-(height - row) // rows)
        if w > 0 and h > 0:
            total += h * (1 + -(-w * bits // 8))  # each row has its filter's number before it
    return total


def _inflated(file: BinaryIO, length: int, inflating: zlib._Decompress) -> int:
    """Return the number of inflated bytes in a chunk, decoding it in small pieces."""
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
