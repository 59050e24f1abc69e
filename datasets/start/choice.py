"""Choices: the planned lines of a recipe, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One planned setting.

    Attributes:
        key: dotted recipe key, as `dataset.labels` or `training.global_batch`.
        value: plain YAML value.
        reason: one short sentence with the number behind it; it becomes the comment in the recipe.
        other: the other possible reading, if there is one; it marks the line in the recipe.
    """

    key: str
    value: Any
    reason: str
    other: str = ""


def nested(choices: Iterable[Choice]) -> dict[str, Any]:
    """Return choices as the plain data of a recipe."""
    data: dict[str, Any] = {}
    for choice in choices:
        *sections, key = choice.key.split(".")
        node = data
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = choice.value
    return data
