"""Layout of all charts: colours, axes, bars.

Figures are Plotly's `data` and `layout` as plain dictionaries (tests check them with Plotly's schema), so
only the page needs the package. Hover texts are written in Python, as complete sentences. Colours follow
Okabe and Ito (2008, "Color universal design"); different colours also have different patterns or symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from segmenter.pages.parts import label, percent, short

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


def bars(values: Sequence[float], texts: Sequence[str], hovers: Iterable[str], **more: Any) -> Data:
    """Return bars with their values at the end."""
    bar = {"type": "bar", "text": [label(t) for t in texts], "textposition": "outside", "cliponaxis": False}
    look = {"textfont": {"size": 12}, "hovertemplate": HOVER, "customdata": list(hovers)}
    return {**bar, **look, "marker": {"color": BAR}, **more}


def heat(share: Sequence[Sequence[float | None]], hovers: Sequence[Sequence[str]], *, numbered: bool) -> Data:
    """Return a heat map of shares; `numbered`: with percentages instead of a colour bar."""
    texts = [["" if x is None else label(percent(x).removesuffix(" %")) for x in row] for row in share]
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


def square(
    names: Sequence[str],
    share: Sequence[Sequence[float | None]],
    hovers: Sequence[Sequence[str]],
    across: str,
) -> tuple[Data, int]:
    """Return a heat map of classes by classes, and the width that it needs (0: any).

    Args:
        across: title of the columns.
    """
    count = len(names)
    numbered = count <= NUMBERED
    columns = names_axis(names) | {"range": [-0.5, count - 0.5], "tickangle": -90}
    columns["title"] = {"text": across, "standoff": 8}
    rows = names_axis(names) | {"range": [count - 0.5, -0.5]}
    look = layout(ROW * count + 200, columns, rows, plot_bgcolor="#c9ced4")
    figure = {"data": [heat(share, hovers, numbered=numbered)], "layout": look}
    return figure, 0 if numbered else 230 + 20 * count
