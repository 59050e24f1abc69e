"""Opening of rasters: which files, by which of GDAL's drivers, and GDAL's messages about them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rasterio
from rasterio.enums import MaskFlags

from segmenter.base.errors import RasterError
from segmenter.raster.gdal.faults import FAULTS, naming
from segmenter.raster.gdal.files import own_env
from segmenter.raster.gdal.png import check_png
from segmenter.raster.gdal.private import messages
from segmenter.raster.gdal.settings import MEANING, set_up_gdal
from segmenter.raster.gdal.sidecars import TIFF_SIGNATURES, check_beside, check_overviews
from segmenter.raster.orientation import check_orientation
from segmenter.raster.pages import full_page
from segmenter.raster.remote.patience import patiently
from segmenter.raster.remote.settings import RemotePath, as_gdal_takes, open_bytes
from segmenter.raster.stamps import Stamp, stamp_of

# How files of the three formats begin (TIFF and BigTIFF in either byte order). GDAL gets the driver, so
# that it never tries another one on a file that says it is something else.
_SIGNATURES = {
    **dict.fromkeys(TIFF_SIGNATURES, "GTiff"),
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
}
_LOST = re.compile(r'"(Geo|GDAL|RPC|Intergraph|ExtraSamples)|GeoTIFF tags apparently corrupt|Corrupt JPEG')
"""Of GDAL's warnings: where the file lies, what is no data or pixels themselves could not be read."""
_TOLD = re.compile(r"ignor|corrupt|bogus|mismatch|not the same|NODATA_VALUES|null byte", re.IGNORECASE)
"""Of GDAL's warnings: worth a line of ours."""

_PADDED = "contains null byte"
"""Said of a text that ends in two of them, too, of which nothing is lost."""
_NAMES = re.compile(r"^[,: ]*(band \d+: )?")
"""The rest of a file's name at the beginning of a message."""


@contextlib.contextmanager
def raising_damage() -> Iterator[None]:
    """Raise what GDAL only remarks on while pixels are read, where it means that they are others."""
    with messages() as said:
        yield
    for _, text in said:
        if _LOST.search(text):
            raise OSError(text)


class Opened(NamedTuple):
    """An open rasterio dataset, the state of its files before that, and warnings about them."""

    dataset: Any
    stamp: Stamp
    remarks: tuple[str, ...]


def open_dataset(path: Path, drivers: Sequence[str] = ()) -> Opened:
    """Open a dataset by the driver that the file's first bytes name, or by one of `drivers`.

    Raises:
        RasterError: none of them can, or something in the header or beside the file is damaged that says
            where it lies or which pixels have no data.
    """
    set_up_gdal()
    try:
        str(path).encode()
    except UnicodeError:  # rasterio takes no bytes
        raise RasterError(f"{str(path)!a}: expected a file name in UTF-8; rename the file") from None
    if isinstance(path, RemotePath):
        return patiently(path.address, lambda: _open_dataset(path, drivers))
    return _open_dataset(path, drivers)


def _open_dataset(path: Path, drivers: Sequence[str]) -> Opened:
    with (
        naming(path, "cannot open it", "expected a GeoTIFF, PNG or JPEG that is whole"),
        contextlib.ExitStack() as undo,
    ):
        wanted = _drivers(path, drivers)
        stamp = stamp_of(path)
        if not isinstance(path, RemotePath):  # there GDAL is set to look for nothing beside it
            check_beside(path)
        alone = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"} if isinstance(path, RemotePath) else {}
        # Only within an Env GDAL speaks to rasterio at all, but for reads.
        with own_env(**MEANING | alone), messages() as said:
            dataset = undo.enter_context(_opened(path, wanted, said))
            if (page := full_page(path, dataset, stamp)) is not None:
                dataset = undo.enter_context(rasterio.open(page, driver=dataset.driver, sharing=False))
            check_overviews(path, dataset)
            flags = dataset.mask_flag_enums  # only now GDAL looks for a mask
        remarks = _judged(path, said) + _world_file(path, dataset)
        if any(MaskFlags.per_dataset in each for each in flags):
            _check_mask(path, dataset)
        undo.pop_all()
        return Opened(dataset, stamp, remarks)


def _opened(path: Path, drivers: Sequence[str], said: list[Any]) -> Any:
    where = as_gdal_takes(path)
    for name in drivers:
        said.clear()  # what another driver had to say
        with contextlib.suppress(*(FAULTS if name != drivers[-1] else ())):
            return rasterio.open(where, driver=name, sharing=False)
    raise AssertionError("the last driver opens it or raises")


