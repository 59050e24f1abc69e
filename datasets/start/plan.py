"""Plan of a recipe: from the choices of its dataset to all others, by a split in space and twelve rules."""

from __future__ import annotations

from collections.abc import Sequence

from segmenter.training.beginning.demands import check_demands

from .choice import Choice, Request
from .draft import Draft
from .rules import AFTER_SPLIT, BEFORE_SPLIT
from .split import split_of


def plan(choices: Sequence[Choice], request: Request) -> tuple[Choice, ...]:
    """Return the choices of `dataset.split` and of all sections beside `dataset`.

    The same data and the same machine give the same choices, but for epochs by measured hours. A split that
    the choices hold is kept.

    Args:
        choices: the dataset section.

    Raises:
        ConfigError, DatasetError, LabelError, RasterError: the choices make no dataset that can train.
    """
    draft = Draft(choices, request)
    for rule in (*BEFORE_SPLIT, split_of, *AFTER_SPLIT):
        draft.choices += list(rule(draft))
    check_demands(draft.recipe, draft.split_dataset)  # what a training refuses
    return tuple(draft.choices[len(choices) :])
