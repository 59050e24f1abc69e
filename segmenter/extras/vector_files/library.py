"""pyogrio, loaded so that its GDAL uses its own SQLite, whatever was loaded before.

TensorFlow's library exposes its own SQLite, which has no R-trees, to all libraries loaded later: GeoPackages
were then written without an index, and indexed ones could not be read by box. Modules of this package import
`pyogrio` from here.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


def _load_pyogrio() -> ModuleType:
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


pyogrio = _load_pyogrio()
