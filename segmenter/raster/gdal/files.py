"""File access through GDAL's virtual paths, by public functions of GDAL's C library (`cpl_vsi.h`).

rasterio opens rasters there, but gives neither a file's bytes nor its size. The library is the copy that
rasterio has loaded. Its calls release the GIL.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import rasterio
from rasterio.session import DummySession

from segmenter.base.addresses import masked_text
from segmenter.raster.gdal.private import gdal_library, messages

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

_GONE = re.compile(r"response code: 404|NoSuchKey|does not exist|there is none")
NETWORK = re.compile(r"/vsi(curl|s3|gs|az|adls|oss|swift|webhdfs)[/?_]")

_ALL_FACTS = 0x1 | 0x2 | 0x4
_KEEP_REASON = 0x8
_FOLDER = 0o040000
_KIND = 0o170000
"""Flags of `VSIStatExL`, and of a file's mode."""


class ServerError(OSError):
    """OSError whose text is only the reason."""

    def __str__(self) -> str:
        return str(self.strerror)


class FileState(NamedTuple):
    """Size in bytes and time of the last change in seconds (0: unknown) of a file."""

    size: int
    changed: int


class _Stat(ctypes.Structure):
    """`struct stat64` of Linux on x86-64, filled by GDAL."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("device", "inode", "links")),
        *((name, ctypes.c_uint32) for name in ("mode", "user", "group", "padding")),
        *((name, ctypes.c_int64) for name in ("special", "size", "block", "blocks")),
        *((name, ctypes.c_int64) for name in ("read", "read_ns", "changed", "changed_ns", "made", "made_ns")),
        ("reserved", ctypes.c_int64 * 3),
    )


@functools.cache
def _gdal() -> ctypes.CDLL:
    library = ctypes.CDLL(gdal_library())
    library.VSIStatExL.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Stat), ctypes.c_int]
    library.VSIGetLastErrorMsg.restype = ctypes.c_char_p
    library.VSIFOpenExL.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    library.VSIFOpenExL.restype = ctypes.c_void_p
    library.VSIFSeekL.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
    library.VSIFReadL.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    library.VSIFReadL.restype = ctypes.c_size_t
    library.VSIFCloseL.argtypes = [ctypes.c_void_p]
    library.VSIGetFileMetadata.restype = ctypes.POINTER(ctypes.c_char_p)
    library.CSLDestroy.argtypes = [ctypes.POINTER(ctypes.c_char_p)]
    return library


def own_env(**options: str) -> Any:
    """Return a `rasterio.Env` in which GDAL itself looks for credentials.

    If boto3 is installed, rasterio would ask it for credentials for each file: slow, and needless for local
    files.
    """
    return rasterio.Env(session=DummySession(), **options)


def file_state(path: str) -> FileState:
    """Return the size and time of change of a file."""
    gdal, status = _gdal(), _Stat()
    with own_env(), messages():
        gdal.VSIErrorReset()
        if gdal.VSIStatExL(path.encode(), status, _ALL_FACTS | _KEEP_REASON):
            raise _error("no answer" if is_network(path) else "there is none")
    if status.mode & _KIND == _FOLDER:
        raise ServerError(errno.EISDIR, "expected a file, got a folder")
    return FileState(status.size, status.changed)


def forget(path: str) -> None:
    """Clear GDAL's cache of a file's bytes and state, which may come from a truncated answer."""
    _gdal().VSICurlPartialClearCache(path.encode())


def asked_tag(served: str) -> str:
    """Ask the server for a file's ETag; return time of change and size if it has none."""
    gdal, headers, i = _gdal(), {}, 0
    with own_env(), messages():
        gdal.VSIErrorReset()
        lines = gdal.VSIGetFileMetadata(served.encode(), b"HEADERS", None)
        while lines and (line := lines[i]) is not None:
            name, _, value = line.decode("latin-1").replace(":", "=", 1).partition("=")
            headers[name.strip().lower()] = value.strip()
            i += 1
        gdal.CSLDestroy(lines)
        if not headers and gdal.VSIStatExL(served.encode(), _Stat(), _ALL_FACTS | _KEEP_REASON):
            raise _error("no answer")
    return headers.get("etag") or " ".join(
        headers[name] for name in ("last-modified", "content-length") if name in headers
    )


def set_condition(served: str, tag: str | None) -> None:
    """Make the server return bytes only for a strong ETag, for files opened from now on; None: no condition.

    GDAL searches all paths with such settings whenever a file is opened.
    """
    _gdal().VSIClearPathSpecificOptions(served.encode())
    if tag is None:
        return
    value = '"If-Match: ' + tag.replace('"', '\\"') + '"'
    _gdal().VSISetPathSpecificOption(served.encode(), b"GDAL_HTTP_HEADERS", value.encode())


def is_network(address: str) -> bool:
    """Return True if a GDAL path leads to a server."""
    return NETWORK.search(address) is not None


def _error(otherwise: str) -> ServerError:
    """Return GDAL's last message as an OSError; `otherwise` if GDAL has none."""
    message = (_gdal().VSIGetLastErrorMsg() or b"").decode(errors="replace")
    why = masked_text(" ".join(message.split())) or otherwise
    return ServerError(errno.ENOENT if _GONE.search(why) else errno.EIO, why)


def open_file(path: str) -> int:
    """Open a file; return GDAL's handle (OSError: GDAL's reason)."""
    with own_env(), messages():
        _gdal().VSIErrorReset()
        file = _gdal().VSIFOpenExL(path.encode(), b"rb", 1)
        if not file:
            raise _error("cannot be opened")
    return int(file)


def read_at(file: int, at: int, into: WriteableBuffer, wanted: int) -> None:
    """Read `wanted` bytes at position `at` of an open file into a buffer."""
    buffer = (ctypes.c_char * wanted).from_buffer(into)
    with own_env(), messages():
        _gdal().VSIErrorReset()
        _gdal().VSIFSeekL(file, at, 0)
        got = int(_gdal().VSIFReadL(buffer, 1, wanted, file))
        if got < wanted:
            raise _error(f"got {got} of {wanted} bytes from byte {at} on")


def close_file(file: int) -> None:
    """Close an open file."""
    _gdal().VSIFCloseL(file)
