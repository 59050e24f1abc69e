"""Recipe file of planned settings: a comment with the reason behind each line; the same settings, the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from segmenter.base.errors import ConfigError, plain
from segmenter.base.files import check_writable, write_whole
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe

from .choice import Choice

_WIDE = 1 << 20


def nested(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the settings as the plain data of a recipe."""
    data: dict[str, Any] = {}
    for choice in choices:
        *sections, key = choice.key.split(".")
        node = data
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = choice.value
    return data


def recipe_of(choices: Sequence[Choice], name: str) -> Recipe:
    """Return the recipe of planned settings; an error is a defect of the plan."""
    return recipe_from({"name": name, **nested(choices)}, "the plan")


def recipe_text(choices: Sequence[Choice], command: str) -> str:
    """Return the settings as YAML; each has its reason, and its other reading if there is one, as a comment.

    Args:
        command: that made the recipe, for the head.
    """
    by_key = {choice.key: choice for choice in choices}
    head = [
        f"# Planned by: {plain(command)}",
        "# Each line says why. A line with `or:` has another reading: look at it. All may be changed.",
    ]
    return "\n".join([*head, *_lines(nested(choices), by_key, "")]) + "\n"


def _lines(data: Mapping[str, Any], choices: Mapping[str, Choice], prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in data.items():
        dotted = f"{prefix}{key}"
        choice = choices.get(dotted)
        if choice is None:
            yield f"{indent}{key}:"
            yield from _lines(value, choices, f"{dotted}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{key}:  # {_comment(choice)}"
            yield from (f"{indent}  - {_flow(item)}" for item in value)
        else:
            yield f"{indent}{key}: {_flow(value)}  # {_comment(choice)}"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=_WIDE, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _comment(choice: Choice) -> str:
    other = f"; or: {choice.other}" if choice.other else ""
    return plain(" ".join(f"{choice.reason}{other}".split()))


def check_free(path: Path) -> None:
    """Refuse a file that exists, or that cannot be written.

    Raises:
        ConfigError: it exists.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"{path}: exists already, and nothing is written over; name another file by --output"
        )
    check_writable(path)


def write_recipe(path: Path, text: str) -> None:
    """Write a recipe, completely or not at all."""
    check_free(path)
    write_whole(path, text.encode())
