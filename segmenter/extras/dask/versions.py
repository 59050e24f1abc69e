"""Versions on which results depend: of this program, and of what it computes with."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("numpy", "rasterio", "tensorflow", "tensorflow-cpu", "keras", "distributed")


@cache
def versions() -> dict[str, str]:
    """Name → version in this environment; tells a build of TensorFlow for GPUs from one for CPUs not."""
    found = {"this program": _digest(), "Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            found[package.removesuffix("-cpu")] = version(package)
        except PackageNotFoundError:
            continue
    return found


def difference(here: dict[str, str], there: dict[str, str]) -> str | None:
    """The first thing that is not the same, in words; None where all is."""
    for name in {**here, **there}:
        mine, theirs = (found.get(name, "none") for found in (here, there))
        if mine != theirs:
            return f"expected {name} {mine} as here, got {theirs}"
    return None


def _digest() -> str:
    """Of the library's source files: a worker with other ones would compute something else."""
    root, total = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)}\n".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:12]
