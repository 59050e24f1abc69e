"""One planned setting: key, value, and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One planned setting of a recipe.

    Attributes:
        key: dotted recipe key, as "dataset.labels" or "training.global_batch".
        value: plain YAML value.
        reason: one short sentence with the number behind it; becomes the comment in the recipe.
        other: the other possible reading, if there is one; marks the line in the recipe.
    """

    key: str
    value: Any
    reason: str
    other: str = ""
