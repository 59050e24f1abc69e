"""Page of a report, rendered from its template by Jinja.

The template passes all texts (names of classes, files and datasets) through `escape_html`; charts use
`parts.label`. The page allows only its own scripts, by their hashes, so that even unescaped markup could
neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from segmenter.pages.parts import Chart, Charts, Head, PageSection, chart_data, colour, plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def html_page(
    head: Head,
    sections: Sequence[PageSection],
    maps: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
) -> str:
    """Return one self-contained HTML page, UTF-8.

    Args:
        sections: sections; those without a block are left out.
        maps: data for the page's script to draw small maps; None: no maps.
        scripts: addresses of the scripts, for a page that a server of ours shows; none: they are in the page.
    """
    return _page(head, sections, {"charts": chart_data(_charts(sections)), "maps": maps}, scripts)


def _charts(sections: Sequence[PageSection]) -> Iterator[Chart]:
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Charts):
                yield from block.charts


def _page(
    head: Head, sections: Sequence[PageSection], data: Mapping[str, Any], addresses: Sequence[str]
) -> str:
    """Render `page.html`; `data` is for its script."""
    from markupsafe import Markup

    style, template = (own_file(name) for name in ("page.css", "page.html"))
    moving = data["charts"] or data["maps"]
    names = [] if addresses else [*(["charts.js"] if moving else []), "page.js"]
    scripts = [own_file(name) for name in names]
    # "<" cannot end the script element when it is written as JSON's own escape.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    return (
        _environment()
        .from_string(template)
        .render(
            head=head,
            moving=bool(moving),
            sections=[section for section in sections if section.blocks],
            allowed=Markup("script-src 'self'; connect-src 'self'" if addresses else f"script-src {hashes}"),
            style=Markup(style),
            data=Markup(content),
            scripts=[Markup(text) for text in scripts],
            addresses=addresses,
        )
    )


def own_file(name: str) -> str:
    """Return a template, style or script of this folder."""
    return (resources.files("segmenter.pages") / name).read_text(encoding="utf-8")


def _environment() -> Environment:
    """Return a Jinja environment in which every printed text is one line and escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: escape_html(value) if isinstance(value, str) else value,
    )
    environment.filters["colour"] = colour
    environment.filters["kind"] = lambda value: type(value).__name__
    return environment


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def escape_html(text: str) -> Markup:
    """Return text for HTML, on one line and safe within quotes; markup stays unchanged."""
    from markupsafe import Markup, escape

    return text if isinstance(text, Markup) else escape(plain(text))
