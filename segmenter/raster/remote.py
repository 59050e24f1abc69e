"""Remote rasters: addresses instead of files, made by `--remote` and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PosixPath

from segmenter.errors import DatasetError

_SCHEMES = {"http": "/vsicurl/http://", "https": "/vsicurl/https://", "s3": "/vsis3/", "gs": "/vsigs/"}
_SCHEMES |= {"az": "/vsiaz/"}
# A server that does not answer is given up; a user's own setting wins.
_SETTINGS = {"GDAL_HTTP_CONNECTTIMEOUT": "10", "GDAL_HTTP_TIMEOUT": "60", "GDAL_HTTP_MAX_RETRY": "2"}


class RemotePath(PosixPath):
    """One of GDAL's own paths, with a path's names and parts, but without anything that needs a disk.

    Rasters are opened at such a path only where it has this type: a text that says the same is no permission.
    """

    address: str

    @classmethod
    def of(cls, text: str) -> RemotePath:
        """The path of a URL or of one of GDAL's own paths.

        Raises:
            DatasetError: for any other scheme.
        """
        scheme, separator, rest = text.partition("://")
        address = text
        if not text.startswith("/vsi"):
            if not separator or scheme.lower() not in _SCHEMES:
                known = ", ".join(f"{name}://" for name in _SCHEMES)
                raise DatasetError(f"{text}: expected {known} or one of GDAL's own paths (/vsizip/…)")
            address = _SCHEMES[scheme.lower()] + rest
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        path = cls(address.partition("?")[0])  # a signature in a URL is no part of its name, and is not shown
        path.address = address
        return path

    def __str__(self) -> str:
        return self.address.partition("?")[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __reduce__(self) -> tuple[Callable[[str], RemotePath], tuple[str]]:
        """As a pickle, on the way to another process: with its address."""
        return RemotePath.of, (self.address,)

    def absolute(self) -> RemotePath:
        """Itself."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        """Itself."""
        return self


def is_address(text: str) -> bool:
    """Whether a text is a URL or one of GDAL's own paths."""
    return text.startswith("/vsi") or "://" in text


def as_gdal_takes(path: Path) -> str | Path:
    """Path as rasterio takes it: a Path would lose one of an address' two slashes.

    Of a file the whole path, since GDAL takes `GTIFF_DIR:2:b.tif` for a part of b.tif.
    """
    return path.address if isinstance(path, RemotePath) else path.absolute()
