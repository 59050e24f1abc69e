"""Private parts of rasterio and its wheel, used only here, since any version may change them.

`tests/raster/test_gdal_private.py` fails if a version has changed them.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import rasterio
from rasterio._err import CPLE_BaseError as GdalError

__all__ = ["GdalError", "gdal_library", "listen", "messages", "proj_data", "quiet_libtiff"]

_LOGGERS = ("rasterio._env", "rasterio._err")
"""Loggers to which rasterio writes GDAL's messages."""
_ERROR = "GDAL signalled an error"
"""How rasterio begins the records of errors, which it logs as information."""


def gdal_library() -> str:
    """Return the path of the GDAL library that rasterio has loaded; other wheels bring their own."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        names = {line.split(maxsplit=5)[5].strip() for line in maps if "/libgdal" in line}
    own = (Path(rasterio.__file__).parents[1] / "rasterio.libs").resolve()
    of_wheel = {name for name in names if Path(name).parent == own}
    of_system = {name for name in names if not Path(name).parent.name.endswith(".libs")}
    return min(of_wheel or of_system)


class _Heard(threading.local):
    """GDAL's messages to this thread while `messages` is active: (True for an error, text)."""

    messages: list[tuple[bool, str]] | None = None


_heard = _Heard()


def listen() -> None:
    """Make rasterio's loggers pass on GDAL's messages, as `messages` needs; repeated calls are harmless."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addFilter(_overhear)


def _overhear(record: logging.LogRecord) -> bool:
    """Filter a record of rasterio's loggers: drop it if `messages` has collected it."""
    if _heard.messages is None:
        return record.levelno >= logging.getLogger("rasterio").getEffectiveLevel()
    last = record.args[-1] if isinstance(record.args, tuple) and record.args else record.msg
    error = str(record.msg).startswith(_ERROR)
    if error or record.levelno >= logging.WARNING:
        _heard.messages.append((error, str(last)))
    return False


@contextlib.contextmanager
def messages() -> Iterator[list[tuple[bool, str]]]:
    """Collect GDAL's messages in a block that raise no error: (True for an error, text).

    Needs an earlier call of `listen`, and a `rasterio.Env` for everything except reads.
    """
    collected: list[tuple[bool, str]] = []
    before, _heard.messages = _heard.messages, collected
    try:
        yield collected
    finally:
        _heard.messages = before


def quiet_libtiff() -> bool:
    """Stop libtiff from printing a line for each block that a full disk refuses; errors are still raised.

    rasterio silences GDAL, but not libtiff below it. A libtiff from outside rasterio's wheel is not silenced.

    Returns:
        True if the library was found.
    """
    is_quiet = False
    for library in Path(rasterio.__file__).parents[1].glob("rasterio.libs/libtiff*.so*"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(str(library)).TIFFSetErrorHandler(None)
            is_quiet = True
    return is_quiet


def proj_data() -> Path | None:
    """Return the folder of PROJ's data in rasterio's wheel; None if the wheel has none."""
    folder = Path(rasterio.__file__).with_name("proj_data")
    return folder if folder.is_dir() else None
