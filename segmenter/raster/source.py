"""Source of a raster, resolved once: name for GDAL, local or at a server, first bytes, state, sidecars."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import RasterError
from segmenter.raster.gdal.sidecars import TIFF_SIGNATURES, check_beside, check_inside
from segmenter.raster.remote.settings import RemotePath, open_bytes
from segmenter.raster.stamps import Stamp, is_alone, stamp_of

# How files of the three formats begin (TIFF and BigTIFF in either byte order). GDAL gets the driver, so
# that it never tries another one on a file that says it is something else.
_SIGNATURES = {
    **dict.fromkeys(TIFF_SIGNATURES, "GTiff"),
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
}


@dataclass(frozen=True)
class RasterSource:
    """File of a raster before it is opened.

    Attributes:
        name: name in the form that rasterio takes.
        is_remote: True if it lies at an address: nothing is looked for beside it.
        start: its first four bytes.
        stamp: state of the file and of its sidecars.
    """

    path: Path
    name: str | Path
    is_remote: bool
    start: bytes
    stamp: Stamp

    @classmethod
    def of(cls, path: Path) -> RasterSource:
        """Resolve a path; refuse what is no file.

        Raises:
            RasterError: it is a folder, pipe, device or one of GDAL's own paths.
            OSError: it cannot be read.
        """
        is_remote = isinstance(path, RemotePath)
        if not is_remote and not path.is_file():
            what = "got a folder, pipe or device" if path.exists() else "there is none"
            raise RasterError(path, expected=f"a raster file, {what}")
        if not is_remote and str(path.absolute()).startswith("/vsi"):
            raise RasterError(path, expected="a local file, GDAL's own paths are not opened")
        start = first_bytes(path)
        return cls(path, gdal_name(path), is_remote, start, stamp_of(path))

    @property
    def driver(self) -> str | None:
        """GDAL driver that the first bytes indicate; None: another format."""
        return driver_of(self.start)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of GDAL to open it with."""
        return {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"} if self.is_remote else {}

    def check_sidecars(self) -> None:
        """Refuse sidecars that change the raster's meaning or cannot be read (RasterError)."""
        if not self.is_remote:
            check_inside(self.path)
            if not is_alone(self.path):
                check_beside(self.path)

    def sidecar_files(self, *names: str) -> list[Path]:
        """Return the existing files of these names beside it."""
        paths = [] if self.is_remote else [self.path.with_name(name) for name in names]
        return [path for path in paths if path.is_file()]


def gdal_name(path: Path) -> str | Path:
    """Return a path in the form that rasterio takes; `Path` would drop one of an address's two slashes.

    Local files get an absolute path, since GDAL takes `GTIFF_DIR:2:b.tif` for a page of b.tif.
    """
    return path.address if isinstance(path, RemotePath) else path.absolute()


def first_bytes(path: Path) -> bytes:
    """Return the first four bytes of a file, local or remote (OSError: it cannot be read)."""
    with open_bytes(path) as file:
        return file.read(4)


def driver_of(start: bytes) -> str | None:
    """Return the GDAL driver that the first bytes of a file indicate; None: another format."""
    return _SIGNATURES.get(start) or _SIGNATURES.get(start[:3])
