"""The last training before a model is shipped: `segmenter train RECIPE --all`, on validation scenes too."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import CheckpointError, ConfigError, counted, plain
from segmenter.base.invocation import invocation
from segmenter.base.terminal import quiet, say, warn

from .train_stages import TrainRequest, with_validation

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.runs.records import ChosenBy
    from segmenter.training.ending import TrainingOutcome

    from .train_options import TrainOptions

_NO_VALIDATION = ("training.best_by=miou", "training.stop_after=0")


def train_on_all(
    given: TrainOptions, recipe: Recipe, train: Callable[[TrainRequest], TrainingOutcome], *, alone: bool
) -> TrainingOutcome:
    """Train on training and validation scenes for as many steps as an earlier run's validation chose.

    The number of epochs is that whose steps come nearest; the last weights predict.

    Args:
        train: trains one run.
        alone: False: the training is of several machines.

    Raises:
        ConfigError: an option is of a training that validates.
        CheckpointError: no run has validated the recipe yet.
    """
    from segmenter.runs.checkpoints import has_checkpoint
    from segmenter.runs.run import load_run

    if given.folds is not None or given.resume_from is not None or not alone:
        raise ConfigError("--all", expected="one machine, and neither --folds nor --resume-from")
    before = Path(given.all) if given.all else Path("runs") / recipe.name
    chosen = chosen_by(before, recipe)
    path = given.run or before.with_name(f"{before.name}_all")
    if has_checkpoint(path):
        epochs = load_run(path).recipe.training.epochs
    else:
        epochs, each = _epochs(recipe, chosen)
        say(
            plain(
                f"--all: {counted(epochs, 'epoch')} of {each:,} steps, for the {chosen.steps:,} that "
                f"validation chose in {', '.join(chosen.runs)}; nothing validates, the last weights predict"
            )
        )
    own = given.read(f"training.epochs={epochs}", *_NO_VALIDATION)
    return train(TrainRequest(replace(given, run=path), own, chosen=chosen))


def chosen_by(before: Path, recipe: Recipe) -> ChosenBy:
    """Return the steps that the validation of a run chose, or the median of its folds'.

    A training that was stopped, and folds that are missing, are told in a warning.

    Raises:
        CheckpointError: a run has not validated.
        ConfigError: its steps are of another batch than the recipe's.
    """
    from segmenter.runs.records import ChosenBy
    from segmenter.runs.resume import unfinished_line
    from segmenter.runs.run import load_run
    from segmenter.runs.score_files import BEST_FILES, folds_in, load_score

    from ..known import split_settings

    runs, found = folds_in(before) or [before], []
    for run in runs:
        if (best := load_score(run / BEST_FILES[0])) is None:
            raise CheckpointError(
                run,
                expected="a training whose validation says how many steps are the best",
                got="no validation",
                remedy=f"train it first: {invocation('train')} RECIPE, or name another: --all RUN",
            )
        found.append(best)
        own = load_run(run)
        if (batch := own.recipe.training.global_batch) != recipe.training.global_batch:
            raise ConfigError(
                "training.global_batch",
                expected=f"{batch}, of which {run} counts its steps",
                got=recipe.training.global_batch,
            )
        if line := unfinished_line(own):
            warn(plain(f"--all takes the steps of a training that was stopped: {line}"))
    split = split_settings(recipe.dataset)
    if folds_in(before) and split is not None and len(runs) < split.folds:
        warn(f"--all takes the median of {len(runs)} of {split.folds} folds: the others are not trained")
    steps = round(statistics.median(best.step for best in found))
    return ChosenBy(
        runs=tuple(str(run) for run in runs), steps=steps, miou=tuple(best.scores.miou for best in found)
    )


def _epochs(recipe: Recipe, chosen: ChosenBy) -> tuple[int, int]:
    """Return the number of epochs whose steps are nearest to those chosen, and the steps of one epoch."""
    from segmenter.runs.run import load_run
    from segmenter.training.prepare import epoch_plan, prepare_tiles

    from .. import load_dataset

    dataset = with_validation(load_dataset(recipe))
    own = recipe.model_copy(
        update={"training": recipe.training.model_copy(update={"best_by": "miou", "stop_after": 0})}
    )
    with quiet(True):
        index = prepare_tiles(own, dataset).index
    replicas = load_run(Path(chosen.runs[0])).planned_replicas
    each = epoch_plan(own, index, dataset.classes.names, 0, replicas).steps
    return max(1, round(chosen.steps / each)), each
