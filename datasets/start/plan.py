"""Plan of a recipe: all sections beside the files and labels of the dataset."""

from __future__ import annotations

from collections.abc import Sequence

from .choice import Choice
from .request import Request


def plan(choices: Sequence[Choice], request: Request) -> tuple[Choice, ...]:
    """Return the settings that follow from a dataset's choices; none yet."""
    return ()
