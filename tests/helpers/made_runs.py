"""Files of a run as somebody else might write them: any content, with the right checksum."""

import json
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
