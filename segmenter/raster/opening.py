"""Opening of rasters: accepted files, page, GDAL driver and messages of GDAL."""

from __future__ import annotations

import contextlib
import io
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import rasterio
from rasterio.enums import MaskFlags
from rasterio.io import DatasetReader

from segmenter.base.errors import RasterError
from segmenter.raster.gdal.faults import FAULTS, naming
from segmenter.raster.gdal.files import own_env
from segmenter.raster.gdal.private import messages
from segmenter.raster.gdal.settings import MEANING, set_up_gdal
from segmenter.raster.gdal.sidecars import TIFF_SIGNATURES, check_overviews, tiff_fields
from segmenter.raster.remote.settings import open_bytes, patiently
from segmenter.raster.source import RasterSource, driver_of, first_bytes
from segmenter.raster.stamps import Stamp

_LOST = re.compile(r'"(Geo|GDAL|RPC|Intergraph|ExtraSamples)|GeoTIFF tags apparently corrupt|Corrupt JPEG')
"""GDAL's warnings about lost position, nodata or pixels."""
_TOLD = re.compile(r"ignor|corrupt|bogus|mismatch|not the same|NODATA_VALUES|null byte", re.IGNORECASE)
"""GDAL's warnings that are worth a line of ours."""

_PADDED = "contains null byte"
"""GDAL also reports it for a text that ends in two null bytes, without loss."""
_NAMES = re.compile(r"^[,: ]*(band \d+: )?")
"""The rest of a file's name at the beginning of a message."""
_PAGE = re.compile(r"Page (\d+) \((\d+)P x (\d+)L x")
_SHOWN = 3
_ORIENTATION = 274
_EXIF_BYTES = 1 << 16
_TURNED = frozenset(map(str, range(2, 9)))


@contextlib.contextmanager
def raising_damage() -> Iterator[None]:
    """Raise an error for GDAL's warnings that mean wrong pixels while the block reads."""
    with messages() as remarks:
        yield
    for _, text in remarks:
        if _LOST.search(text):
            raise OSError(text)


class Opened(NamedTuple):
    """An open rasterio dataset, its source as it was before, and warnings about the files."""

    dataset: Any
    source: RasterSource
    remarks: tuple[str, ...]

    @property
    def stamp(self) -> Stamp:
        """State of the files before they were opened."""
        return self.source.stamp


def open_dataset(path: Path, drivers: Sequence[str] = ()) -> Opened:
    """Open a dataset by the driver that its first bytes indicate, or by one of `drivers`."""
    set_up_gdal()
    try:
        str(path).encode()
    except UnicodeError:  # rasterio takes no bytes
        raise RasterError(
            f"{str(path)!a}", expected="a file name in UTF-8", remedy="rename the file"
        ) from None
    return patiently(path, lambda: _open_dataset(path, drivers))


def _open_dataset(path: Path, drivers: Sequence[str]) -> Opened:
    with (
        naming(path, "cannot open it", "expected a GeoTIFF, PNG or JPEG that is whole"),
        contextlib.ExitStack() as undo,
    ):
        source = RasterSource.of(path)
        wanted = _drivers(source, drivers)
        source.check_sidecars()
        # Only within an Env GDAL speaks to rasterio at all, but for reads.
        with own_env(**MEANING | source.settings), messages() as gdal_messages:
            dataset = undo.enter_context(_open_source(source, wanted, gdal_messages))
            if (page := full_page(source, dataset)) is not None:
                dataset = undo.enter_context(rasterio.open(page, driver=dataset.driver, sharing=False))
            check_overviews(path, dataset)
            flags = dataset.mask_flag_enums  # only now GDAL looks for a mask
        remarks = _judge_messages(source, gdal_messages) + _world_file(source, dataset)
        if any(MaskFlags.per_dataset in each for each in flags):
            _check_mask(source, dataset)
        undo.pop_all()
        return Opened(dataset, source, remarks)


def _open_source(source: RasterSource, drivers: Sequence[str], said: list[Any]) -> Any:
    for name in drivers:
        said.clear()  # what another driver had to say
        with contextlib.suppress(*(FAULTS if name != drivers[-1] else ())):
            return DatasetReader(str(source.name), driver=name, sharing=False)
    raise AssertionError("the last driver opens it or raises")


