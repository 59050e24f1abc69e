"""Names and colours of classes from files beside labels: styles, colour tables, lists, attribute tables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from segmenter.base.errors import SegmenterError
from segmenter.base.files import read_regular
from segmenter.grid.labels import Colour

_ENDINGS = (".qml", ".clr", ".txt", ".csv", ".xml", ".tsv")
_MOST_BYTES, _MOST_LINES, _LONGEST_NAME = 1 << 20, 300, 60
_CODE = re.compile(r"(\d{1,5})(?:\.0*)?")
_HEX = re.compile(r"#?([0-9A-Fa-f]{6})(?:[0-9A-Fa-f]{2})?")


@dataclass(frozen=True)
class Entry:
    """One class of a legend; the code or the colour may be missing."""

    name: str
    code: int | None = None
    colour: Colour | None = None


@dataclass(frozen=True)
class Legend:
    """Classes that a file names."""

    file: str = ""
    entries: tuple[Entry, ...] = ()

    def entry(self, value: int, *, colours: bool) -> Entry | None:
        """Return the entry of a code, or of a colour as 0xrrggbb."""
        wanted = as_colour(value) if colours else value
        return next(
            (each for each in self.entries if (each.colour if colours else each.code) == wanted), None
        )


def as_colour(value: int) -> Colour:
    """Return 0xrrggbb as three values."""
    return value >> 16, value >> 8 & 255, value & 255


def find_legend(root: Path, files: Sequence[str], values: Sequence[int], *, colours: bool) -> Legend:
    """Return the legend that names the most of the values, at least half of them; else an empty one."""
    best, most = Legend(), (len(values) + 1) // 2
    for file in files:
        if PurePosixPath(file).suffix.lower() not in _ENDINGS:
            continue
        try:
            text = read_regular(root / file, _MOST_BYTES).decode("utf-8-sig")
        except (SegmenterError, UnicodeError):
            continue
        legend = Legend(file, tuple(_entries(text, 0 if colours else len(values))))
        named = sum(legend.entry(value, colours=colours) is not None for value in values)
        if named >= most + bool(best.entries):
            best, most = legend, named
    return best


def _entries(text: str, values: int) -> Iterator[Entry]:
    if text.lstrip().startswith("<"):
        yield from _of_xml(text)
        return
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        return
    entries = [entry for line in lines if (entry := _of_line(line)) is not None]
    names_alone = 0 < values <= len(lines) and all(
        re.fullmatch(r"[^\W\d][^/\\.,;:]*", line) for line in lines
    )
    yield from entries or (Entry(_name(line), code) for code, line in enumerate(lines) if names_alone)


def _of_line(line: str) -> Entry | None:
    """Return the entry of a line with a name and a code, three numbers of a colour, or both; else None."""
    cells = [cell.strip(" \"'[](){}") for cell in re.split(r"[,;\t]|[:=]\s|(?<=\d)\s+|\s+(?=\d)", line)]
    numbers = [int(cell) for cell in cells if re.fullmatch(r"\d{1,5}", cell)]
    words = [cell for cell in cells if re.search(r"[^\W\d]", cell) and not _HEX.fullmatch(cell)]
    hexes = [colour for cell in cells if re.search(r"\D", cell) and (colour := _colour(cell))]
    if not words or len(numbers) == 2:
        return None
    rgb = numbers[-3:] if len(numbers) in (3, 4) else numbers[1:4]
    triple = (rgb[0], rgb[1], rgb[2]) if len(rgb) == 3 and max(rgb) <= 255 else None
    code, colour = numbers[0] if len(numbers) in (1, 4, 5) else None, hexes[0] if hexes else triple
    return Entry(_name(words[0]), code, colour) if code is not None or colour is not None else None


def _colour(text: str | None) -> Colour | None:
    match = _HEX.fullmatch(text or "")
    return None if match is None else as_colour(int(match[1], 16))


def _name(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_LONGEST_NAME]


def _of_xml(text: str) -> Iterator[Entry]:
    """Yield the entries of a QGIS style, or of GDAL's category names and attribute table."""
    try:
        tree = ET.fromstring(re.sub(r"<!DOCTYPE qgis[^>\[]*>", "", text) if "<!ENTITY" not in text else "")
    except ET.ParseError:
        return
    for each in (*tree.iter("paletteEntry"), *tree.iter("item")):
        if (code := _CODE.fullmatch(each.get("value", ""))) and each.get("label"):
            yield Entry(_name(each.get("label", "")), int(code[1]), _colour(each.get("color")))
    for number, each in enumerate(tree.iter("Category")):
        if (each.text or "").strip():
            yield Entry(_name(each.text or ""), number)
    for table in tree.iter("GDALRasterAttributeTable"):
        yield from _of_table(table)


def _of_table(table: ET.Element) -> Iterator[Entry]:
    """Yield the rows of GDAL's raster attribute table, whose columns have usages or usual titles."""
    columns = [
        (each.findtext("Usage", ""), each.findtext("Name", "").lower()) for each in table.iter("FieldDefn")
    ]

    def column(usages: str, *titles: str) -> int | None:
        return next(
            (i for i, (usage, title) in enumerate(columns) if usage in usages.split() or title in titles),
            None,
        )

    value, name = column("5 3", "value"), column("2", "class", "class_name", "name")
    rgb = [column(usage) for usage in "678"]
    if value is None or name is None:
        return
    for row in table.iter("Row"):
        cells = [cell.text or "" for cell in row.iter("F")]
        if len(cells) == len(columns) and (code := _CODE.fullmatch(cells[value])) and cells[name].strip():
            parts = [cells[i] for i in rgb if i is not None]
            whole = len(parts) == 3 and all(part.isdecimal() and int(part) < 256 for part in parts)
            colour = (int(parts[0]), int(parts[1]), int(parts[2])) if whole else None
            yield Entry(_name(cells[name]), int(code[1]), colour)
