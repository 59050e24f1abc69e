"""Choices: the planned lines of a recipe, each with its reason; equal ones give equal bytes of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from segmenter.base.errors import plain
from segmenter.config.reading import one_line

_HEAD = "# Each line says why. A line with `or:` has another reading: look at it. All may be changed."
_ASKED, _MOST_ASKED = "# QUESTION: ", 2
"""Beginning of a question above its setting, and questions of a folder."""


@dataclass(frozen=True)
class Choice:
    """One planned setting.

    Attributes:
        key: dotted recipe key, as `dataset.labels` or `training.global_batch`.
        value: plain YAML value.
        reason: one short sentence with the number behind it; it becomes the comment in the recipe.
        other: the other possible reading, if there is one; it marks the line in the recipe.
        question: what the files cannot tell, with its number; it stands at the top of all.
        instead: settings by dotted key that hold if the answer is the other reading.
        left: what is left out, and why, if that is a finding.
    """

    key: str
    value: Any
    reason: str
    other: str = ""
    question: str = ""
    instead: Mapping[str, Any] = field(default_factory=dict)
    left: str = ""

    def lines(self) -> list[str]:
        """Return the lines to paste in place of the recipe's if the other reading is right."""
        return [f"{key.rpartition('.')[2]}: {one_line(value)}" for key, value in self.instead.items()]


def limit_questions(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices with the questions that can be asked of a user: the first two; more are remarks."""
    open_ones = [choice for choice in choices if choice.question]
    silent = {choice.key for choice in open_ones[_MOST_ASKED:]}
    return tuple(
        replace(choice, question="", instead={}, other=choice.other or choice.question)
        if choice.key in silent
        else choice
        for choice in choices
    )


def nest_choices(choices: Iterable[Choice]) -> dict[str, Any]:
    """Return choices as the plain data of a recipe."""
    data: dict[str, Any] = {}
    for choice in choices:
        *sections, key = choice.key.split(".")
        node = data
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = choice.value
    return data


def recipe_text(choices: Sequence[Choice], command: str) -> str:
    """Return the settings as YAML, each with its reason, and its other reading if any, as a comment.

    Args:
        command: command line that planned the recipe, for the first comment.
    """
    by_key = {choice.key: choice for choice in choices}
    return (
        "\n".join([f"# Planned by: {plain(command)}", _HEAD, *_lines(nest_choices(choices), by_key, "")])
        + "\n"
    )


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
        if choice.question:
            yield f"{indent}{_ASKED}{plain(choice.question)} If so, paste in place of the same lines:"
            yield from (f"{indent}#   {line}" for line in choice.lines())
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{key}:  {comment}"
            yield from (f"{indent}  - {one_line(item)}" for item in value)
        else:
            yield f"{indent}{key}: {one_line(value)}  {comment}"


def value_text(value: Any) -> str:
    """Return a value in short, on one line: of classes their names."""
    if isinstance(value, list):
        return ", ".join(
            value_text(each.get("name", each) if isinstance(each, dict) else each) for each in value
        )
    return plain(value) if isinstance(value, str) else one_line(value)
