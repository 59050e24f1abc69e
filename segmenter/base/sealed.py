"""Sealed JSON, which detects damage by a CRC-32 as the object's last entry; digests of JSON.

`{"a": 1}` is written as `{"a": 1, "crc": "0123abcd"}`: any JSON reader accepts it, in one line or indented.
The checksum is over the bytes before it, so no canonical form is needed; it detects damage (a flipped bit, a
torn line, an edit), not forgery.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from typing import Any

from segmenter.base.errors import shorten

_SEAL = re.compile(rb',\s*"crc": "([0-9a-f]{8})"\s*\}\s*\Z')
_LONGEST_SEAL = 64


def seal(text: str) -> str:
    """Return the text of a non-empty JSON object with its checksum as the last entry."""
    body, end = text.rstrip(), "}"
    body = body.removesuffix("}")
    if body.endswith("\n"):  # indented
        end, space = "\n}", re.findall(r"\n\s*", body[1:])[0]
        body = body.rstrip()
    else:
        space = " "
    return f'{body},{space}"crc": "{zlib.crc32(body.encode()):08x}"{end}'


def unsealed_text(text: bytes) -> bytes | None:
    """Return the JSON text without its checksum; None if it is damaged or has no checksum."""
    start = max(0, len(text) - _LONGEST_SEAL)
    seal = _SEAL.search(text, start)
    if seal is None:
        return None
    body = text[: seal.start()]
    return body + b"}" if zlib.crc32(body) == int(seal[1], 16) else None


def unseal(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a sealed text; None if it is damaged or has no checksum."""
    whole = unsealed_text(text)
    return None if whole is None else json_object(whole)


def json_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def digest(facts: object, digits: int = 32) -> str:
    """Return a digest of plain JSON, independent of the order of keys.

    Args:
        digits: number of hexadecimal digits, up to 64.
    """
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def other_format(expected: int, got: object) -> str:
    """Return the error message for a file of another format version."""
    got_text = "none" if got is None else shorten(repr(got))
    written = "written by another version of this program, use that one"
    return f"expected format {expected}, got {got_text}: {written}"
