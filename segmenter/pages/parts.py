"""Parts of a page: formatted numbers, tables, charts, pictures.

The template passes all texts (names of classes, files and datasets) through `escaped`; charts use `label`.
The page allows only its own scripts, by their hashes, so that even unescaped markup could neither run nor
load anything.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NO_COLOUR = "#9a9a9a"
_LONGEST_LABEL = 22
# Besides control characters: marks that reverse the text after them, and halves of characters.
_INVISIBLE = {"Cc", "Cs"}
_REVERSING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}

Figure = dict[str, Any]


@dataclass(frozen=True)
class Named:
    """A cell with a class's name and a small square of its colour, "#rrggbb"."""

    name: str
    colour: str


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; `words`: the other columns are text, not numbers."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Named]]
    words: bool = False


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text; `kind` is its style: "lead" or "notice"."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Points:
    """A list of texts, each with a name."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Chart:
    """One chart with its texts and table.

    Attributes:
        name: an id, unique on the page.
        title: one sentence with the message of the chart.
        note: how to read it.
        figures: Plotly's `data` and `layout` by choice; with several, the page offers the choice and draws
            `chosen` first.
        titles: title for each choice, if it differs.
        table: the same numbers, for screen readers and for copying.
        choice: name of the choice.
        width: width in pixels; a narrower screen scrolls it.
    """

    name: str
    title: str
    note: str
    figures: Mapping[str, Figure]
    table: Table
    titles: Mapping[str, str] | None = None
    chosen: str = ""
    choice: str = ""
    width: int = 0


@dataclass(frozen=True)
class Charts:
    """Charts, two side by side if there is room."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Maps:
    """Small maps of a class's share, drawn by the page's script.

    Attributes:
        maps: name and description of each.
        choices: choices to draw; index `chosen` is drawn first.
        legend: the classes.
        few: True if each map may be large.
    """

    maps: Sequence[tuple[str, str]]
    choices: Sequence[str]
    chosen: int
    legend: Sequence[Named]
    few: bool
    note: str
    table: Table


@dataclass(frozen=True)
class Picture:
    """A picture: name, media type ("image/png"), bytes in base64, and size in pixels."""

    name: str
    kind: str
    data: str
    width: int
    height: int


@dataclass(frozen=True)
class PictureRow:
    """Pictures of one thing, side by side if there is room."""

    title: str
    note: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Pictures:
    """Rows of pictures in the classes' colours; `legend` lists the classes."""

    rows: Sequence[PictureRow]
    legend: Sequence[Named]


Block = Paragraph | Table | Points | Charts | Maps | Pictures


def side_by_side(*charts: Chart | None) -> list[Block]:
    """Return the charts that are not None, side by side."""
    present = [chart for chart in charts if chart]
    return [Charts(present)] if present else []


@dataclass(frozen=True)
class Section:
    """A section of the page: id, heading and blocks; a section without blocks is left out."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Head:
    """The head of a page, and its last line.

    Attributes:
        title: title of the page; may contain any text.
        lead: summary in one or two sentences.
        facts: short facts by name.
        maker: command that makes such a page.
    """

    title: str
    lead: str
    facts: Mapping[str, str]
    maker: str


def plain(text: str) -> str:
    """Return one line without control characters and without characters that change text direction."""
    line = " ".join(text.split())
    return "".join(
        "\ufffd" if unicodedata.category(c) in _INVISIBLE or ord(c) in _REVERSING else c for c in line
    )


def label(text: str, longest: int = 0) -> str:
    """Return text for a chart, safe from Plotly's tags, entities, `%{templates}` and `$formulas$`.

    Characters that could begin one become entities, which Plotly converts back at the end.

    Args:
        text: text of a user.
        longest: maximum number of characters; 0: no limit.
    """
    line = plain(text)
    if longest and len(line) > longest:
        line = line[: longest - 1].rstrip() + "…"
    return re.sub(r"[&<>$%{}\[\]\"'\\]", lambda match: f"&#{ord(match.group())};", line)


def short(text: str) -> str:
    """Return a label short enough for a phone; hover and table have the whole name."""
    return label(text, _LONGEST_LABEL)


def lines(*texts: str) -> str:
    """Return lines of text for a chart's hover."""
    return "<br>".join(map(label, texts))


def percent(share: float | None) -> str:
    """Return a share as text such as `74 %`; 0 % and 100 % only if it is exactly that."""
    if share is None:
        return "–"
    hundred = 100 * share
    if hundred <= 0 or hundred >= 100:
        return f"{hundred:.0f} %"
    if hundred < 0.001:
        return "< 0.001 %"
    if hundred > 99.99:
        return "> 99.99 %"
    if hundred > 99:
        digits = 1 if hundred < 99.9 else 2
        return f"{math.floor(hundred * 10**digits) / 10**digits:.{digits}f} %"
    digits = 0 if hundred >= 9.95 else 1 - math.floor(math.log10(hundred))
    text = f"{hundred:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} %"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number as text such as `12,345`; an en dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def listed(names: Iterable[str], longest: int = 6) -> str:
    """Return names as `a, b and c`; of many, the first ones and the number of others."""
    names = [plain(name) for name in names]
    if len(names) > longest:
        return ", ".join(names[:longest]) + f" and {len(names) - longest} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def colour(text: str) -> str:
    """Return a colour `#rrggbb`, or grey for anything else, which must not get into a style."""
    return text if re.fullmatch(r"#[0-9a-fA-F]{6}", text) else NO_COLOUR


def drawn(charts: Iterable[Chart]) -> dict[str, Any]:
    """Return the data of the charts for the page's script."""
    return {
        chart.name: {
            "figures": list(chart.figures.values()),
            "titles": [plain((chart.titles or {}).get(key, chart.title)) for key in chart.figures],
            "chosen": list(chart.figures).index(chart.chosen) if chart.chosen else 0,
        }
        for chart in charts
    }