def _drivers(source: RasterSource, allowed: Sequence[str]) -> Sequence[str]:
    """Return the driver that a file's first bytes indicate, or the drivers that may open any file."""
    path, start, driver = source.path, source.start, source.driver
    if start == b"vers":
        remedy = "git lfs pull fetches the files"
        raise RasterError(path, expected="a raster file, got a pointer of Git LFS", remedy=remedy)
    if not start:
        raise RasterError(
            path, expected="a raster file, got an empty one", remedy="is its download complete?"
        )
    if driver is None and not allowed:
        raise RasterError(
            path,
            expected=f"a GeoTIFF, PNG or JPEG, the file begins with {start!r}",
            remedy="other formats are opened by drivers of GDAL that are named, in dataset.drivers or "
            "--drivers: [JP2OpenJPEG], [VRT]",
        )
    return allowed if driver is None else (driver,)


def opens_by_itself(path: Path) -> bool:
    """Return whether a file's first bytes are those of a GeoTIFF, PNG or JPEG, so no driver must be named."""
    with naming(path, "cannot open it", "expected a raster file"):
        return driver_of(first_bytes(path)) is not None


def files_behind(path: Path, drivers: Sequence[str] = ()) -> list[Path]:
    """Return a raster's file and, if it needs `drivers`, all files that GDAL reads for it.

    A VRT has changed if any file that it names has changed.

    Raises:
        RasterError: the raster cannot be opened.
    """
    if not drivers or opens_by_itself(path):
        return [path]
    with open_dataset(path, drivers).dataset as dataset:
        return [path, *sorted(Path(name) for name in dataset.files if Path(name) != path)]


def _judge_messages(source: RasterSource, said: Sequence[tuple[bool, str]]) -> tuple[str, ...]:
    """Return warnings for the user from GDAL's messages about a header."""
    texts: dict[str, None] = {}  # each once, in order
    for error, text in said:
        plain = _NAMES.sub("", text.replace(str(source.name), "").replace(source.path.name, ""))
        plain = " ".join(plain.split())
        if error or (_LOST.search(text) and _PADDED not in text):
            raise RasterError(
                source.path, f"cannot read its header: {plain.rstrip('.')}; the file is damaged"
            )
        if _TOLD.search(text):
            texts[f"GDAL remarks: {plain}"] = None
    return tuple(texts)


def _world_file(source: RasterSource, dataset: Any) -> tuple[str, ...]:
    """Return a warning if a world file gave no geotransform."""
    path, ending = source.path, source.path.suffix[1:]
    if not dataset.transform.is_identity or not ending:
        return ()
    worlds = (path.with_suffix(each).name for each in (f".{ending[0]}{ending[-1]}w", f".{ending}w", ".wld"))
    return tuple(
        f"its world file {world.name} holds no usable georeference" for world in source.sidecar_files(*worlds)
    )


def check_pixels(path: Path, opened: Opened) -> None:
    """Refuse an open image with rotated pixels, or whose blocks take too long to decode."""
    driver = opened.dataset.driver
    with naming(path, "cannot open it", f"expected a {driver} that is whole"):
        if driver == "PNG":
            _check_interlacing(path, opened.dataset)
        _check_orientation(path, opened.dataset)


def _check_mask(source: RasterSource, dataset: Any) -> None:
    """Refuse a mask file of another size: GDAL would use its top left part."""
    for beside in source.sidecar_files(source.path.name + ".msk"):
        with rasterio.open(beside.absolute(), driver="GTiff", sharing=False) as mask:
            if mask.shape != dataset.shape:
                sizes = ["×".join(map(str, shape[::-1])) for shape in (dataset.shape, mask.shape)]
                raise RasterError(
                    source.path, expected=f"a mask of {sizes[0]} pixels, {beside.name} has {sizes[1]}"
                )


def check_drivers(names: Sequence[str], asked: str = "--drivers") -> None:
    """Refuse names of drivers that GDAL does not have; `asked`: the setting that names them."""
    set_up_gdal()
    with rasterio.Env() as env:
        if unknown := sorted(set(names) - env.drivers().keys()):
            raise RasterError(asked, f"GDAL has no driver {unknown[0]}; `gdalinfo --formats` lists them")


# ------------------------------------------------------------------------------------------------------ pages


