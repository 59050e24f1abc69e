"""GeoPackages opened by SQLite itself, beside GDAL.

SQLite's locks belong to the process: closing a file drops those that another library, as GDAL, holds on it.
Whoever opens a file by both in several threads does it one after the other.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

REFERENCE = "reference"
"""Field of the answers: the class that is right."""
UNCLEAR = "cannot tell"
"""Answer where the class cannot be seen: it counts as none, and is not asked again."""
_WAIT_SECONDS = 5.0
"""Time for which another program's transaction is waited for; QGIS's are short."""


@contextlib.contextmanager
def database(path: Path, mode: Literal["ro", "rw"] = "ro") -> Iterator[sqlite3.Connection]:
    """Yield a connection in which transactions begin and end by statements; what is not committed is undone.

    Raises:
        sqlite3.Error: it is missing, damaged, or locked by another program.
    """
    address = f"{path.absolute().as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(address, _WAIT_SECONDS, 0, None, uri=True)) as file:
        yield file


def undo_unfinished(path: Path) -> None:
    """Undo what a program wrote of a transaction before it was killed; only of files that are ours to write.

    Raises:
        OSError: it cannot be undone.
    """
    if Path(f"{path}-journal").exists():
        try:
            with database(path, "rw") as file:
                file.execute("PRAGMA schema_version")
        except sqlite3.Error as error:
            raise OSError(str(error)) from None
