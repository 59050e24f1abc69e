"""pyogrio, loaded so that its GDAL calls its own SQLite, whatever was loaded before.

TensorFlow's library shows its own SQLite to all libraries that are loaded after it, and that one has no
R-trees: GeoPackages were written without their index, and those that have one could not be read by box.
Modules of this room import `pyogrio` from here.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


def _loaded() -> ModuleType:
    """Load pyogrio; raise ModuleNotFoundError."""
    flags = sys.getdlopenflags()
    if "tensorflow" in sys.modules:  # else nothing is in the way: TensorFlow does not change what is bound
        sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))  # its own libraries come first
    try:
        import pyogrio.raw
    finally:
        sys.setdlopenflags(flags)
    module: ModuleType = pyogrio
    return module


pyogrio = _loaded()
