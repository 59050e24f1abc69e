"""Names and colours of classes from files beside labels: styles, colour tables, lists, attribute tables."""

from __future__ import annotations

import codecs
import json
import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from segmenter.base.errors import SegmenterError
from segmenter.base.files import read_regular
from segmenter.config.reading import parse

from .names import split_of_words
from .tables import ASKED, CODE, LETTER, LONGEST_LINE, TitledTable, divider_of, hex_value, rgb_value

_ENDING = re.compile(r"\.(qml|sld|clr|txt|csv|xml|tsv|json|emd|ya?ml|names|vat\.dbf)$", re.I)
_MOST_BYTES, _MOST_LINES, _LONGEST_NAME, _MOST_WORDS = 1 << 20, 300, 60, 5
_CELLS = r"[:=](?=[\s\d])|(?<=\d)\s+(?=\d)"
_SPACES = r"|(?<=\d)\s+|\s+(?=\d)|(?<=#[0-9A-Fa-f]{6})\s+"
"""Dividers of cells beside that of the table: in tables no space beside a word, else that, too."""
_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Marks that Windows writes before a text, and its encoding."""
_PAIRS = re.compile(rb"(?:[\0-\x7f]|[\xa1-\xf7][\xa1-\xfe])*")
"""Bytes of GB 2312: those of Chinese letters come in pairs, of European ones mostly alone."""
_IN_JSON = (
    ("name", "label", "title", "class"),
    ("id", "value", "code", "index"),
    ("color", "colour", "rgb", "hex"),
)
"""Keys of a class in JSON: of its name, code and colour."""
_SPEAKS = re.compile(r"[ck]lass|name|label|[ck]ategor|legend", re.I)
"""Keys of lists of classes."""
_DETECTORS = re.compile(r"\.(names|ya?ml)$", re.I)
"""Lists of detectors' classes, which name no background."""
_STYLED, _TREE = re.compile(r"\.(qml|sld|clr|xml|emd|vat\.dbf)$", re.I), re.compile(r"\.(json|ya?ml)$", re.I)
_TITLES = re.compile(
    r"[ck]las|label|[ck]ateg|legend|cover|land_?use|colou?r|code|value|(?<![^\W_])(r|red)(?![^\W_])", re.I
)
_NAMES = re.compile(
    r"name|(?<![^\W\d_])(typ|desc|title|nutzung|bezeich|libel|nom|clase|art(?![^\W\d_]))", re.I
)
_OTHER = re.compile(
    r"(?<![^\W\d_])((site|place|city|town|country|region|station|state|date|time|year|scene|tile|image|file|path|"
    r"author|sensor|product|version|split)|(lat|lon|ort|datum|ville|pays)(?![^\W\d_]))",
    re.I,
)
"""Titles of columns of lists of classes, surely and perhaps, and of tables of something else."""
_ONCE, _LINES = 0.9, 0.7
"""Shares of the codes of a list of classes that do not recur, and of the lines of any text that have one."""
_NOWHERE = re.compile(
    r"_*(no[ _-]?(data|label|value)|void|ignored?|unlabel+ed|unknown|unclassified|undefined|null|none)_*",
    re.I,
)
"""Names of what counts nowhere."""
_GROUND = re.compile(
    r"_*(back[ _-]?)?ground_*|bg|others?|nothing|empty|clutter|(non?|not)[ _-].*|hintergrund|fond", re.I
)
"""Names of what is none of the other classes, which has code 0."""
GREY = 0x010101
"""A grey, three equal bands, divided by its code."""
_TITLE = re.compile(
    r"\W*(land_?(cover|use)[ _-]?)?([ck]lass|label|[ck]ategor|name|title|type|legend|bezeichnung|clase|nom)"
    r"(e|es|s|n|en|y|ies|ie|ia)?([ _-]?(name|label|title)s?)?\W*",
    re.I,
)
"""Title of a list of names alone."""


@dataclass(frozen=True)
class LegendClass:
    """One class of a legend; the code, or the colour as 0xrrggbb, may be missing."""

    name: str
    code: int | None = None
    colour: int | None = None

    @property
    def nowhere(self) -> bool:
        """Return whether it is named as what counts nowhere."""
        return _NOWHERE.fullmatch(self.name) is not None

    @property
    def ground(self) -> bool:
        """Return whether it is named as what is none of the other classes, or counts nowhere."""
        return self.nowhere or _GROUND.fullmatch(self.name) is not None


