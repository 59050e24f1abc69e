"""Tables of classes: the divider of cells, and the columns of code, name and colour that titles tell."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

CODE = re.compile(r"(\d{1,5})(?:\.0*)?")
LONGEST_LINE = 2000
"""Letters of a line that are read."""
LETTER = re.compile(r"[^\W\d]")
_HEX = re.compile(r"#?([0-9A-Fa-f]{6})(?:[0-9A-Fa-f]{2})?")
_OF_CLASS = r"([ck]lass|label|[ck]ateg|train|land_?(use|cover))\w*"
_CODES = (
    rf"(.*([ck]ode|valu?e|valeur|valor|wert)|(.*\W)?dn|{_OF_CLASS}[ _.-]?(no|nr|num|number|idx|index)?)s?",
    rf"({_OF_CLASS}[ _.-]?)?id",
    r"(.*[\W_])?(no|nr|num|number|nummer|idx|index|key|oid|fid|order)|(object|row)_?(id)?",
    r"(?!.*(count|percent|share|area|pixel|poly|parcel|freq|weight|total|sum|anzahl|fläche|anteil|alpha|%))\w{2,}.*",
    r"(unnamed: ?\d+|\W*)",
)
"""Titles of columns of codes: surely, often, as numbers of rows, by any word but those of measures, and empty
ones, as pandas numbers rows."""
ASKED, _ANY = 2, 3
"""Kinds of titles: those before ASKED are codes, two of them a question; _ANY tells nothing."""
_BANDS = tuple(
    rf"(.*[\W_])?({words})" for words in ("r|red|rot|rouge", "g|green|grün|vert", "b|blue|blau|bleu")
)
_NAME = re.compile(r"(.*[\W_])?(name|title|bezeichnung|nom|nombre)s?|([ck]lass|label|[ck]ateg)\w*", re.I)

Entry = tuple[str, int | None, int | None]
"""Name, code and colour of a class; code or colour may be missing."""


def divider_of(lines: Sequence[str]) -> str:
    """Return the divider by which most lines have a cell with a number or a colour; empty if none does."""
    for divider in "\t;,":
        rows = [cells_of(line, divider) for line in lines]
        if 2 * sum(len(row) > 1 and _has_value(row) for row in rows) >= max(1, len(rows)):
            return divider
    return ""


def cells_of(line: str, divider: str) -> list[str]:
    """Return the cells of a line, without spaces around them; quoted ones may have the divider."""
    short = [line[:LONGEST_LINE]]  # csv raises at cells of 131,072 letters
    return [cell.strip() for cell in next(csv.reader(short, delimiter=divider, skipinitialspace=True), [])]


def hex_value(text: str) -> int | None:
    """Return a colour such as #00ff00 as 0xrrggbb; None if it is none."""
    match = _HEX.fullmatch(text)
    return None if match is None else int(match[1], 16)


def rgb_value(parts: Sequence[int]) -> int | None:
    """Return a colour of three numbers as 0xrrggbb; None if they are none."""
    whole = len(parts) == 3 and max(parts) < 256
    return parts[0] << 16 | parts[1] << 8 | parts[2] if whole else None


def _has_value(cells: Sequence[str]) -> bool:
    return any(CODE.fullmatch(cell) or hex_value(cell) is not None for cell in cells)


@dataclass(frozen=True)
class TitledTable:
    """Table with titles.

    Attributes:
        titles: title of each column, in small letters.
        columns: cells of each column.
    """

    titles: list[str]
    columns: list[tuple[str, ...]]

    @classmethod
    def of(cls, lines: Sequence[str], divider: str) -> TitledTable | None:
        """Return the table whose titles are the line before the first with a value; None without titles."""
        rows = [cells_of(line, divider) for line in lines] if divider else []
        first = next((i for i, row in enumerate(rows) if _has_value(row)), 0)
        if not first or len(rows[first - 1]) < 2:
            return None
        titles = [cell.strip(" #\"'").lower() for cell in rows[first - 1]]
        body = [row for row in rows[first:] if _has_value(row)]
        if all(len(row) > len(titles) and row[-1] for row in body):  # R numbers rows without a title
            titles = ["", *titles]
        return cls(titles, list(zip_longest(*body, fillvalue=""))[: len(titles)])

    def code_columns(self) -> list[tuple[int, int]]:
        """Return kind of title and column of likely codes, the likeliest first; empty if no title tells."""
        bands, kinds = self.band_columns(), list[tuple[int, int]]()
        for at, (title, cells) in enumerate(zip(self.titles, self.columns, strict=False)):
            kind = next((k for k, words in enumerate(_CODES) if re.fullmatch(words, title)), None)
            if kind is not None and at not in bands and _mostly(map(CODE.fullmatch, cells)):
                kinds.append((kind, at))
        if any(kind < ASKED for kind, _ in kinds):  # numbers of rows are none
            kinds = [each for each in kinds if each[0] < ASKED or each[0] == _ANY]
        return sorted(kinds) if any(kind != _ANY for kind, _ in kinds) else []

    def band_columns(self) -> list[int]:
        """Return the columns of red, green and blue; empty without them."""
        found = [[at for at, title in enumerate(self.titles) if re.fullmatch(band, title)] for band in _BANDS]
        return [own[0] for own in found] if all(found) else []

    def name_column(self) -> int | None:
        """Return the column of names: words that do not recur, with a title of names; None without words."""

        def fitness(at: int) -> tuple[bool, bool, int]:
            several = len({*self.columns[at]})
            return several == len(self.columns[at]), bool(_NAME.fullmatch(self.titles[at])), several

        words = [
            at
            for at, cells in enumerate(self.columns)
            if _mostly(LETTER.search(cell) and hex_value(cell) is None for cell in cells)
        ]
        return max(words, key=fitness, default=None)

    def entries(self, code: int | None) -> list[Entry]:
        """Return the classes, with the codes of a column; None: they have colours alone."""
        entries, name, bands = list[Entry](), self.name_column(), self.band_columns()
        if name is None:
            return entries
        for row in zip(*self.columns, strict=True):
            number = CODE.fullmatch(row[code]) if code is not None else None
            parts = [int(row[at]) for at in bands if row[at].isdecimal()]
            hexes = (hex_value(cell) for at, cell in enumerate(row) if at != name and re.search(r"\D", cell))
            colour = rgb_value(parts) if bands else next((each for each in hexes if each is not None), None)
            if row[name] and (number or colour is not None):
                entries.append((row[name], int(number[1]) if number else None, colour))
        return entries


def _mostly(facts: Iterable[object]) -> bool:
    every = [bool(fact) for fact in facts]
    return 2 * sum(every) > len(every)
