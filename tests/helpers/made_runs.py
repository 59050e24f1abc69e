"""Files of a run as somebody else might write them: any content, with the right checksum."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from segmenter.base.sealed import sealed


def rewritten(file: Path, **changes: Any) -> None:
    """Put other values into a sealed JSON file; `a__b=1` sets `b` within `a`."""
    data = json.loads(file.read_bytes())
    del data["crc"]
    for path, value in changes.items():
        *above, key = path.split("__")
        node = data
        for name in above:
            node = node[name]
        node[key] = value
    file.write_text(sealed(json.dumps(data)))


def flipped(content: bytes, every: int = 1) -> Iterator[bytes]:
    """The content with a single bit of it turned over, for each bit or each `every`-th."""
    for bit in range(0, 8 * len(content), every):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def crafted(header: str, version: int) -> bytes:
    """A zip with right CRCs and one array, whose header was made up."""
    text, buffer = header.encode("latin1") + b"\n", io.BytesIO()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY" + bytes([version, 0]) + length + text + bytes(120))
    return buffer.getvalue()
