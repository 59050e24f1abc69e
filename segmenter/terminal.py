"""Foreign text on a terminal: what may be in a name, what is printed escaped, and aligned columns."""

from __future__ import annotations

import re
import unicodedata

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change the terminal's state, turn the direction of a line around, or are
none at all (surrogates). Not those that scripts need, as the joiners of Persian and Hindi."""
_KEPT = re.compile(r"\n|\t|^\r|^(?:\x1b\[A)+$")
"""Of these, what a program prints itself: ends of lines, and how progress bars go back to their place."""


def unsafe(text: str) -> str | None:
    """The first character of a name that no name may have, escaped; None where there is none."""
    found = _UNSAFE.search(text)
    return None if found is None else _escape(found)


def escaped(text: str) -> str:
    """What a program is about to print, with what is unsafe in it escaped: names of files hold anything."""
    if _UNSAFE.search(text) is None:
        return text
    kept = {place for found in _KEPT.finditer(text) for place in range(*found.span())}
    return _UNSAFE.sub(lambda found: found[0] if found.start() in kept else _escape(found), text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def terminal_width(text: str) -> int:
    """Columns of a terminal that a text takes: Chinese characters take two, accents that are added none."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def padded(text: str, width: int) -> str:
    """A text with spaces behind it, up to so many columns."""
    return text + " " * (width - terminal_width(text))
