"""What speaks against a training before anything is written."""

from __future__ import annotations

from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.devices.strategy import Devices, sums_not_compiled
from segmenter.errors import CheckpointError, ConfigError
from segmenter.runs.extending import check_rates
from segmenter.runs.resume import Checkpoint
from segmenter.runs.run import Run
from segmenter.training.prepare import Tiles, changed_data, epoch_plan


def check_devices(recipe: Recipe, devices: Devices, *, profile: bool = False) -> None:
    """Refuse what does not go with these devices."""
    if profile and devices.cluster is not None:
        raise ConfigError(
            "--profile: expected without distribution.strategy: parameter_server, whose steps are done by "
            "other processes"
        )
    training, replicas = recipe.training, devices.replicas
    why = sums_not_compiled(recipe.distribution, devices.used, devices.workers.count)
    if training.xla and replicas > 1 and why:
        raise ConfigError(
            f"training.xla: expected false on {replicas} devices, got true: {why}; use "
            "distribution.strategy: one_device, or leave it out"
        )
    dealt = devices.dealt(training.global_batch)
    if uneven := [tiles for tiles in dealt if tiles % training.accumulate]:
        raise ConfigError(
            f"training.accumulate: expected a divisor of the {uneven[0]} "
            f"tiles that each of {replicas} devices gets, got {training.accumulate}"
        )


def check_same_plan(run: Run, tiles: Tiles, planned_for: int, checkpoint: Checkpoint) -> None:
    """Refuse to go on with other data, or with another plan than that of which the rest is to be done."""
    if changed := changed_data(run, tiles):
        raise CheckpointError(
            f"{run.path}: {changed} since this run was started: what follows would be another training; put "
            "back what was there, or use --init-from to start a new run from it"
        )
    if run.planned_replicas != planned_for:
        raise CheckpointError(
            f"{run.path}: sampling.per_replica: guarantee planned its steps for {run.planned_replicas} "
            f"devices, there are {planned_for}; resume on as many, or use --init-from to start a new run"
        )
    epoch, names = checkpoint.position.planned_epoch, run.classes.names
    checkpoint.check_plan(epoch_plan(run.recipe, tiles.index, names, epoch, planned_for))
    known, now = recipe_from(checkpoint.facts.recipe, str(checkpoint.path)).training, run.recipe.training
    if known.epochs != now.epochs:
        steps = epoch_plan(run.recipe, tiles.index, names, 0, planned_for).steps  # as the trainer counts
        check_rates(run.path, known, now, checkpoint.position.done, steps)