@dataclass(frozen=True)
class Legend:
    """Classes that a file names.

    Attributes:
        doubt: what the files cannot tell about the list; empty: nothing.
        other: entries of the other reading, if there is a doubt; without any, names are made up.
    """

    file: str = ""
    entries: tuple[LegendClass, ...] = ()
    doubt: str = ""
    other: tuple[LegendClass, ...] = ()

    def by_value(self, *, colours: bool) -> dict[int | None, LegendClass]:
        """Return the entries by colour, or by code; of equal ones the first."""
        return {each.colour if colours else each.code: each for each in reversed(self.entries)}


def text_of(file: Path, most: int = 1 << 24) -> str:
    """Return a text as its mark says, in UTF-8, or as Windows has it: in Chinese or in western Europe's.

    Raises:
        SegmenterError: the file cannot be read.
        UnicodeError: it is no text.
    """
    raw = read_regular(file, most)
    raw = _of_dbase(raw) if file.suffix.lower() == ".dbf" else raw
    if encoding := next((_MARKS[mark] for mark in _MARKS if raw.startswith(mark)), ""):
        return raw.decode(encoding, "replace")
    if 0 in raw[:2]:  # UTF-16 without a mark
        return raw.decode("utf-16-be" if raw[0] == 0 else "utf-16-le", "replace")
    with suppress(UnicodeError):
        return raw.decode("utf-8-sig")
    return raw.decode("gb18030" if _PAIRS.fullmatch(raw) else "cp1252")


def _of_dbase(raw: bytes) -> bytes:
    """Return the table of a raster of ArcGIS, `.vat.dbf`, as lines of quoted cells without pixel counts."""
    try:
        count, start, length = struct.unpack_from("<IHH", raw, 4)
        cells, at = [], 1
        for field in (raw[i : i + 32] for i in range(32, start - 31, 32)):
            cells += [slice(at, at + field[16])] if field[:6] != b"COUNT\0" else []
            at += field[16]
        rows = [raw[start + i * length :][:length] for i in range(min(count, _MOST_LINES + 1))]
    except (struct.error, IndexError):
        return b""
    whole = [
        [re.sub(rb"\.0*$", b"", row[cell].replace(b'"', b" ").strip()) for cell in cells] for row in rows
    ]
    return b"\n".join(b",".join(b'"%s"' % cell for cell in row) for row in whole)


def find_legend(root: Path, files: Sequence[str], values: Sequence[int], *, colours: bool) -> Legend:
    """Return the legend that names the most of the values, at least half, and no files; else an empty one."""
    best, most = Legend(), (len(values) + 1) // 2
    names = "\n".join(["", *(PurePosixPath(file).name for file in files)])
    for file in files:
        if not _ENDING.search(file):
            continue
        try:
            text = text_of(root / file, _MOST_BYTES)
        except (SegmenterError, UnicodeError):
            continue
        listed = () if colours or split_of_words(Path(file).stem) else values
        for legend in (legend_of(file, text, listed, number) for number in (0, 1)):
            if not colours and legend.entries and all(each.code is None for each in legend.entries):
                legend = _code_colours(legend, values)
            elif not colours and not legend.doubt:
                legend = _renumber(legend, values)
            named = len(legend.by_value(colours=colours).keys() & set(values))
            more = named >= most + bool(best.entries)
            if more and 2 * sum(f"\n{each.name}" in names for each in legend.entries) <= len(legend.entries):
                sure = is_of_classes(legend, text, values, colours=colours)
                if sure is False:
                    continue
                if sure is None:
                    what = f"{file} names {named} of {len(values)} values of the labels, as {_some(legend)}"
                    legend = replace(legend, doubt=f"{what}; is it a table of something else?", other=())
                best, most = legend, named
    return best


def _some(legend: Legend) -> str:
    return ", ".join(f"{each.code} {each.name}" for each in legend.entries[:2])


def is_of_classes(legend: Legend, text: str, values: Sequence[int], *, colours: bool) -> bool | None:
    """Return whether a list that names values of labels is one of classes; None: nothing tells.

    A list of classes has each code once, and hardly more lines than those of classes. A table of something
    else, as of sites or a product's metadata, has small numbers, too. What speaks of classes is the form
    (styles, tables of colours), the name of the file, or the titles of the columns.
    """
    if colours or _STYLED.search(legend.file):
        return True
    codes = [each.code for each in legend.entries if each.code is not None]
    if len(set(codes)) < _ONCE * len(codes) or all(split_of_words(each.name) for each in legend.entries):
        return False
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    divider = divider_of(lines)
    rows = [_of_line(line, 0, divider) is not None for line in lines]
    titles = lines[0] if any(rows) and not rows[0] and not _TREE.search(legend.file) else ""
    if _SPEAKS.search(Path(legend.file).name) or _TITLES.search(titles):
        return True
    if _OTHER.search(titles):
        return False
    if _TREE.search(legend.file):
        return True if _SPEAKS.search(text) else None
    unnamed = len({value for value in values if value not in (0, 255)} - set(codes))
    if unnamed or len(codes) > 2 * len(values) + 2 or len(codes) < _LINES * len(lines):
        return False
    return True if titles and _NAMES.search(titles) else None


