"""Page of the report, rendered from its template by Jinja.

Names of classes, files and datasets reach the page through `escaped`, which the template applies to all that
it prints, or, inside a chart, through `html.label`. The page allows only its own scripts, by their hashes, so
that markup which came through all the same could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from segmenter.pages.parts import Head, Section, colour, plain


def page(head: Head, sections: Sequence[Section], data: Mapping[str, Any]) -> str:
    """The whole page, from `page.html`.

    Args:
        data: what its script draws; the scripts are the page's own and the only ones.

    Raises:
        ImportError: a package of the extra `report` is not installed.
    """
    own = resources.files("segmenter.pages")
    script, style, template = (
        (own / name).read_text(encoding="utf-8") for name in ("page.js", "page.css", "page.html")
    )
    scripts = [_plotly_js(), script]
    # "<" cannot end the script element when it is written as JSON's own escape.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        _environment()
        .from_string(template)
        .render(
            head=head,
            sections=[section for section in sections if section.blocks],
            hashes=Markup(" ".join(f"'sha256-{_sha256(text)}'" for text in scripts)),
            style=Markup(style),
            data=Markup(content),
            scripts=[Markup(text) for text in scripts],
        )
    )


def _environment() -> Environment:
    """Jinja, such that every text that a template prints is one line and escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: escaped(value) if isinstance(value, str) else value,
    )
    environment.filters["colour"] = colour
    environment.filters["kind"] = lambda value: type(value).__name__
    return environment


def _plotly_js() -> str:
    """Plotly's JavaScript, out of its Python package: the page needs no network."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def escaped(text: str) -> Markup:
    """Text for HTML, on one line, also within quotes; markup stays as it is."""
    return text if isinstance(text, Markup) else escape(plain(text))
