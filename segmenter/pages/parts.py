"""Parts of a page: formatted numbers, tables, charts, pictures.

The template passes all texts (names of classes, files and datasets) through `escape_html`; charts use
`label`.
The page allows only its own scripts, by their hashes, so that even unescaped markup could neither run nor
load anything.

Layout of all charts: colours, axes, bars. Figures have the form of Plotly's `data` and `layout`, as plain
dictionaries (tests check them with its schema); `charts.js` draws them. Hover texts are written in
Python, as complete sentences. Colours follow Okabe and Ito (2008, "Color universal design"); different
colours also have different patterns or symbols.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segmenter.evaluation.drawing import percent as percent
from segmenter.evaluation.drawing import scale_bar

PLAN, SHUFFLE, BAR, GREY = "#0072b2", "#d55e00", "#4a6fa5", "#52606d"
FILLER = "#e69f00"
ROW = 26  # pixels of a bar with its gap
NUMBERED = 10  # up to so many classes have their numbers in the cells and over the bars
_STILL = {"itemclick": False, "itemdoubleclick": False}
INK, _GRID = "#1b1f24", "#e3e7eb"
RAMP = [[0.0, "#f7fbff"], [0.25, "#c6dbef"], [0.6, "#6baed6"], [1.0, "#08306b"]]
HOVER = "%{customdata}<extra></extra>"
COLOUR_BAR = {"ticksuffix": " %", "thickness": 12, "len": 1.0, "outlinewidth": 0, "dtick": 25, "x": 1.01}

Data = dict[str, Any]


def axis(title: str, **more: Any) -> Data:
    text = {"text": title, "standoff": 8}
    line = {"gridcolor": _GRID, "zeroline": False, "automargin": True, "fixedrange": True, "ticks": ""}
    return {"title": text, **line, **more}


def percent_axis(title: str, top: float = 100, **more: Any) -> Data:
    return axis(title, range=[0, top], ticksuffix=" %", tickangle=0, **more)


def names_axis(texts: Sequence[str]) -> Data:
    """Return an axis of names, the first on top; by position, since shortened names may be equal."""
    places = {"tickmode": "array", "tickvals": list(range(len(texts))), "ticktext": [short(t) for t in texts]}
    return {**axis("", showgrid=False, range=[len(texts) - 0.4, -0.6]), "title": {"text": ""}, **places}


def layout(height: int, xaxis: Data, yaxis: Data, **more: Any) -> Data:
    return {
        "height": height,
        "autosize": False,  # the page gives the width
        "margin": {"l": 8, "r": 12, "t": 30 if more.get("showlegend") else 10, "b": 8},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "dragmode": False,
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", **_STILL},
        "hoverlabel": {"bgcolor": "#ffffff", "bordercolor": INK, "font": {"color": INK}, "align": "left"},
        "xaxis": xaxis,
        "yaxis": yaxis,
        **more,
    }


def class_marker(colours: Sequence[str]) -> Data:
    """Return the look of bars of classes: each in its class's colour, with an edge that a pale one needs."""
    return {"color": [colour(each) for each in colours], "line": {"color": GREY, "width": 0.8}}


def bars(texts: Sequence[str], hovers: Iterable[str], **more: Any) -> Data:
    """Return bars with their values at the end."""
    bar = {"type": "bar", "text": [label(t) for t in texts], "textposition": "outside", "cliponaxis": False}
    look = {"textfont": {"size": 12}, "hovertemplate": HOVER, "customdata": list(hovers)}
    return {**bar, **look, "marker": {"color": BAR}, **more}


def heat(share: Sequence[Sequence[float | None]], hovers: Sequence[Sequence[str]], *, numbered: bool) -> Data:
    """Return a heat map of shares; `numbered`: with percentages instead of a colour bar."""
    texts = [["" if x is None else label(_cell_text(x)) for x in row] for row in share]
    return {
        "type": "heatmap",
        "z": [[None if x is None else 100 * x for x in row] for row in share],
        "zmin": 0,
        "zmax": 100,
        "colorscale": RAMP,
        "colorbar": COLOUR_BAR,
        "showscale": not numbered,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "customdata": hovers,
        "hovertemplate": HOVER,
        **({"text": texts, "texttemplate": "%{text}"} if numbered else {}),
    }


def _cell_text(share: float) -> str:
    """Return a share as whole percent, for a cell; 0 and 100 only if it is exactly that."""
    text = f"{100 * share:.0f}"
    return "<1" if text == "0" and share > 0 else ">99" if text == "100" and share < 1 else text


