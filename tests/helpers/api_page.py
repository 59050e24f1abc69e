"""`docs/python.md` from the docstrings of what is exported: `python -m tests.helpers.api_page` writes it."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import segmenter

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_HEAD = """\
# Python API

What `from segmenter import …` gives; [the guide](python.md) shows it at work. This page is made from the
docstrings: `python -m tests.helpers.api_page` writes it anew.

In signatures, `Paths` is a path as text or `pathlib.Path`, `Nodata` a number or one for each band, `Scenes` a
`Dataset`, `Scene`s or pairs of an image file and its label file, and `Classes` a `ClassMap` or a dictionary
from names to codes.
"""
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
_TITLES = {"Args": "Arguments", "Returns": "Gives", "Yields": "Gives"}
_ITEM = re.compile(r"^(\w[\w, *.]*): ", re.MULTILINE)


def page() -> str:
    """The whole page, as Markdown."""
    entries = (_entry(name, getattr(segmenter, name)) for name in segmenter._HOMES)
    return "\n".join([_HEAD, *entries])


def _entry(name: str, what: Any) -> str:
    if not inspect.isclass(what):
        return _described(f"## {name}", f"{name}{_signature(what)}", what.__doc__)
    parts = [_described(f"## {name}", "", what.__doc__)]
    for key, member in vars(what).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if key.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = "" if isinstance(member, property) else f"{key}{_signature(function)}"
        parts.append(_described(f"### {name}.{key}", shown, function.__doc__))
    return "\n".join(parts)


def _signature(function: Any) -> str:
    """As it is written, an argument a line where that is long."""
    signature = inspect.signature(function)
    arguments = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=arguments)))
    if len(text) < 90:
        return text
    inside, _, gives = text[1:].rpartition(") -> ")
    lines = re.split(r", (?=(?:\*{0,2}\w+(?::| =|$)|\*$|\*,))", inside)
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {gives}"


def _described(heading: str, signature: str, docstring: str | None) -> str:
    text = inspect.cleandoc(docstring or "")
    first, *sections = _SECTION.split(text)
    parts = [heading, *([f"```python\n{signature}\n```"] if signature else []), *_paragraphs(first)]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        parts += [f"**{_TITLES.get(title, title)}**", _listed(title, textwrap.dedent(body.strip("\n")))]
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n{2,}", text.strip()):
        yield f"```python\n{paragraph}\n```" if paragraph.startswith(">>> ") else paragraph


def _listed(title: str, body: str) -> str:
    """The items of a section, each with its name; a text that names none as it is."""
    if title in ("Returns", "Yields"):
        return _joined(body)
    items = re.split(r"\n(?=\S)", body.strip())
    named = (_ITEM.sub(r"`\1`: ", _joined(item), count=1) for item in items)
    return "\n".join(f"- {item}" for item in named)


def _joined(text: str) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
