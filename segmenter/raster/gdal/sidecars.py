"""Sidecar files that GDAL and PROJ open on their own: files beside a raster, and files that it names.

A foreign raster is data: it must not choose which other files are opened. Sidecars that GDAL looks for by
name are allowed if they are regular files of limited size that name no further file.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

import rasterio

from segmenter.base.errors import RasterError
from segmenter.base.files import read_regular, special

TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TEXT_BYTES = 16 << 20
"""Largest sidecar text: GDAL reads it completely, into an XML tree of several times its size."""
_FIELD_BYTES = 1 << 20
_GEO_ASCII = 34737

# What GDAL 3.10 looks for beside x.tif: georeference, satellites' metadata and camera models. It tries both
# capital and small letters.
_TAILS = (
    *(".tab", ".xml", ".imd", ".rpb", ".pvl", ".txt", ".rpc", ".pass", ".wld"),
    *("_rpc.txt", "_metadata.txt", "_mtl.txt", "_metadata.xml"),
)
_MIXED = ("_METADATA.txt", "_MTL.txt")
_BESIDE_ANY = ("metadata.dim", "METADATA.DIM", "summary.txt", "SUMMARY.TXT")
_PARTS_OF_ONE = re.compile(r"_R\d+C\d+.*$")

_NAMES_FILES = re.compile(r"grids|parameterfile|\binit\s*=|\bfile\s*=|pipeline", re.IGNORECASE)
"""In the text of a CRS: parameters whose values are files, which PROJ opens as soon as the text is parsed."""
_WKT = re.compile(r"\s*\w+\s*[\[(]")
_BAND = ["pamdataset", "pamrasterband"]
_CLASS_NAMES = (["categorynames", "category"], ["gdalrasterattributetable", "row", "f"])
"""Elements below it whose text GDAL uses as names, without parsing."""
_CRS_TEXT = re.compile(r"\s*$|\s*\w+\s*[\[(]|\s*\w+:\d+\s*$|\s*urn:[\w:.,-]+\s*$|\s*\+proj=", re.IGNORECASE)
"""Anything else PROJ takes for the name of a file, among others."""


def check_beside(path: Path) -> None:
    """Refuse files beside a raster that GDAL would wrongly open or silently ignore."""
    _check_beside(path, str(path.absolute()))


def check_inside(path: Path) -> None:
    """Refuse a raster that itself names further files."""
    _check_crs_inside(path, str(path.absolute()))


def names_beside(name: str) -> Iterator[str]:
    """Yield the names of all files that can change the meaning of a raster of that file name.

    Mask, .aux.xml, world file and position texts; not overviews, whose pixels are never used.
    """
    yield from (*_cases(f"{name}.", "msk"), f"{name}.aux.xml")
    yield from (*_cases(f"{_stem(name)}.", "aux"), *_cases(f"{name}.", "aux"), *_texts(name))


def check_overviews(path: Path, dataset: Any) -> None:
    """Refuse an open raster with overviews in another file: GDAL would open that by any driver or address."""
    if (other := dataset.get_tag_item("OVERVIEW_FILE", "OVERVIEWS")) is not None:
        raise RasterError(
            path,
            f"names another file as its overviews (OVERVIEW_FILE is {_short(other)}), which is not opened",
            remedy="remove that item from its metadata, or from the .aux.xml beside it",
        )


def _check_beside(path: Path, name: str) -> None:
    """Check the sidecars of `name`: a raster, or an overview or mask file, which may have sidecars too."""
    for text in _texts(name):
        if os.access(text, os.F_OK):  # ten times as fast as asking for what is not there
            _check_ordinary(path, text, _TEXT_BYTES)
    _check_xml(path, f"{name}.aux.xml")
    for aux in _cases(f"{_stem(name)}.", "aux") + _cases(f"{name}.", "aux"):
        if os.access(aux, os.F_OK):
            _check_aux(path, aux)
    for image in _cases(f"{name}.", "msk") + _cases(f"{name}.", "ovr"):
        if os.access(image, os.F_OK):
            _check_image(path, image)


def _stem(name: str) -> str:
    folder, file = os.path.split(name)
    return os.path.join(folder, file.rpartition(".")[0] or file)


def _cases(start: str, ending: str) -> list[str]:
    return [start + ending.lower(), start + ending.upper()]


def _texts(name: str) -> Iterator[str]:
    """Yield the names of all text files with a position that GDAL may look for."""
    stem = _stem(name)
    folder, short = os.path.split(stem)
    for tail in _TAILS:
        yield from _cases(stem, tail)
    yield from (stem + tail for tail in _MIXED)
    ending = name[len(stem) + 1 :]
    if ending:
        for world in (f"{ending[0]}{ending[-1]}w", f"{ending}w", "jpw"):
            yield from _cases(f"{stem}.", world)
    others = [*_BESIDE_ANY]
    for kind in ("HDR", "RPC"):  # ALOS
        others += [f"{kind}{short[cut:]}{tail}" for cut in (3, 6) for tail in (".txt", ".TXT")]
    for kind in ("DIM_", "RPC_"):  # Pléiades
        others += [f"{kind}{part}.XML" for part in (short[4:], _PARTS_OF_ONE.sub("", short[4:]))]
    if "." in short:  # EROS
        others += _cases(short.rpartition(".")[0], ".pass")
    for at, letter in enumerate(short):  # Landsat and GeoEye: one for all bands
        if letter == "_":
            tails = ("_metadata.txt", "_METADATA.txt", "_MTL.txt", "_MTL.TXT")
            others += [short[:at] + tail for tail in tails]
    yield from (os.path.join(folder, other) for other in others)


def _check_ordinary(path: Path, beside: str, most: int | None = None) -> None:
    status, name = os.stat(beside), os.path.basename(beside)
    if special(status):
        raise RasterError(
            path, expected=f"a file beside it as {name}, it is a pipe or device", remedy="remove it"
        )
    if most is not None and status.st_size > most:
        raise RasterError(
            path,
            expected=f"at most {most >> 20} MiB in {name} beside it",
            got=f"{status.st_size:,} bytes",
            remedy="remove it, or make it anew",
        )


def _check_aux(path: Path, beside: str) -> None:
    """Refuse sidecars of ERDAS IMAGINE: they name further files, also for pixels."""
    _check_ordinary(path, beside)
    with open(beside, "rb") as file:
        if file.read(15) == b"EHFA_HEADER_TAG":
            raise RasterError(
                path,
                f"{os.path.basename(beside)} beside it is an ERDAS IMAGINE file, which may point to other "
                "files; it is not opened",
                remedy="remove it (gdaladdo makes overviews, gdal_edit.py sets a CRS)",
            )


def _check_image(path: Path, beside: str) -> None:
    """Refuse an overview or mask beside an image that GDAL would open by any driver, or ignore."""
    _check_ordinary(path, beside)
    with open(beside, "rb") as file:
        start = file.read(4)
    if start not in TIFF_SIGNATURES:
        raise RasterError(
            path,
            expected=f"a TIFF beside it as {beside[-4:]}, {os.path.basename(beside)} begins with {start!r}",
            remedy="remove it, or make it anew",
        )
    _check_crs_inside(path, beside)
    _check_beside(path, beside)  # it may have overviews and a mask of its own
    with rasterio.open(Path(beside), driver="GTiff", sharing=False) as dataset:
        check_overviews(path.with_name(os.path.basename(beside)), dataset)


def _check_xml(path: Path, beside: str) -> None:
    """Refuse an .aux.xml that GDAL would silently ignore, together with its nodata values and position."""
    if not os.access(beside, os.F_OK) or os.path.isdir(beside):
        return
    name = os.path.basename(beside)
    _check_ordinary(path, beside, _TEXT_BYTES)
    texts = _Texts()
    try:
        texts.parse(read_regular(Path(beside), _TEXT_BYTES).decode(errors="replace"))
    except expat.ExpatError as error:
        raise RasterError(
            path, expected=f"XML beside it, {name} is none ({error})", remedy="remove it, or make it anew"
        ) from None
    for text in texts.crs + [text for text in texts.others if _WKT.match(text)]:
        if _NAMES_FILES.search(text) or not _CRS_TEXT.match(text):
            raise RasterError(
                path,
                expected=f"a CRS in {name} that names no file, as WKT, EPSG:… or +proj=…",
                got=_short(text),
                remedy="mend or remove it",
            )


class _Texts:
    """Texts of an .aux.xml: those that GDAL parses as a CRS, and all others.

    Class names are left out: one may be called `pipeline (buried)`.
    """

    def __init__(self) -> None:
        self.crs: list[str] = []
        self.others: list[str] = []
        self._open: list[list[str]] = []
        self._names: list[str] = []

    def parse(self, text: str) -> None:
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(text.encode(), True)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        for key, text in attributes.items():
            (self.crs if key.lower() == "projection" else self.others).append(text)
        self._open.append([])
        self._names.append(name.lower())

    def _end(self, name: str) -> None:
        text, path = "".join(self._open.pop()), self._names.copy()
        self._names.pop()
        if name.lower() == "srs":
            self.crs.append(text)
        elif path[:2] != _BAND or path[2:] not in _CLASS_NAMES:
            self.others.append(text)

    def _text(self, text: str) -> None:
        self._open[-1].append(text)


def _check_crs_inside(path: Path, name: str) -> None:
    """Refuse a GeoTIFF whose WKT CRS (`ESRI PE String`) names files."""
    with open(name, "rb") as file:
        for _, value in tiff_fields(file, (_GEO_ASCII,)):
            text = value.decode("latin-1")
            if "pe string" in text.lower() and _NAMES_FILES.search(text):
                start = text.lower().index("pe string")
                raise RasterError(
                    path,
                    expected="a CRS that names no file",
                    got=_short(text[start:]),
                    remedy="set another (gdal_edit.py -a_srs)",
                )


def tiff_fields(file: BinaryIO, tags: Collection[int]) -> Iterator[tuple[str, bytes]]:
    """Yield byte order (`<` or `>`) and value, cut at 1 MiB, of fields of a TIFF's first directory.

    Nothing if the TIFF is damaged.
    """
    head = file.read(16)
    if head[:4] not in TIFF_SIGNATURES:
        return
    order, big = "<>"[head[:1] == b"M"], head[2:4] in (b"+\0", b"\0+")
    count, entry, word = ("Q", "HHQ", 8) if big else ("H", "HHI", 4)
    try:
        (at,) = struct.unpack_from(order + "IQ"[big], head, 8 if big else 4)
        file.seek(at)
        size = struct.calcsize(order + count)
        (entries,) = struct.unpack(order + count, file.read(size))
        length = struct.calcsize(order + entry) + word
        table = file.read(min(entries, 1 << 16) * length)
        for start in range(0, len(table) - length + 1, length):
            tag, kind, number = struct.unpack_from(order + entry, table, start)
            if tag not in tags:
                continue
            value = table[start + length - word : start + length]
            number *= {3: 2, 4: 4, 8: 2, 9: 4, 11: 4, 13: 4}.get(
                kind, 8 if kind in (5, 10, 12, 16, 17, 18) else 1
            )
            if number > word:
                file.seek(struct.unpack(order + "IQ"[big], value)[0])
                value = file.read(min(number, _FIELD_BYTES))
            yield order, value[:number]
    except (struct.error, OSError, OverflowError, ValueError):  # GDAL cannot read it either
        return


def _short(text: str) -> str:
    return ascii(text if len(text) <= 120 else f"{text[:120]}...")
