"""Remote rasters: addresses instead of files, created only where a user gives one."""

from __future__ import annotations

import io
import os
from pathlib import Path, PosixPath
from typing import Any, BinaryIO

from segmenter.base.addresses import joined, masked
from segmenter.base.errors import DatasetError

_SCHEMES = {"http": "/vsicurl/http://", "https": "/vsicurl/https://", "s3": "/vsis3/", "gs": "/vsigs/"}
_SCHEMES |= {"az": "/vsiaz/"}
_SETTINGS = {
    "GDAL_HTTP_CONNECTTIMEOUT": "10",
    # An answer that stands still for so long is given up; one that goes on may take any time.
    "GDAL_HTTP_LOW_SPEED_LIMIT": "1000",
    "GDAL_HTTP_LOW_SPEED_TIME": "30",
    # Of 429 and 500 to 504, each time after a pause twice as long: 22 s together.
    "GDAL_HTTP_MAX_RETRY": "5",
    "GDAL_HTTP_RETRY_DELAY": "0.5",
}
"""The one place for how patient we are with a server; a user's own setting wins."""
_PIECE = 1 << 14
"""Bytes that GDAL asks for at once: the first of them hold the header of most rasters too."""

_states: dict[str, tuple[int, int]] = {}
"""Address → bytes and seconds of the last change, as a listing gave them."""


class RemotePath(PosixPath):
    """A GDAL path with the interface of `pathlib` for names and parts, without anything that needs a disk.

    Remote rasters are opened only by paths of this type, never by a text with the same content. Its `str` is
    `masked`.
    """

    address: str

    @classmethod
    def of(cls, text: str) -> RemotePath:
        """Return the path of a URL or of one of GDAL's own paths."""
        scheme, separator, rest = text.partition("://")
        address = text
        if not text.startswith("/vsi"):
            if not separator or scheme.lower() not in _SCHEMES:
                schemes = ", ".join(f"{name}://" for name in _SCHEMES)
                raise DatasetError(masked(text), expected=f"{schemes} or one of GDAL's own paths (/vsizip/…)")
            address = _SCHEMES[scheme.lower()] + rest
        set_up_remote()
        return cls._at(address)

    @classmethod
    def _at(cls, address: str) -> RemotePath:
        path = cls(masked(address))
        path.address = address
        return path

    def __str__(self) -> str:
        return masked(self.address)

    def __fspath__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __reduce__(self) -> Any:
        from segmenter.raster.remote.patience import known_tag

        return _unpickled, (self.address, _states.get(self.address), known_tag(self.address))

    def __truediv__(self, name: Any) -> RemotePath:
        return RemotePath._at(joined(self.address, str(name)))

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return size and time of change from a listing or the server; all other fields are 0."""
        from segmenter.raster.gdal.files import file_state
        from segmenter.raster.remote.patience import patiently

        state = _states.get(self.address)
        if state is None:
            state = patiently(self.address, lambda: file_state(self.address))
        size, changed = state
        times = {"st_mtime_ns": changed * 10**9, "st_mtime": float(changed)}
        return os.stat_result((0, 0, 0, 0, 0, 0, size, 0, changed, 0), times)

    def known_state(self) -> int | None:
        """Return a hash of size and time of change, requested once per process; None if unknown."""
        if self.address not in _states:
            try:
                status = self.stat()
            except OSError:
                return None
            _states[self.address] = status.st_size, int(status.st_mtime)
        return hash(_states[self.address])

    def open_bytes(self) -> BinaryIO:
        """Open the file's bytes for reading (OSError: the server's reason)."""
        from segmenter.raster.remote.patience import GdalFile

        return io.BufferedReader(GdalFile(self.address), _PIECE)


def _unpickled(address: str, state: tuple[int, int] | None, tag: str | None) -> RemotePath:
    """Restore a path in another process, with the known facts of the file."""
    path = RemotePath._at(address)
    if state is not None:
        note_state(path, *state)
    if tag is not None:
        from segmenter.raster.remote.patience import note_tag

        note_tag(address, tag)
    return path


def open_bytes(path: Path) -> BinaryIO:
    """Open a file's bytes, local or remote (OSError: the file cannot be read)."""
    return path.open_bytes() if isinstance(path, RemotePath) else path.open("rb")


def note_state(path: RemotePath, size: int, changed: int, tag: str | None = None) -> None:
    """Store a file's state from a listing; if it has changed, clear GDAL's cache of the file.

    If the listing has an ETag, reading is bound to it from now on.
    """
    if tag is not None:
        from segmenter.raster.remote.patience import note_tag

        note_tag(path.address, tag)
    if _states.get(path.address, (size, changed)) != (size, changed):
        from segmenter.raster.remote.patience import forget

        forget(path.address)
    _states[path.address] = (size, changed)


def set_up_remote() -> None:
    """Set GDAL's network options, unless the user has; child processes inherit them by the environment."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # The endpoint of an S3-compatible store, as Amazon's tools take it; GDAL has settings of its own.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and "AWS_S3_ENDPOINT" not in os.environ:
        scheme, _, host = endpoint.rpartition("://")
        os.environ["AWS_S3_ENDPOINT"] = host.rstrip("/")
        os.environ.setdefault("AWS_HTTPS", "NO" if scheme == "http" else "YES")
        os.environ.setdefault("AWS_VIRTUAL_HOSTING", "FALSE")


def as_gdal_takes(path: Path) -> str | Path:
    """Return a path in the form that rasterio takes; `Path` would drop one of an address's two slashes.

    Local files get an absolute path, since GDAL takes `GTIFF_DIR:2:b.tif` for a page of b.tif.
    """
    return path.address if isinstance(path, RemotePath) else path.absolute()
