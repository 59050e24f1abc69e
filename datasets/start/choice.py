"""Choice: one planned line of a recipe, with its reason."""

from __future__ import annotations

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
