"""Part of this process in `segmenter train`: alone, each fold in turn, or with others; its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from .train_options import TrainOptions
from .train_stages import TrainRequest

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.training.ending import TrainingOutcome

Train = Callable[[TrainRequest], "TrainingOutcome"]


def run_training(given: TrainOptions, recipe: Recipe, train: Train, answer: TextIO) -> int:
    """Train alone, as one of several workers, each fold, or in the role of a cluster with servers.

    Args:
        train: trains one run.
        answer: where the result goes, or with `--print-config` the recipe.

    Returns:
        The exit code.
    """
    if given.print_config:
        from segmenter.config.reading import describe_recipe

        text = f"{recipe.model_dump_json()}\n" if given.json else describe_recipe(recipe)
        print(text, end="", file=answer)
        return 0
    from segmenter.devices.setup import require_tensorflow

    require_tensorflow()
    from segmenter.extras.strategies import role_of

    run_role = role_of(recipe.distribution)
    cluster = None if run_role else given.place_in_cluster(recipe.distribution.strategy)
    alone = run_role is None and (cluster is None or cluster.workers == 1)
    if given.all is not None:
        from .last_training import train_on_all

        return _answer([train_on_all(given, recipe, train, alone=alone)], given, answer)
    if given.folds is not None:
        from .folds import train_folds

        return _answer(train_folds(given, recipe, train, alone=alone), given, answer)
    if run_role is not None:
        named = (given.cluster, given.role, given.index, given.logical_devices)
        run_role(
            recipe.distribution,
            named,
            lambda watch: _answer([train(TrainRequest(given, recipe, watch=watch))], given, answer),
        )
    request = TrainRequest(given, recipe, cluster)
    outcome = train(request)
    return _answer([outcome], given, answer) if request.chief else outcome.exit_code


def _answer(outcomes: Sequence[TrainingOutcome], given: TrainOptions, answer: TextIO) -> int:
    """Print the result, or that of each fold, as JSON if requested; return the exit code."""
    if given.json:
        facts = [outcome.to_dict() for outcome in outcomes]
        told = facts[0] if given.folds is None else {"folds": facts}
        print(json.dumps(told, allow_nan=False), file=answer, flush=True)
    return outcomes[-1].exit_code
