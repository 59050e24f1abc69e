"""Files behind GDAL's own paths, by the functions that GDAL's C library offers to all (`cpl_vsi.h`).

rasterio opens rasters there, but gives neither a file's bytes nor its size. The library is the one that
rasterio has loaded, wherever it lies. Its calls do not hold Python's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import rasterio
from rasterio.session import DummySession

from segmenter.addresses import masked_text
from segmenter.errors import RasterError
from segmenter.raster.faults import FAULTS, one_line
from segmenter.raster.gdal_private import gdal_library, messages

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

_FINAL = re.compile(
    r"response code|NoSuch|AccessDenied|Forbidden|InvalidAccessKey|SignatureDoesNotMatch|not defined|"
    r"not filled|does not exist|there is none|got a folder|resolve host",
    re.IGNORECASE,
)
"""Of reasons: another try would give the same. GDAL itself has tried again where a status asks for it."""
_GONE = re.compile(r"response code: 404|NoSuchKey|does not exist|there is none")
_NETWORK = re.compile(r"/vsi(curl|s3|gs|az|adls|oss|swift|webhdfs)[/?_]")
_LONGEST_PAUSE = 30.0

_ALL_FACTS = 0x1 | 0x2 | 0x4
_KEEP_REASON = 0x8
_FOLDER = 0o040000
_KIND = 0o170000
"""Flags of `VSIStatExL`, and of a file's mode."""


def forget_all() -> None:
    """As `forget`, of all files."""
    _gdal().VSICurlClearCache()


class ServerError(OSError):
    """An error of the system, whose text is the reason alone."""

    def __str__(self) -> str:
        return str(self.strerror)


class _Trying(threading.local):
    """Whether this thread is in `patiently`."""

    already = False


_trying = _Trying()


class FileState(NamedTuple):
    """Bytes, and seconds of the last change (0: unknown), of a file."""

    size: int
    changed: int


class _Stat(ctypes.Structure):
    """`struct stat64` of Linux on x86-64, which GDAL fills."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("device", "inode", "links")),
        *((name, ctypes.c_uint32) for name in ("mode", "user", "group", "padding")),
        *((name, ctypes.c_int64) for name in ("special", "size", "block", "blocks")),
        *((name, ctypes.c_int64) for name in ("read", "read_ns", "changed", "changed_ns", "made", "made_ns")),
        ("reserved", ctypes.c_int64 * 3),
    )


@functools.cache
def _gdal() -> ctypes.CDLL:
    """The library that rasterio has loaded."""
    library = ctypes.CDLL(gdal_library())
    library.VSIStatExL.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Stat), ctypes.c_int]
    library.VSIGetLastErrorMsg.restype = ctypes.c_char_p
    library.VSIFOpenExL.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    library.VSIFOpenExL.restype = ctypes.c_void_p
    library.VSIFSeekL.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
    library.VSIFReadL.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    library.VSIFReadL.restype = ctypes.c_size_t
    library.VSIFCloseL.argtypes = [ctypes.c_void_p]
    library.VSICurlPartialClearCache.argtypes = [ctypes.c_char_p]
    library.VSICurlPartialClearCache.restype = None
    return library


def own_env(**options: str) -> Any:
    """A `rasterio.Env` in which GDAL takes its credentials itself, whatever else is installed.

    rasterio asks boto3 for them where that is there, anew for each file: slow, and not what was asked for
    of a local one.
    """
    return rasterio.Env(session=DummySession(), **options)


def file_state(path: str) -> FileState:
    """The state of a file.

    Raises:
        OSError: GDAL's reason why it cannot be told, on one line.
    """
    gdal, found = _gdal(), _Stat()
    with own_env(), messages():
        gdal.VSIErrorReset()
        if gdal.VSIStatExL(path.encode(), found, _ALL_FACTS | _KEEP_REASON):
            raise _error("no answer" if is_network(path) else "there is none")
    if found.mode & _KIND == _FOLDER:
        raise ServerError(errno.EISDIR, "expected a file, got a folder")
    return FileState(found.size, found.changed)


def forget(path: str) -> None:
    """Have GDAL forget what it keeps of a file's bytes and state: it may be of an answer that was cut off."""
    _gdal().VSICurlPartialClearCache(path.encode())


def patiently(address: str, action: Callable[[], T]) -> T:
    """What an action gives that reads from an address; where it fails it is tried again after pauses.

    GDAL repeats what a server refuses for a while (429, 500 to 504). It does not where an answer ends early,
    and keeps the half of it as if it were all: that is forgotten here before the next try.
    `GDAL_HTTP_MAX_RETRY` and `GDAL_HTTP_RETRY_DELAY` say how often, and how long the first pause is; each
    further one is twice as long, more or less, so that many processes do not come back at once.
    """
    if _trying.already or not is_network(address):  # what an action does has its tries with the action
        return action()
    _trying.already = True
    try:
        for pause in _pauses():
            try:
                return action()
            except (RasterError, *FAULTS) as error:
                if _FINAL.search(f"{error} {one_line(error)}"):
                    raise
            forget(address)
            time.sleep(pause)
        return action()
    finally:
        _trying.already = False


def is_network(address: str) -> bool:
    """Whether one of GDAL's own paths leads to a server."""
    return _NETWORK.search(address) is not None


def _pauses() -> Iterator[float]:
    """Seconds before each further try."""
    count, first = 0, 0.0
    with contextlib.suppress(ValueError):
        count = int(os.environ.get("GDAL_HTTP_MAX_RETRY", "0"))
        first = float(os.environ.get("GDAL_HTTP_RETRY_DELAY", "0.5"))
    for i in range(count):
        yield min(_LONGEST_PAUSE, first * 2**i) * random.uniform(0.75, 1.25)


def _error(otherwise: str) -> ServerError:
    """What GDAL last said as an error of the system."""
    said = (_gdal().VSIGetLastErrorMsg() or b"").decode(errors="replace")
    why = masked_text(" ".join(said.split())) or otherwise
    return ServerError(errno.ENOENT if _GONE.search(why) else errno.EIO, why)


class GdalFile(io.RawIOBase):
    """A file to be read; an answer that ends early is asked for again, and never taken for all of it."""

    def __init__(self, path: str) -> None:
        """Open it.

        Raises:
            OSError: GDAL's reason.
        """
        self._file: Any = None
        self._path, self._at = path, 0
        self._size = patiently(path, lambda: file_state(path)).size
        self._file = patiently(path, lambda: _opened(path))

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As of any file."""
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """As of any file.

        Raises:
            OSError: it gives fewer bytes than it has.
        """
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size - self._at))
        if wanted:
            into = (ctypes.c_char * wanted).from_buffer(view)
            patiently(self._path, lambda: self._fill(into, wanted))
            self._at += wanted
        return wanted

    def _fill(self, into: Any, wanted: int) -> None:
        with own_env(), messages():
            _gdal().VSIErrorReset()
            _gdal().VSIFSeekL(self._file, self._at, 0)
            got = int(_gdal().VSIFReadL(into, 1, wanted, self._file))
            if got < wanted:
                raise _error(f"got {got} of {wanted} bytes from byte {self._at} on")

    def close(self) -> None:
        """Close it; harmless where it is closed."""
        if self._file:
            _gdal().VSIFCloseL(self._file)
            self._file = None
        super().close()


def _opened(path: str) -> int:
    with own_env(), messages():
        _gdal().VSIErrorReset()
        file = _gdal().VSIFOpenExL(path.encode(), b"rb", 1)
        if not file:
            raise _error("cannot be opened")
    return int(file)
