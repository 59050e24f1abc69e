"""Addresses of remote files: recognise them, join them with a name, mask their secrets."""

from __future__ import annotations

import re
from urllib.parse import quote

_USER = re.compile(r"(?<=//)[^/@\s]+@")
_QUERY = re.compile(r"\?.*", re.DOTALL)
_IN_TEXT = re.compile(r"((?:https?://|/vsicurl)[^\s?'\"]*)\?[^\s'\"]*")
_SAFE = "/%:@!$&'()*+,;=~"
"""Characters of a name that stay unencoded in a URL; encoded ones are not encoded again."""


def is_address(text: str) -> bool:
    """Return whether a text is a URL or one of GDAL's own paths."""
    return text.startswith("/vsi") or "://" in text


def has_query(address: str) -> bool:
    """Return whether the part after `?` is a query; in an object store's key it belongs to the name."""
    return address.startswith(("http://", "https://")) or "/vsicurl" in address


def mask_secrets(address: str) -> str:
    """Return an address without user, password and query, which may contain signatures and keys."""
    shown = _USER.sub("", address)
    return _QUERY.sub("", shown) if has_query(shown) else shown


def masked_text(text: str) -> str:
    """Return a foreign text (an error message, say) with the secrets of every address in it masked."""
    return _IN_TEXT.sub(r"\1", _USER.sub("", text))


def join_address(address: str, name: str) -> str:
    """Return the address of a relative POSIX path below another address; a query (signature) stays last."""
    if not has_query(address):
        return f"{address.rstrip('/')}/{name}"
    base, mark, query = address.partition("?")
    return f"{base.rstrip('/')}/{quote(name, safe=_SAFE)}{mark}{query}"
