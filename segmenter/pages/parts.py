"""Parts of a page: formatted numbers, tables, charts, and the page rendered from them.

Names of classes, files and datasets reach the page through `escaped`, which the template applies to all that
it prints, or, inside a chart, through `label`. The page allows only its own scripts, by their
hashes, so that markup which came through all the same could neither run nor load anything.
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
    """A cell with a class's name beside a small square of its colour, as "#rrggbb"."""

    name: str
    colour: str


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; `words`: the others are text, not numbers."""

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
    """A list of texts, each after a word that names it."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Chart:
    """One chart with all that belongs to it.

    Attributes:
        name: an id, unique on the page.
        title: one sentence that says what is to be seen.
        note: how to read it.
        figures: what Plotly draws: `data` and `layout`. With several, by the text of a choice, the page
            offers the choice; `chosen` is drawn first.
        titles: the title for each choice, where it differs.
        table: the same numbers, for those who cannot see the chart or want to copy them.
        choice: what is chosen between.
        width: pixels that it needs; on a narrower screen it is scrolled.
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
    """Charts; two stand side by side where there is room."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Maps:
    """Small maps of where a class lies, drawn by the page's script.

    Attributes:
        maps: name and description of each.
        choices: what to draw; the one at `chosen` is drawn first.
        legend: the classes.
        few: whether each may be large.
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
    """A picture: its name, its type ("image/png"), its bytes in base64, and its size in pixels."""

    name: str
    kind: str
    data: str
    width: int
    height: int


@dataclass(frozen=True)
class PictureRow:
    """Pictures of one thing, side by side where there is room."""

    title: str
    note: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Pictures:
    """Rows of pictures in the classes' colours; `legend` are the classes."""

    rows: Sequence[PictureRow]
    legend: Sequence[Named]


Block = Paragraph | Table | Points | Charts | Maps | Pictures


def side_by_side(*charts: Chart | None) -> list[Block]:
    """Return the charts that are not None, side by side."""
    present = [chart for chart in charts if chart]
    return [Charts(present)] if present else []


@dataclass(frozen=True)
class Section:
    """A part of the page: its id, its heading, what stands below it; nothing: the part is left out."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Head:
    """The head of a page, and its last line.

    Attributes:
        title: of the page; names in it may be any text.
        lead: what the page says, in a sentence or two.
        facts: in short, by name.
        maker: the command that makes such a page.
    """

    title: str
    lead: str
    facts: Mapping[str, str]
    maker: str


def plain(text: str) -> str:
    """Return one line without control characters, and nothing that changes the direction of what follows."""
    line = " ".join(text.split())
    return "".join(
        "\ufffd" if unicodedata.category(c) in _INVISIBLE or ord(c) in _REVERSING else c for c in line
    )


def label(text: str, longest: int = 0) -> str:
    """Return text for a chart: Plotly reads tags, entities, `%{templates}` and `$formulas$` in its labels.

    All characters that could begin one are written as entities, which Plotly turns back last of all.

    Args:
        text: as the user wrote it.
        longest: cut to so many characters; 0 for all of them.
    """
    line = plain(text)
    if longest and len(line) > longest:
        line = line[: longest - 1].rstrip() + "…"
    return re.sub(r"[&<>$%{}\[\]\"'\\]", lambda match: f"&#{ord(match.group())};", line)


def short(text: str) -> str:
    """Return a label that leaves a phone room for the chart; hover and table have the whole name."""
    return label(text, _LONGEST_LABEL)


def lines(*texts: str) -> str:
    """Return lines of text for a chart's hover."""
    return "<br>".join(map(label, texts))


def percent(share: float | None) -> str:
    """Return a share as `74 %`; 0 % and 100 % only where it is exactly that."""
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
    """Return `12,345`; an en dash for nothing."""
    return "–" if value is None else f"{value:,.{digits}f}"


def listed(names: Iterable[str], longest: int = 6) -> str:
    """Return `a, b and c`; of many, the first and how many more."""
    names = [plain(name) for name in names]
    if len(names) > longest:
        return ", ".join(names[:longest]) + f" and {len(names) - longest} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def colour(text: str) -> str:
    """Return a colour `#rrggbb`, or grey: nothing else gets into a style."""
    return text if re.fullmatch(r"#[0-9a-fA-F]{6}", text) else NO_COLOUR


def drawn(charts: Iterable[Chart]) -> dict[str, Any]:
    """Return data that the page's script needs of the charts."""
    return {
        chart.name: {
            "figures": list(chart.figures.values()),
            "titles": [plain((chart.titles or {}).get(key, chart.title)) for key in chart.figures],
            "chosen": list(chart.figures).index(chart.chosen) if chart.chosen else 0,
        }
        for chart in charts
    }
