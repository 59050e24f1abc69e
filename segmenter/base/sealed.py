"""Sealed JSON, in which damage is detected: the CRC-32 of an object is its last entry; digests of JSON.

`{"a": 1}` is written as `{"a": 1, "crc": "0123abcd"}`: any JSON reader takes it, in one line or indented. The
checksum is over the bytes before it, so that nothing has to be brought into a canonical form; it tells
damage (a flipped bit, a torn line, an edit), not forgery.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from typing import Any

from segmenter.base.errors import shortened

_SEAL = re.compile(rb',\s*"crc": "([0-9a-f]{8})"\s*\}\s*\Z')
_LONGEST_SEAL = 64


def sealed(text: str) -> str:
    """Return the text of a JSON object that is not empty, with its checksum as the last entry."""
    body, end = text.rstrip(), "}"
    body = body.removesuffix("}")
    if body.endswith("\n"):  # indented
        end, space = "\n}", re.findall(r"\n\s*", body[1:])[0]
        body = body.rstrip()
    else:
        space = " "
    return f'{body},{space}"crc": "{zlib.crc32(body.encode()):08x}"{end}'


def unsealed_text(text: bytes) -> bytes | None:
    """Return the JSON object as `sealed` took it, but for spaces; None if damaged or without a checksum."""
    start = max(0, len(text) - _LONGEST_SEAL)
    seal = _SEAL.search(text, start)
    if seal is None:
        return None
    body = text[: seal.start()]
    return body + b"}" if zlib.crc32(body) == int(seal[1], 16) else None


def unsealed(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a text of `sealed`; None if it is damaged or has no checksum."""
    whole = unsealed_text(text)
    return None if whole is None else json_object(whole)


def json_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if it holds none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def digest(facts: object, digits: int = 32) -> str:
    """Return a short name for plain JSON, the same in any order of its keys.

    Args:
        digits: hexadecimal ones, up to 64.
    """
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def other_format(expected: int, got: object) -> str:
    """Return the refusal of a file of another format."""
    shown = "none" if got is None else shortened(repr(got))
    return (
        f"expected format {expected}, got {shown}: written by another version of this program, use that one"
    )
