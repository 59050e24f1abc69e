"""Recipe file of planned settings, each with its reason as a comment; equal settings give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from segmenter.base.errors import ConfigError, plain
from segmenter.base.files import check_writable

from .choice import Choice, nested

_HEAD = "# Each line says why. A line with `or:` has another reading: look at it. All may be changed."
_WIDE = 1 << 20


def recipe_text(choices: Sequence[Choice], command: str) -> str:
    """Return the settings as YAML, each with its reason, and its other reading if any, as a comment.

    Args:
        command: command line that planned the recipe, for the first comment.
    """
    by_key = {choice.key: choice for choice in choices}
    return "\n".join([f"# Planned by: {plain(command)}", _HEAD, *_lines(nested(choices), by_key, "")]) + "\n"


def _lines(data: Mapping[str, Any], choices: Mapping[str, Choice], prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in data.items():
        choice = choices.get(f"{prefix}{key}")
        if choice is None:
            yield f"{indent}{key}:"
            yield from _lines(value, choices, f"{prefix}{key}.")
            continue
        text = f"{choice.reason}; or: {choice.other}" if choice.other else choice.reason
        comment = f"# {plain(' '.join(text.split()))}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{key}:  {comment}"
            yield from (f"{indent}  - {_flow(item)}" for item in value)
        else:
            yield f"{indent}{key}: {_flow(value)}  {comment}"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=_WIDE, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def shown(value: Any) -> str:
    """Return a value in short, on one line: of classes their names."""
    if isinstance(value, list):
        return ", ".join(shown(each.get("name", each) if isinstance(each, dict) else each) for each in value)
    return plain(value) if isinstance(value, str) else _flow(value)


def check_free(path: Path) -> None:
    """Refuse a file that exists, or that cannot be written.

    Raises:
        ConfigError: it exists.
        SegmenterError: it cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError(
            path, "exists, and nothing is written over", remedy="name another file by --output or --page"
        )
    check_writable(path)
