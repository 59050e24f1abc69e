"""Parts of the report's page: escaped text, numbers as people write them, tables, figures, the page itself.

Whatever a user named (classes, files, datasets) reaches the page through `escaped` or, inside a chart,
through `label`. The page allows only its own scripts, by their hashes, so that markup which came through all
the same could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from segmenter.errors import SegmenterError

NO_COLOUR = "#9a9a9a"
_LONGEST_LABEL = 22
# Besides control characters: marks that reverse the text after them, and halves of characters.
_INVISIBLE = {"Cc", "Cs"}
_REVERSING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}

Figure = dict[str, Any]


class Html(str):
    """Text that is markup already; everything else is escaped."""

    __slots__ = ()


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
    table: Html
    titles: Mapping[str, str] | None = None
    chosen: str = ""
    choice: str = ""
    width: int = 0


def plain(text: str) -> str:
    """One line without control characters, and nothing that changes the direction of what follows."""
    line = " ".join(text.split())
    return "".join(
        "\ufffd" if unicodedata.category(c) in _INVISIBLE or ord(c) in _REVERSING else c for c in line
    )


def escaped(text: str) -> Html:
    """Text for HTML, also within quotes; `Html` stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(plain(text)))


def label(text: str, longest: int = 0) -> str:
    """Text for a chart: Plotly reads tags, entities, `%{templates}` and `$formulas$` in its labels.

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
    """A label that leaves a phone room for the chart; hover and table have the whole name."""
    return label(text, _LONGEST_LABEL)


def lines(*texts: str) -> str:
    """Lines of text for a chart's hover."""
    return "<br>".join(map(label, texts))


def percent(share: float | None) -> str:
    """`74 %`; neither 0 % nor 100 % is said of what only comes near it."""
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
    """`12,345`; an en dash for nothing."""
    return "–" if value is None else f"{value:,.{digits}f}"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 tile`, `2 tiles`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Iterable[str], longest: int = 6) -> str:
    """`a, b and c`; of many, the first and how many more."""
    names = [plain(name) for name in names]
    if len(names) > longest:
        return ", ".join(names[:longest]) + f" and {len(names) - longest} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def colour(text: str) -> str:
    """A colour `#rrggbb`, or grey: nothing else gets into a style."""
    return text if re.fullmatch(r"#[0-9a-fA-F]{6}", text) else NO_COLOUR


def swatch(hex_colour: str) -> Html:
    """A small square of a class's colour; it always stands beside the name."""
    return Html(f'<span class="swatch" style="background:{colour(hex_colour)}"></span>')


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table whose first column names the rows."""
    head = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>'
        + "".join(f"<td>{escaped(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return Html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption)}"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def paragraph(text: str, kind: str = "") -> Html:
    """A paragraph of text."""
    attribute = f' class="{kind}"' if kind else ""
    return Html(f"<p{attribute}>{escaped(text)}</p>")


def options(texts: Sequence[str], chosen: int) -> Html:
    """The choices of a drop-down list; their values are their positions."""
    marks = (" selected" if i == chosen else "" for i in range(len(texts)))
    return Html(
        "".join(
            f'<option value="{i}"{mark}>{escaped(text)}</option>'
            for i, (text, mark) in enumerate(zip(texts, marks, strict=True))
        )
    )


def figure(chart: Chart) -> Html:
    """A chart's heading, its choice where there is one, its place, how to read it, and its table."""
    width = f' style="min-width:{chart.width}px"' if chart.width else ""
    chooser = Html("")
    if len(chart.figures) > 1:
        texts = list(chart.figures)
        chooser = Html(
            f'<p class="choice"><label for="{chart.name}-choice">{escaped(chart.choice)}</label> '
            f'<select id="{chart.name}-choice" autocomplete="off" data-chart="{chart.name}">'
            f"{options(texts, texts.index(chart.chosen))}</select></p>"
        )
    return Html(
        f'<figure><h3 id="{chart.name}-title">{escaped(chart.title)}</h3>{chooser}'
        f'<div class="scroll chart-scroll" tabindex="0" role="group" aria-labelledby="{chart.name}-title">'
        f'<div class="chart" id="{chart.name}" role="img" aria-labelledby="{chart.name}-title" '
        f'aria-describedby="{chart.name}-note"{width}></div></div>'
        f'<figcaption id="{chart.name}-note">{escaped(chart.note)}</figcaption>'
        f"<details><summary>The numbers as a table</summary>{chart.table}</details></figure>"
    )


def section(name: str, title: str, *parts: Html) -> Html:
    """A part of the page with its heading."""
    return Html(
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{escaped(title)}</h2>'
        f"{''.join(parts)}</section>"
    )


def drawn(charts: Iterable[Chart]) -> dict[str, Any]:
    """What the page's script needs of the charts."""
    return {
        chart.name: {
            "figures": list(chart.figures.values()),
            "titles": [plain((chart.titles or {}).get(key, chart.title)) for key in chart.figures],
            "chosen": list(chart.figures).index(chart.chosen) if chart.chosen else 0,
        }
        for chart in charts
    }


def page(title: str, body: Html, data: Mapping[str, Any]) -> str:
    """The whole page. `data` is what its script draws; the scripts are the page's own and the only ones."""
    own = resources.files("segmenter.report")
    script = (own / "page.js").read_text(encoding="utf-8")
    style = (own / "page.css").read_text(encoding="utf-8")
    scripts = [_plotly_js(), script]
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    # "<" cannot end the script element when it is written as JSON's own escape.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            f"img-src data: blob:; style-src 'unsafe-inline'; script-src {hashes}\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escaped(title)}</title>",
            f"<style>{style}</style>",
            f"</head><body>{body}",
            f'<script type="application/json" id="data">{content}</script>',
            *(f"<script>{text}</script>" for text in scripts),
            "</body></html>\n",
        ]
    )


def _plotly_js() -> str:
    """Plotly's JavaScript, out of its Python package: the page needs no network."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SegmenterError(
            "the HTML report needs the package plotly: pip install 'coverage-segmenter[report]'"
        ) from None
    return str(get_plotlyjs())


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
