"""What libraries print on their own, kept from a script's output; only scripts call it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

Hook = Callable[..., Any]


def quiet_libraries() -> None:
    """Silence logs of GDAL and TensorFlow: what they say of an error is in our line."""
    from segmenter.raster import quiet_gdal

    quiet_gdal()
    logging.getLogger("rasterio").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def install_hooks() -> None:
    """Replace Python's hooks for errors that nobody can catch by `without_rasterio`."""
    sys.unraisablehook, sys.excepthook = without_rasterio(sys.unraisablehook, sys.excepthook)


def without_rasterio(unraisable: Hook, uncaught: Hook) -> tuple[Hook, Hook]:
    """Python's two hooks without what rasterio prints where GDAL quotes a damaged file, which is no UTF-8."""

    def print_unraisable(what: Any) -> None:
        if not str(what.object).startswith("rasterio."):
            unraisable(what)

    def print_uncaught(kind: Any, error: Any, trace: Any) -> None:
        if not (kind is UnicodeDecodeError and trace is None):
            uncaught(kind, error, trace)

    return print_unraisable, print_uncaught
