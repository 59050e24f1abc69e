"""Memory check of JPEGs before decoding: progressive ones can exceed libjpeg's limit."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import BinaryIO

from segmenter.errors import RasterError
from segmenter.raster.remote import open_bytes

_ALLOWED_BYTES = 500 << 20
"""What GDAL lets libjpeg take; JPEGMEM changes it."""
_ROOM_BYTES = 8 << 20
"""For tables and rows."""
_PROGRESSIVE = (0xC2, 0xCA)
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def check_jpeg(path: Path) -> None:
    """Refuse a JPEG whose coefficients need more memory than is allowed; libjpeg would call it unsupported.

    Raises:
        RasterError: how much it needs, and what to do.
        OSError: it cannot be read.
    """
    with open_bytes(path) as file:
        needed = _coefficient_bytes(file)
    allowed = _allowed()
    if needed and needed + _ROOM_BYTES > allowed:
        enough = (needed + _ROOM_BYTES) // 1_000_000 + 1
        raise RasterError(
            f"{path}: is a progressive JPEG, which is decoded as a whole: that takes {needed / 1e6:.0f} MB "
            f"of memory, {allowed / 1e6:.0f} MB are allowed; set JPEGMEM={enough}M in the environment, or "
            "convert it to a tiled GeoTIFF"
        )


def _allowed() -> int:
    """As libjpeg reads the setting: thousands of bytes, or millions."""
    found = re.match(r"\s*(\d+)([mM]?)", os.environ.get("JPEGMEM", ""))
    return int(found[1]) * (1_000_000 if found[2] else 1000) if found else _ALLOWED_BYTES


def _coefficient_bytes(file: BinaryIO) -> int:
    """Memory for the coefficients where they are not decoded row by row; 0 where they are, or at a damage."""
    file.seek(2)
    needed = components = 0
    progressive = False
    while len(head := file.read(2)) == 2 and head[0] == 0xFF:
        if head[1] == 0xFF:  # fill bytes may stand before a marker
            file.seek(-1, 1)
            continue
        if len(size := file.read(2)) < 2:
            return 0
        content = file.read(struct.unpack(">H", size)[0] - 2)
        if head[1] in _FRAMES and len(content) >= 6 and len(content) >= 6 + 3 * content[5]:
            progressive, components = head[1] in _PROGRESSIVE, content[5]
            needed = _frame_bytes(content)
        elif head[1] == 0xDA:  # a scan; of one component only where all are in scans of their own
            several = progressive or (bool(content) and content[0] < components)
            return needed if several else 0
    return 0


def _frame_bytes(frame: bytes) -> int:
    """Of two bytes for each coefficient, in whole blocks of 8×8 and whole units of the sampling."""
    height, width, count = struct.unpack(">HHB", frame[1:6])
    samplings = [divmod(frame[7 + 3 * i], 16) for i in range(count)]
    if not all(across and down for across, down in samplings):
        return 0
    most_across, most_down = (max(values) for values in zip(*samplings, strict=True))
    units = -(-width // (8 * most_across)) * -(-height // (8 * most_down))
    return units * sum(across * down for across, down in samplings) * 128