def _drivers(path: Path, allowed: Sequence[str]) -> Sequence[str]:
    """The driver that a file's first bytes name, or those that may open any file."""
    if not isinstance(path, RemotePath):
        if not path.is_file():
            what = "got a folder, pipe or device" if path.exists() else "there is none"
            raise RasterError(f"{path}: expected a raster file, {what}")
        if str(path.absolute()).startswith("/vsi"):
            raise RasterError(f"{path}: expected a local file, GDAL's own paths are not opened")
    with open_bytes(path) as file:
        start = file.read(4)
    driver = _SIGNATURES.get(start) or _SIGNATURES.get(start[:3])
    if driver is None and not allowed:
        raise RasterError(
            f"{path}: expected a GeoTIFF, PNG or JPEG, the file begins with {start!r}; other formats are "
            "opened by drivers of GDAL that are named, in dataset.drivers or --drivers: [JP2OpenJPEG], [VRT]"
        )
    return allowed if driver is None else (driver,)


def opens_by_itself(path: Path) -> bool:
    """Return whether a file is a GeoTIFF, PNG or JPEG by its first bytes, and needs no driver to be named."""
    with naming(path, "cannot open it", "expected a raster file"), open_bytes(path) as file:
        start = file.read(4)
    return start in _SIGNATURES or start[:3] in _SIGNATURES


def files_behind(path: Path, drivers: Sequence[str] = ()) -> list[Path]:
    """Return a raster's file and, of one that is opened by `drivers`, all that GDAL reads for it.

    A VRT has changed when any of the files has that it names.

    Raises:
        RasterError: it cannot be opened.
    """
    if not drivers or opens_by_itself(path):
        return [path]
    with open_dataset(path, drivers).dataset as dataset:
        return [path, *sorted(Path(name) for name in dataset.files if Path(name) != path)]


def _judged(path: Path, said: Sequence[tuple[bool, str]]) -> tuple[str, ...]:
    """Warnings for the user from GDAL's messages about a header.

    Raises:
        RasterError: one of them means that something is lost that GDAL goes on without.
    """
    texts: dict[str, None] = {}  # each once, in order
    for error, text in said:
        plain = _NAMES.sub("", text.replace(str(as_gdal_takes(path)), "").replace(path.name, ""))
        plain = " ".join(plain.split())
        if error or (_LOST.search(text) and _PADDED not in text):
            raise RasterError(f"{path}: cannot read its header: {plain.rstrip('.')}; the file is damaged")
        if _TOLD.search(text):
            texts[f"GDAL remarks: {plain}"] = None
    return tuple(texts)


def _world_file(path: Path, dataset: Any) -> tuple[str, ...]:
    """A warning where there is a world file, but no geotransform from it."""
    if isinstance(path, RemotePath) or not dataset.transform.is_identity or not path.suffix[1:]:
        return ()
    name = path.suffix[1:]
    worlds = (path.with_suffix(ending) for ending in (f".{name[0]}{name[-1]}w", f".{name}w", ".wld"))
    return tuple(f"its world file {world.name} tells no place" for world in worlds if world.is_file())


def check_pixels(path: Path, opened: Opened) -> None:
    """Refuse an open image that GDAL would read on though pixels lack or are stored turned, or cannot read.

    Raises:
        RasterError: what it lacks, or how it is turned.
    """
    driver = opened.dataset.driver
    with naming(path, "cannot open it", f"expected a {driver} that is whole"):
        if driver == "PNG":
            check_png(path, opened.stamp)
        check_orientation(path, opened.stamp)


def _check_mask(path: Path, dataset: Any) -> None:
    """Refuse a mask file of another size: GDAL would take its top left part."""
    if isinstance(path, RemotePath):
        return
    beside = path.with_name(path.name + ".msk")
    if not beside.is_file():
        return
    with rasterio.open(beside.absolute(), driver="GTiff", sharing=False) as mask:
        if mask.shape != dataset.shape:
            sizes = ["×".join(map(str, shape[::-1])) for shape in (dataset.shape, mask.shape)]
            raise RasterError(f"{path}: expected a mask of {sizes[0]} pixels, {beside.name} has {sizes[1]}")


def check_drivers(names: Sequence[str], asked: str = "--drivers") -> None:
    """Refuse names that GDAL does not know; `asked`: the setting."""
    set_up_gdal()
    with rasterio.Env() as env:
        if unknown := sorted(set(names) - env.drivers().keys()):
            raise RasterError(f"{asked}: GDAL has no driver {unknown[0]}; `gdalinfo --formats` lists them")