def square(
    names: Sequence[str],
    share: Sequence[Sequence[float | None]],
    hovers: Sequence[Sequence[str]],
    across: str,
) -> tuple[Data, int]:
    """Return a heat map of classes by classes, and the width that it needs (0: any)."""
    count = len(names)
    numbered = count <= NUMBERED
    columns = names_axis(names) | {"range": [-0.5, count - 0.5], "tickangle": -90}
    columns["title"] = {"text": across, "standoff": 8}
    rows = names_axis(names) | {"range": [count - 0.5, -0.5]}
    look = layout(ROW * count + 200, columns, rows, plot_bgcolor="#c9ced4")
    figure = {"data": [heat(share, hovers, numbered=numbered)], "layout": look}
    return figure, 0 if numbered else 230 + 20 * count


NO_COLOUR = "#9a9a9a"
_LONGEST_LABEL = 22
# Besides control characters: marks that reverse the text after them, and halves of characters.
_INVISIBLE = {"Cc", "Cs"}
_REVERSING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}

Figure = dict[str, Any]


@dataclass(frozen=True)
class ClassCell:
    """A cell with a class's name and a small square of its colour, "#rrggbb"."""

    name: str
    colour: str


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; `words`: the other columns are text, not numbers."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | ClassCell]]
    words: bool = False


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text; `kind` is its style: "lead" or "notice"."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class TermList:
    """A list of texts, each with a name."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Chart:
    """One chart with its texts and table.

    Attributes:
        name: an id, unique on the page.
        title: one sentence with the message of the chart.
        figures: `data` and `layout` by choice; with several, the page offers the choice and draws
            `chosen` first.
        titles: title for each choice, if it differs.
        table: the same numbers, for screen readers and for copying.
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
class ShareMaps:
    """Small maps of a class's share, drawn by the page's script.

    Attributes:
        choices: choices to draw; index `chosen` is drawn first.
        few: True if each map may be large.
    """

    maps: Sequence[tuple[str, str]]
    choices: Sequence[str]
    chosen: int
    legend: Sequence[ClassCell]
    few: bool
    note: str
    table: Table


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes:
        kind: media type, as "image/png".
        data: bytes in base64.
        width, height: pixels on the screen, if there is room.
        across: metres from side to side, for a scale bar; None: no bar.
    """

    name: str
    kind: str
    data: str
    width: int
    height: int
    across: float | None = None

    @property
    def scale(self) -> tuple[str, float] | None:
        """Text of the scale bar, and its percent of the picture's width; None without a scale."""
        if not self.across:
            return None
        text, share = scale_bar(self.across)
        return text, 100 * share


@dataclass(frozen=True)
class PictureRow:
    """Pictures of one thing, side by side if there is room."""

    title: str
    note: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class PictureRows:
    """Rows of pictures in the classes' colours; `legend` lists the classes."""

    rows: Sequence[PictureRow]
    legend: Sequence[ClassCell]


Block = Paragraph | Table | TermList | Charts | ShareMaps | PictureRows


def side_by_side(*charts: Chart | None) -> list[Block]:
    """Return the charts that are not None, side by side."""
    present = [chart for chart in charts if chart]
    return [Charts(present)] if present else []


@dataclass(frozen=True)
class PageSection:
    """A section of the page: id, heading and blocks; a section without blocks is left out."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class KeyFigure:
    """The number that a page is opened for: its value, what it is, and its interval, if there is one."""

    value: str
    what: str
    interval: str = ""


@dataclass(frozen=True)
class Head:
    """The head of a page, and its last line.

    Attributes:
        title: title of the page; may contain any text.
        figure: stands large above the lead; None: the lead is no number.
        more: a paragraph below the lead.
    """

    title: str
    lead: str
    facts: Mapping[str, str]
    maker: str
    figure: KeyFigure | None = None
    more: str = ""


def plain(text: str) -> str:
    """Return one line without control characters and without characters that change text direction."""
    line = " ".join(text.split())
    return "".join(
        "\ufffd" if unicodedata.category(c) in _INVISIBLE or ord(c) in _REVERSING else c for c in line
    )


def label(text: str, longest: int = 0) -> str:
    """Return text for a chart, safe from tags, entities, `%{templates}` and `$formulas$`.

    Characters that could begin one become entities, which the page's script converts back at the end.

    Args:
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


def number(value: float | None, digits: int = 0) -> str:
    """Return a number as text such as `12,345`; an en dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def list_names(names: Iterable[str]) -> str:
    """Return names as `a, b and c`; of many, the first ones and the number of others."""
    names = [plain(name) for name in names]
    if len(names) > 6:
        return ", ".join(names[:6]) + f" and {len(names) - 6} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def colour(text: str) -> str:
    """Return a colour `#rrggbb`, or grey for anything else, which must not get into a style."""
    return text if re.fullmatch(r"#[0-9a-fA-F]{6}", text) else NO_COLOUR


def chart_data(charts: Iterable[Chart]) -> dict[str, Any]:
    """Return the data of the charts for the page's script."""
    return {
        chart.name: {
            "figures": list(chart.figures.values()),
            "titles": [plain((chart.titles or {}).get(key, chart.title)) for key in chart.figures],
            "chosen": list(chart.figures).index(chart.chosen) if chart.chosen else 0,
        }
        for chart in charts
    }
