"""Reference in `docs/python.md`, from docstrings of what is exported: `python -m tests.helpers.api_page`."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import segmenter

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
MARK, END = "<!-- made by python -m tests.helpers.api_page -->\n", "<!-- end of reference -->"


def page() -> str:
    """The page with its reference made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{before}{MARK}{reference()}{END}{rest.partition(END)[2]}"


def reference() -> str:
    """A row for each exported name and each of its methods: how it is called, and what it does."""
    rows = [row for name in segmenter._HOMES for row in _rows(name, getattr(segmenter, name))]
    return "".join(f"|{'|'.join(row)}|\n" for row in (("name", "what it is"), ("---", "---"), *rows))


def _rows(name: str, what: Any) -> Iterator[tuple[str, str]]:
    if not inspect.isclass(what):
        yield f"`{name}{_signature(what)}`", _first_sentence(what.__doc__)
        return
    yield f"`{name}`", _first_sentence(what.__doc__) + _attributes(what.__doc__)
    for key, member in vars(what).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if key.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        called = "" if isinstance(member, property) else _signature(function)
        yield f"`{name}.{key}{called}`", _first_sentence(function.__doc__)


def _signature(function: Any) -> str:
    """The arguments with their defaults, without types."""
    signature = inspect.signature(function)
    arguments = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    bare = signature.replace(parameters=arguments, return_annotation=inspect.Signature.empty)
    return str(bare)


def _attributes(docstring: str | None) -> str:
    """The names that a class' docstring explains; empty where it names none."""
    section = inspect.cleandoc(docstring or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    names = ", ".join(re.findall(r"^    (\w[\w, ]*):", section, re.MULTILINE)).split(", ")
    return "; has " + ", ".join(f"`{name}`" for name in names) if names != [""] else ""


def _first_sentence(docstring: str | None) -> str:
    first = " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
