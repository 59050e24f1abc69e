"""Whether a PNG has the pixels that it declares."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from segmenter.raster.gdal.png import check_png
from segmenter.raster.stamps import stamp_of

ADAM7 = ("16462646", "77777777", "56565656", "77777777", "36463646", "77777777", "56565656", "77777777")
"""Of each pixel of an 8×8 block, the pass that holds it."""


def png(chunks: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A PNG without checksums."""
    parts = (struct.pack(">I", len(data)) + kind + data + bytes(4) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (61, 83), (8, 8)])
@pytest.mark.parametrize(("depth", "colour"), [(1, 0), (8, 2), (16, 6), (4, 3)])
@pytest.mark.parametrize("interlaced", [0, 1])
def test_what_a_png_declares(
    tmp_path: Path, size: tuple[int, int], depth: int, colour: int, interlaced: int
) -> None:
    """Counted pass by pass as in the specification's table; a byte less is too few."""
    height, width = size
    bits = depth * {0: 1, 2: 3, 6: 4, 3: 1}[colour]
    grid = np.tile(np.array([[int(digit) for digit in row] for row in ADAM7]), (9, 12))[:height, :width]
    if not interlaced:
        grid[:] = 1
    wanted = 0
    for number in range(1, 8):
        columns = (grid == number).sum(axis=1)
        wanted += sum(1 + (int(count) * bits + 7) // 8 for count in columns if count)
    for lack in (0, 1):
        chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))]
        chunks += [(b"IDAT", zlib.compress(bytes(wanted - lack))), (b"IEND", b"")]
        path = tmp_path / f"{lack}.png"
        path.write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + b"".join(struct.pack(">I", len(d)) + kind + d + bytes(4) for kind, d in chunks)
        )
        if lack:
            with pytest.raises(OSError, match=f"it has {wanted - 1} of the {wanted} bytes"):
                check_png(path, stamp_of(path))
        else:
            check_png(path, stamp_of(path))
