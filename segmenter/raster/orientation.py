"""Orientation of stored pixels: cameras turn a picture by a tag, which GDAL does not follow.

The rule: **pixels are never read turned otherwise than people see them**. A file whose tag is another than 1
is refused, with the commands that turn its pixels or remove the tag; which is right only its owner knows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from segmenter.base.errors import RasterError
from segmenter.raster.gdal.sidecars import TIFF_SIGNATURES, tiff_fields
from segmenter.raster.remote.settings import open_bytes
from segmenter.raster.stamps import Stamp

_ORIENTATION = 274
_TURNED = range(2, 9)


def check_orientation(path: Path, stamp: Stamp) -> None:
    """Refuse a TIFF, JPEG, PNG or WebP whose header says that its pixels are to be shown turned or mirrored.

    Raises:
        RasterError: naming the file, its tag and what to do.
        OSError: the file cannot be read.
    """
    if (tag := _orientation(path, stamp)) in _TURNED:
        raise RasterError(
            f"{path}: expected pixels stored as they are shown, its orientation tag ({tag}) turns or mirrors "
            f"them; turn the pixels: mogrify -auto-orient {path.name} - or, where they are right as they are "
            f"stored, remove the tag: exiftool -Orientation= {path.name}"
        )


@lru_cache(maxsize=1 << 20)
def _orientation(path: Path, stamp: Stamp) -> int:
    """Return the tag of a file in the state of `stamp`; 1 where it has none."""
    with open_bytes(path) as file:
        start = file.read(12)
        if start[:4] in TIFF_SIGNATURES:
            return _tag(file, 0)
        if start[:3] == b"\xff\xd8\xff":
            return _first(file, _jpeg_headers(file))
        if start[:4] == b"\x89PNG":
            return _first(file, _chunks(file, 8, ">I4s", 4, b"eXIf"))
        if start[:4] == b"RIFF" and start[8:] == b"WEBP":
            return _first(file, _chunks(file, 12, "<4sI", 0, b"EXIF"))
    return 1


def _first(file: BinaryIO, headers: Iterator[int]) -> int:
    return next((_tag(file, at) for at in headers), 1)


def _tag(file: BinaryIO, base: int) -> int:
    """Return the orientation in the TIFF structure that begins at byte `base`."""
    for order, value in tiff_fields(file, (_ORIENTATION,), base):
        return int(struct.unpack_from(order + "H", value)[0]) if len(value) >= 2 else 1
    return 1


def _jpeg_headers(file: BinaryIO) -> Iterator[int]:
    """Yield where Exif structures begin in the segments before a JPEG's first scan."""
    file.seek(at := 2)
    while len(head := file.read(10)) >= 4 and head[0] == 0xFF and head[1] != 0xDA:
        if head[1] == 0xFF:  # fill bytes may stand before a marker
            at += 1
        else:
            if head[1] == 0xE1 and head[4:10] == b"Exif\0\0":
                yield at + 10
            at += 2 + int(struct.unpack(">H", head[2:4])[0])
        file.seek(at)


def _chunks(file: BinaryIO, at: int, head: str, checksum: int, wanted: bytes) -> Iterator[int]:
    """Yield where the contents of chunks of one name begin, in a PNG or a RIFF file."""
    size = struct.calcsize(head)
    file.seek(at)
    while len(data := file.read(size)) == size:
        fields = struct.unpack(head, data)
        length, name = (fields[0], fields[1]) if head[0] == ">" else (fields[1], fields[0])
        if name == wanted:
            skip = 6 if _exif_prefix(file, at + size) else 0  # some writers put JPEG's prefix there too
            yield at + size + skip
        if name == b"IEND":
            return
        at += size + length + checksum + (0 if head[0] == ">" else length % 2)
        file.seek(at)


def _exif_prefix(file: BinaryIO, at: int) -> bool:
    file.seek(at)
    return file.read(6) == b"Exif\0\0"