def codes_of_names(names: Sequence[str], values: Sequence[int]) -> tuple[range | Sequence[int], int, str]:
    """Return the codes of names without numbers, by the values of the labels; none if no count fits.

    Names are of 0, 1, … or, if only so the last value has a name or if 0 does not occur, of 1, 2, …; a name
    for nothing before them, as `__ignore__` of labelme, has none. As many names as values are in their order.

    Returns:
        The codes; by how much they differ in the other reading, if there is one; and the doubt.
    """
    count, first = len(names), LegendClass(names[0])
    codes = [value for value in values if value < 255 or count > 255]
    codes = codes if len(codes) > 1 else list(values)
    highest = max(codes)
    if first.nowhere and count > 2 and (names[0].startswith("__") or highest == count - 2):
        return range(-1, count - 1), 0, ""
    if highest == count and len(codes) > 1:
        return range(1, count + 1), 0, ""
    if highest > count:
        return (sorted(codes), 0, "") if len(codes) == count else ((), 0, "")
    seen = f"{count} names for the codes {_short(codes)}"
    if 0 not in codes:
        return range(1, count + 1), -1, f"{seen}: is the first one of code 0, which no label has?"
    if first.ground:
        return range(count), 0, ""
    return range(count), 1, f"{seen}: is {names[0]} of code 1, and 0 none of them?"


def _short(codes: Sequence[int]) -> str:
    shown = sorted(codes)
    return f"{shown[0]} … {shown[-1]}" if len(shown) > 3 else ", ".join(map(str, shown))


def _renumber(legend: Legend, values: Sequence[int]) -> Legend:
    """Return a list numbered by its order, from 0 or 1, as one from 1 or 0 if labels are counted so."""
    numbers, seen = [each.code for each in legend.entries], set(values) - {255}
    count = len(numbers)
    if count < 2 or len(seen) < 2 or numbers not in ([*range(count)], [*range(1, count + 1)]):
        return legend
    codes = list(codes_of_names([each.name for each in legend.entries], sorted(seen))[0])
    moved = tuple(replace(e, code=code) for e, code in zip(legend.entries, codes, strict=False))
    told = f"{legend.file} counts from {numbers[0]}, the labels have {_short(sorted(seen))}"
    if codes == [*range(1, count + 1)] and numbers[0] == 0 and count in seen:  # else it had no name
        doubt = f"{told}: is {moved[0].name} {numbers[0]} all the same?"
        return Legend(legend.file, moved, doubt, legend.entries)
    if codes == [*range(count)] and numbers[0] == 1 and seen == {*codes} and count > 2:
        return replace(legend, doubt=f"{told}: is {moved[0].name} 0?", other=moved)
    return legend


