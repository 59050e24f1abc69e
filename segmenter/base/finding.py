"""File search that visits each real folder once, even if links form a cycle."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

VECTOR_ENDINGS = (".gpkg", ".geojson", ".shp", ".fgb", ".parquet")
"""Endings of files of polygons."""


def walk_once(
    root: str | Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield `root` and each folder below it with its file names; sorted, without hidden ones.

    Links to folders are followed, but no folder is visited twice: two links to their own parent would
    otherwise give 2⁴⁰ paths.
    """
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=onerror):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield folder, sorted(name for name in names if not name.startswith("."))


def matches(pattern: str) -> list[str]:
    """Return the paths that match a glob pattern, sorted; `**` matches any folders, each visited once."""
    return sorted(set(_matches(pattern)))


def _matches(pattern: str) -> Iterator[str]:
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    first = parts.index("**")
    while parts[first + 1 : first + 2] == ["**"]:  # two in a row mean one
        del parts[first]
    rest = "/".join(parts[first + 1 :])
    for start in _folders("/".join(parts[:first]), from_root=pattern.startswith("/")):
        for folder, names in walk_once(start or "."):
            inside = folder if start else os.path.relpath(folder, ".")
            base = "" if inside == "." and not start else os.path.join(inside, "")
            if not rest:
                names = [] if pattern.endswith("/") else names
                yield from filter(None, (base, *(base + name for name in names)))
            else:
                yield from _matches(glob.escape(base) + rest)


def _folders(pattern: str, *, from_root: bool) -> list[str]:
    if not pattern:
        return ["/"] if from_root else [""]
    return sorted(glob.glob(pattern))


def is_vector(name: str | PurePath) -> bool:
    """Return whether a file name, or a pattern of names, has the ending of a vector file."""
    return PurePath(name).suffix.lower() in VECTOR_ENDINGS