def full_page(source: RasterSource, dataset: Any) -> str | None:
    """Return GDAL's name of the one page that is larger than all others; None if that is the first page.

    Smaller pages are previews. Masks and overviews are not counted as pages.

    Raises:
        RasterError: several pages have the largest size, or the file has only subdatasets.
    """
    if not dataset.count:
        parts = ", ".join(dataset.subdatasets[:_SHOWN]) or "none"
        raise RasterError(
            source.path,
            expected=f"a raster with bands, it has only subdatasets: {parts}",
            remedy="write the one that is meant to a GeoTIFF: gdal_translate SUBDATASET FILE.tif",
        )
    if dataset.driver != "GTiff" or len(dataset.subdatasets) < 2:
        return None
    names = dataset.tags(ns="SUBDATASETS")
    pages = [_PAGE.match(text) for name, text in names.items() if name.endswith("_DESC")]
    sizes = {int(page[1]): (int(page[3]), int(page[2])) for page in pages if page is not None}
    largest = max(sizes.values(), key=lambda size: size[0] * size[1])
    full = [number for number, size in sizes.items() if size == largest]
    name = source.name
    if len(full) > 1 or (full[0] != 1 and source.stamp.beside):
        height, width = largest
        raise RasterError(
            source.path,
            expected="one page",
            got=f"{len(sizes)}, {len(full)} of them of {height}×{width} pixels",
            remedy=f"write the one that is meant: gdal_translate GTIFF_DIR:{full[0]}:{name} PAGE.tif - or, "
            "where each is a band, such a file of each, and then one of all: gdal_merge.py -separate",
        )
    return None if full[0] == 1 else f"GTIFF_DIR:{full[0]}:{name}"


# ------------------------------------------------------------------------------------------------ orientation


def _check_orientation(path: Path, dataset: Any) -> None:
    """Refuse a TIFF, JPEG, PNG or WebP whose header rotates or mirrors its pixels."""
    tag = dataset.tags().get("EXIF_Orientation", "1") if dataset.driver == "JPEG" else _orientation(path)
    if str(tag) in _TURNED:
        raise RasterError(
            path,
            expected=f"pixels stored as they are shown, its orientation tag ({tag}) turns or mirrors them",
            remedy=f"turn the pixels: mogrify -auto-orient {path.name} - or, where they are right as they "
            f"are stored, remove the tag: exiftool -Orientation= {path.name}",
        )


def _orientation(path: Path) -> int:
    """Return the orientation tag of a TIFF, PNG or WebP; 1 if there is none."""
    with open_bytes(path) as file:
        start = file.read(12)
        if start[:4] in TIFF_SIGNATURES:
            file.seek(0)
            return _tag(file)
        if start[:4] == b"\x89PNG":
            places = _chunks(file, 8, ">I4s", 4, b"eXIf")
        elif start[:4] == b"RIFF" and start[8:] == b"WEBP":
            places = _chunks(file, 12, "<4sI", 0, b"EXIF")
        else:
            return 1
        for place in places:
            file.seek(place)
            return _tag(io.BytesIO(file.read(_EXIF_BYTES)))
    return 1


def _tag(file: BinaryIO) -> int:
    """Return the orientation in a TIFF structure; 1 if it has none."""
    for order, value in tiff_fields(file, (_ORIENTATION,)):
        return int(struct.unpack_from(order + "H", value)[0]) if len(value) >= 2 else 1
    return 1


def _chunks(file: BinaryIO, at: int, head: str, checksum: int, wanted: bytes) -> Iterator[int]:
    """Yield the positions of the contents of all chunks of one name, in a PNG or a RIFF file."""
    size = struct.calcsize(head)
    file.seek(at)
    while len(data := file.read(size)) == size:
        fields = struct.unpack(head, data)
        length, name = (fields[0], fields[1]) if head[0] == ">" else (fields[1], fields[0])
        if name == wanted:
            skip = 6 if _exif_prefix(file, at + size) else 0  # some writers put JPEG's prefix there too
            yield at + size + skip
        if name == b"IEND":
            return
        at += size + length + checksum + (0 if head[0] == ">" else length % 2)
        file.seek(at)


def _exif_prefix(file: BinaryIO, at: int) -> bool:
    file.seek(at)
    return file.read(6) == b"Exif\0\0"


_MOST_INTERLACED_BYTES = 1 << 28
"""Largest interlaced PNG: GDAL decodes such an image again for every 100 MB of its rows."""
_INTERLACED = 28
"""Place of the byte of a PNG's header that tells so."""


def _check_interlacing(path: Path, dataset: Any) -> None:
    with open_bytes(path) as file:
        if file.read(_INTERLACED + 1)[_INTERLACED:] != b"\1":
            return
    declared = dataset.width * dataset.height * dataset.count * np.dtype(dataset.dtypes[0]).itemsize
    if declared > _MOST_INTERLACED_BYTES:
        raise RasterError(
            f"{path}: is an interlaced PNG of {declared >> 20} MiB, at most {_MOST_INTERLACED_BYTES >> 20} "
            "are decoded; save it without interlacing, or as a GeoTIFF"
        )
    with raising_damage():  # GDAL keeps what it decoded of a damaged one, and raises at the first read alone
        dataset.read(1, window=((dataset.height - 1, dataset.height), (0, 1)))