def _code_colours(legend: Legend, values: Sequence[int]) -> Legend:
    """Return a list of colours as one of codes: greys by their value, others by their order.

    Where the first of three numbers are the codes of the labels, they are rather these, with a doubt.
    """
    greys, entries = all(not (each.colour or 0) % GREY for each in legend.entries), legend.entries
    if greys:
        greyed = [(each.colour or 0) // GREY for each in entries]
        return Legend(legend.file, tuple(replace(e, code=c) for e, c in zip(entries, greyed, strict=True)))
    ordered = _by_order(f"{legend.file}, codes by its order", entries, values)
    firsts, codes = [(each.colour or 0) >> 16 for each in entries], {*values} - {0, 255}
    if {*firsts} - {0, 255} != codes or len(codes) < 2 or len({*firsts}) < len(firsts):
        return ordered
    coded = tuple(LegendClass(each.name, code) for each, code in zip(entries, firsts, strict=True))
    doubt = f"{legend.file} has three numbers a name, the first ones as codes of labels: are they colours?"
    return Legend(legend.file, coded, doubt, ordered.entries)


def _by_order(file: str, entries: Sequence[LegendClass], values: Sequence[int]) -> Legend:
    """Return entries with the codes that their order and the values of the labels give."""
    codes, step, doubt = codes_of_names([each.name for each in entries], values)
    if sorted({*values} - {255}) == [*range(len(entries))] and not _DETECTORS.search(file):
        doubt = ""  # a name for each value
    coded = tuple(replace(e, code=c) for e, c in zip(entries, codes, strict=False))
    other = tuple(replace(each, code=(each.code or 0) + step) for each in coded) if doubt else ()
    return Legend(file, coded, doubt and f"{file} has {doubt}", other)


def legend_of(file: str, text: str, values: Sequence[int] = (), number: int = 0) -> Legend:
    """Return the classes of a style, a table or a list; none if most names recur, as words of a table do.

    Of several words of each line, those are names that differ the most.

    Args:
        values: codes of labels, of which names alone may be; without any, names alone tell nothing.
        number: which of two numbers of a table's line is its code.
    """
    if text.lstrip().startswith("<"):
        return Legend(file, tuple(_of_xml(text)))
    with suppress(ValueError, RecursionError, SegmenterError):
        data = parse(text, file) if file.lower().endswith((".yaml", ".yml")) else json.loads(text)
        text = "\n".join(_of_json(data))
    lines = [line.rstrip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()][: _MOST_LINES + 1]
    divider = divider_of(lines)
    table = None if _TREE.search(file) else TitledTable.of(lines, divider)
    if table and (titled := _of_titled(file, table, values, number)):
        return titled if len(lines) <= _MOST_LINES else Legend(file)
    rows = [row for line in lines if (row := _of_line(line, number, divider))]
    most = max((len(words) for words, *_ in rows), default=1)
    ways = [
        [LegendClass(_name(words[min(word, len(words) - 1)]), *of) for words, *of in rows]
        for word in range(min(most, _MOST_WORDS))
    ]
    entries = max(ways, key=lambda own: len({each.name for each in own}))
    if 2 * len({each.name for each in entries}) < len(entries):
        return Legend()
    if not entries:
        lines = [line.strip("\"' \t") for line in lines]
        lines = lines[bool(_TITLE.fullmatch(lines[0])) :] if lines else []
    codes = len(set(values) - {0, 255})
    near = len(values) > 1 and codes <= len(lines) <= 2 * len(values) + 2  # some classes may not occur
    texts = all(re.fullmatch(r"(__)?[^\W\d][^/\\.,;:]*", x) and len(x) <= _LONGEST_NAME for x in lines)
    if not entries and near and texts:
        return _by_order(file, [LegendClass(_name(line)) for line in lines], values)
    return Legend(file, tuple(entries if len(lines) <= _MOST_LINES else ()))


def _of_titled(file: str, table: TitledTable, values: Sequence[int], number: int) -> Legend | None:
    """Return the classes of a table whose titles tell codes or colours; None if they do not, or names recur.

    Two columns of numbers of classes that differ, and of which each names most values, leave a doubt.
    """
    codes = table.code_columns()
    if not codes and not table.band_columns():
        return None
    columns: list[int | None] = [at for _, at in codes[:2]] or [None]
    of = [tuple(LegendClass(_name(name), *rest) for name, *rest in table.entries(at)) for at in columns]
    number = min(number, len(of) - 1)
    entries, other = of[number], of[number - 1]
    if not entries or 2 * len({each.name for each in entries}) < len(entries):
        return None
    one, two = ({each.code: each.name for each in own} for own in (entries, other))
    seen = set(values) - {0, 255}
    asked = len(of) > 1 and codes[1][0] < ASKED and 2 * len(seen & two.keys()) > len(seen)
    if not asked or all(one.get(value) == two.get(value) for value in seen):
        return Legend(file, entries)
    first, second = (table.titles[codes[at][1]] for at in (number, number - 1))
    return Legend(file, entries, f"{file} has numbers in {first} and {second}: are codes in {second}?", other)


def _of_line(line: str, number: int, divider: str) -> tuple[list[str], int | None, int | None] | None:
    """Return the words, code and colour of a line with words and a code, a colour, or both; else None.

    Three numbers side by side are a colour; of others the first is the code.
    """
    if not LETTER.search(line):
        return None
    quoted = re.findall(r'"[^"]*"|[^"]+', line)
    table = rf"{divider}|{_CELLS}" if divider else _CELLS
    for way in (table, table + _SPACES) if divider and divider in line else (table + _SPACES,):
        texts = chain.from_iterable([each] if each[0] == '"' else re.split(way, each) for each in quoted)
        cells = [each.strip(" :\"'[]{}" + "()" * (each.count("(") != each.count(")"))) for each in texts]
        at = [i for i, cell in enumerate(cells) if re.fullmatch(r"\d{1,5}", cell)]
        numbers = [int(cells[i]) for i in at]
        if len(numbers) == 2 and way == table:
            numbers = numbers[number:][:1]
        elif len(numbers) == 3 and at[2] - at[0] > 2:
            numbers = numbers[:1]
        words = [cell for cell in cells if LETTER.search(cell) and hex_value(cell) is None]
        hexes = [
            colour for cell in cells if re.search(r"\D", cell) and (colour := hex_value(cell)) is not None
        ]
        colour = rgb_value(numbers[-3:] if len(numbers) in (3, 4) else numbers[1:4])
        code, colour = numbers[0] if len(numbers) in (1, 4, 5) else None, hexes[0] if hexes else colour
        if words and (code is not None or colour is not None):
            return words, code, colour
    return None


def _of_json(data: Any) -> Iterator[str]:
    """Yield a line for each class: of records, names, names by code or colour, or the reverse.

    Settings are none: single values beside lists and records, pairs of which some have a number and others a
    text, and lists of texts whose key does not speak of classes.
    """
    if isinstance(data, list) and all(isinstance(each, str) for each in data):
        yield from data
    elif isinstance(data, list):
        for each in data:
            yield from _of_json(each)
    elif isinstance(data, dict):
        lists = [each for each in data.values() if isinstance(each, list) and each]
        if tables := [each for each in lists if isinstance(each[0], dict)]:  # all else is no class
            of_classes = [each for key, each in data.items() if each in tables and _SPEAKS.search(str(key))]
            yield from _of_json(list(chain.from_iterable(of_classes or tables)))
            return
        lower = {str(key).lower(): value for key, value in data.items()}
        record = [next((lower[key] for key in keys if key in lower), None) for keys in _IN_JSON]
        if isinstance(record[0], str) and record[1:] != [None, None]:
            yield _cells(record)
            return
        nested = {
            key: value
            for key, value in data.items()
            if isinstance(value, dict) or (isinstance(value, list) and any(type(x) is not int for x in value))
        }
        for key, value in nested.items():
            if isinstance(value, dict):
                yield from _of_json({"id": key, **value})
            elif _SPEAKS.search(str(key)) or not all(isinstance(each, str) for each in value):
                yield from _of_json(value)
        if not nested and len({type(value) for key, value in data.items() if key != "id"}) == 1:
            yield from (_cells([key, value]) for key, value in data.items())


def _cells(values: Sequence[Any]) -> str:
    parts = chain.from_iterable(each if isinstance(each, list) else [each] for each in values)
    return "\t".join(str(each) for each in parts if each is not None)


def _name(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_LONGEST_NAME]


def _of_xml(text: str) -> Iterator[LegendClass]:
    """Yield the entries of a style of QGIS or OGC, or of GDAL's category names and attribute table."""
    try:
        tree = ET.fromstring(re.sub(r"<!DOCTYPE qgis[^>\[]*>", "", text) if "<!ENTITY" not in text else "")
    except ET.ParseError:
        return
    styled = (*tree.iter("paletteEntry"), *tree.iter("item"), *tree.iterfind(".//{*}ColorMapEntry"))
    rows = [
        (x.get("value", x.get("quantity")), x.get("label"), hex_value(x.get("color", ""))) for x in styled
    ]
    rows += [(str(number), each.text, None) for number, each in enumerate(tree.iter("Category"))]
    for table in tree.iter("GDALRasterAttributeTable"):
        rows += _of_table(table)
    for value, name, colour in rows:
        if (code := CODE.fullmatch(value or "")) and (name or "").strip():
            yield LegendClass(_name(name or ""), int(code[1]), colour)


def _of_table(table: ET.Element) -> Iterator[tuple[str | None, str | None, int | None]]:
    """Yield value, name and colour of GDAL's raster attribute table; columns have usages or usual titles."""
    usages = {"5": "value", "3": "value", "2": "name", "6": "red", "7": "green", "8": "blue"}
    titles = {"value": "value", "class": "name", "class_name": "name", "name": "name"}
    columns = [
        usages.get(each.findtext("Usage", "")) or titles.get(each.findtext("Name", "").lower(), "")
        for each in table.iter("FieldDefn")
    ]
    for row in table.iter("Row"):
        cells = dict(zip(columns, (cell.text or "" for cell in row.iter("F")), strict=False))
        parts = [int(cells[key]) for key in ("red", "green", "blue") if cells.get(key, "").isdecimal()]
        yield cells.get("value"), cells.get("name"), rgb_value(parts)
