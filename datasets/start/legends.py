"""Names and colours of classes from files beside labels: QGIS styles, colour tables, lists, attribute tables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.base.files import read_regular
from segmenter.grid.labels import Colour

LEGENDS = (".qml", ".clr", ".txt", ".csv", ".xml", ".tsv")
_MOST_BYTES = 1 << 20
_MOST_ENTRIES = 300
_NUMBER = re.compile(r"\d{1,5}")
_HEX = re.compile(r"#?([0-9A-Fa-f]{6})(?:[0-9A-Fa-f]{2})?")


@dataclass(frozen=True)
class Entry:
    """One class of a legend; the code or the colour may be missing."""

    name: str
    code: int | None = None
    colour: Colour | None = None


@dataclass(frozen=True)
class Legend:
    """Classes that a file names.

    Attributes:
        file: relative path.
    """

    file: str = ""
    entries: tuple[Entry, ...] = field(default=())

    def of_code(self, code: int) -> Entry | None:
        """Return the entry of a code."""
        return next((entry for entry in self.entries if entry.code == code), None)

    def of_colour(self, colour: Colour) -> Entry | None:
        """Return the entry of a colour."""
        return next((entry for entry in self.entries if entry.colour == colour), None)


def find_legend(root: Path, files: Sequence[str], values: Iterable[int], *, colours: bool) -> Legend:
    """Return the legend that names the most of the values, at least half of them; else an empty one.

    Args:
        values: codes, or colours as numbers 0xrrggbb, of the labels.
        colours: the values are colours.
    """
    wanted, best, most = list(values), Legend(), 0
    for file in files:
        if Path(file).suffix.lower() not in LEGENDS:
            continue
        try:
            text = read_regular(root / file, _MOST_BYTES).decode("utf-8-sig")
        except (SegmenterError, UnicodeError):
            continue
        legend = Legend(file, tuple(_entries(file, text, 0 if colours else len(wanted))))
        ask = legend.of_code if not colours else lambda v: legend.of_colour((v >> 16, v >> 8 & 255, v & 255))  # noqa: B023
        named = sum(ask(value) is not None for value in wanted)
        if named > most and 2 * named >= len(wanted):
            best, most = legend, named
    return best


def _entries(file: str, text: str, least: int) -> Iterator[Entry]:
    if text.lstrip().startswith("<"):
        yield from _of_xml(text)
        return
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > _MOST_ENTRIES or file.rpartition("/")[2].startswith("."):
        return
    found = [entry for line in lines if (entry := _of_line(line)) is not None]
    if found:
        yield from found
    elif least and least <= len(lines) and all(re.fullmatch(r"[^\W\d][^/\\.,;:]*", line) for line in lines):
        yield from (Entry(line, code) for code, line in enumerate(lines))


def _of_line(line: str) -> Entry | None:
    """Return the entry of a line with a code, or three numbers or a hex colour, and a name; None if it has none."""
    cells = [cell.strip(" \"'[](){}") for cell in re.split(r"[,;\t]|[:=]\s|\s{2,}", line)]
    if len(cells) < 2:
        cells = line.replace(":", " ").replace("=", " ").split()
        if len(cells) >= 2 and not _NUMBER.fullmatch(cells[-1]) and _NUMBER.fullmatch(cells[0]):
            numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
            cells = [*numbers, " ".join(cell for cell in cells if not _NUMBER.fullmatch(cell))]
    cells = [cell for cell in cells if cell]
    numbers = [int(cell) for cell in cells if _NUMBER.fullmatch(cell)]
    hexes = [cell for cell in cells if _HEX.fullmatch(cell) and not _NUMBER.fullmatch(cell)]
    names = [
        cell
        for cell in cells
        if not _NUMBER.fullmatch(cell) and cell not in hexes and re.search(r"[^\W\d]", cell)
    ]
    if not names:
        return None
    name = _plain(names[0])
    colour = _colour(hexes[0]) if hexes else _triple(numbers)
    if len(numbers) in (1, 4, 5):
        return Entry(name, numbers[0], colour if hexes or len(numbers) < 4 else _triple(numbers[1:4]))
    return Entry(name, None, colour) if colour is not None else None


def _triple(numbers: Sequence[int]) -> Colour | None:
    if len(numbers) < 3 or max(numbers[:3]) > 255:
        return None
    return numbers[0], numbers[1], numbers[2]


def _colour(text: str | None) -> Colour | None:
    match = _HEX.fullmatch(text or "")
    return None if match is None else (int(match[1][:2], 16), int(match[1][2:4], 16), int(match[1][4:], 16))


def _plain(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:60]


def _of_xml(text: str) -> Iterator[Entry]:
    """Yield the entries of a QGIS style, or of GDAL's category names and attribute table."""
    if "<!ENTITY" in text:
        return
    try:
        tree = ET.fromstring(text.replace("<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>", ""))
    except ET.ParseError:
        return
    for tag in ("paletteEntry", "item"):
        for each in tree.iter(tag):
            value, name = each.get("value", ""), _plain(each.get("label") or "")
            if re.fullmatch(r"\d{1,5}(\.0*)?", value) and name:
                yield Entry(name, int(float(value)), _colour(each.get("color")))
    for code, each in enumerate(tree.iter("Category")):
        if each.text and each.text.strip():
            yield Entry(_plain(each.text), code)
    yield from _of_table(tree)


def _of_table(tree: ET.Element) -> Iterator[Entry]:
    """Yield the rows of GDAL's raster attribute table; usages: 2 name, 3 lowest and 5 exact value, 6 … 8 colour."""
    table = next(tree.iter("GDALRasterAttributeTable"), None)
    if table is None:
        return
    usage = [each.findtext("Usage", "0") for each in table.iter("FieldDefn")]
    titles = [each.findtext("Name", "").lower() for each in table.iter("FieldDefn")]
    value = next((i for i, u in enumerate(usage) if u in ("5", "3")), None)
    value = next((i for i, t in enumerate(titles) if t == "value"), None) if value is None else value
    name = next((i for i, u in enumerate(usage) if u == "2"), None)
    name = (
        next((i for i, t in enumerate(titles) if t in ("class", "name", "class_name")), None)
        if name is None
        else name
    )
    if value is None or name is None:
        return
    for row in table.iter("Row"):
        cells = [cell.text or "" for cell in row.iter("F")]
        if len(cells) != len(usage) or not re.fullmatch(r"\d{1,5}(\.0*)?", cells[value]):
            continue
        rgb = [cells[usage.index(u)] for u in ("6", "7", "8") if u in usage]
        colour = (
            _triple([int(c) for c in rgb]) if len(rgb) == 3 and all(map(_NUMBER.fullmatch, rgb)) else None
        )
        yield Entry(_plain(cells[name]), int(float(cells[value])), colour)
