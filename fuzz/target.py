"""Target of the fuzzer: one kind of file, how it is made, and what opens it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Facts = list[str]
"""What was read, in words or as digests; the same for the same content, wherever the files lie."""


def same(found: Facts, expected: Facts) -> bool:
    """Whether what was read is what was written."""
    return found == expected


def is_part(found: Facts, expected: Facts) -> bool:
    """Of a file whose damaged parts count as none: whether nothing was read that was not written."""
    return set(found) <= set(expected)


def begins(found: Facts, expected: Facts) -> bool:
    """Of a file that counts up to its first damage: whether it is the beginning of what was written."""
    return found == expected[: len(found)]


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Attributes:
        make: writes whole files into an empty folder: those that are changed, and what they need beside them.
        changed: patterns of the files of which one is changed in each case.
        read: opens that file as the program does; gives what it read. Errors of the user's are refusals.
        checksum: whether another content than `fits` says is a finding, since the format could tell.
        fits: whether what was read and what was written go together.
        tokens: what to put into them, beside what is put into all.
        gigabytes: of memory that a case may add to what the process has.
    """

    make: Callable[[Path], None]
    changed: Sequence[str]
    read: Callable[[Path], Facts]
    checksum: bool = False
    fits: Callable[[Facts, Facts], bool] = field(default=same)
    tokens: Sequence[bytes] = ()
    gigabytes: float = 1.5

    def files(self, folder: Path) -> list[Path]:
        """The files of a made folder that are to be changed, in the same order each time."""
        return sorted({path for pattern in self.changed for path in folder.glob(pattern) if path.is_file()})


def digest(*values: Any) -> str:
    """A short name of values; arrays by type, shape and content."""
    total = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            total.update(
                repr((value.dtype.str, value.shape)).encode() + np.ascontiguousarray(value).tobytes()
            )
        else:
            total.update(repr(value).encode(errors="surrogatepass"))
    return total.hexdigest()[:16]
