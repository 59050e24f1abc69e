"""Checks of a training before anything is written, and errors of exhausted memory."""

from __future__ import annotations

from contextlib import AbstractContextManager

from segmenter.base.errors import CheckpointError, ConfigError, counted
from segmenter.base.files import gibibytes
from segmenter.base.machine import free_memory
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.devices.setup import memory_errors
from segmenter.devices.strategy import Devices, sums_not_compiled
from segmenter.model.size import BYTES_PER_PARAMETER, ON_PROCESSOR, parts_that_fit
from segmenter.runs.resume import Checkpoint, check_rates
from segmenter.runs.run import Run
from segmenter.training.prepare import TrainingTiles, changed_data, epoch_plan

_SURELY = 2 / 3
"""Share of the bytes counted for a processor that is taken at the least: measured 0.8 for U-Nets."""


def check_devices(recipe: Recipe, devices: Devices, *, profile: bool = False) -> None:
    """Refuse settings that do not fit these devices."""
    if profile and not devices.kind.may_profile:
        raise ConfigError(
            "--profile",
            expected=f"without distribution.strategy: {recipe.distribution.strategy}, whose steps are done "
            "by other processes",
        )
    training, replicas = recipe.training, devices.replicas
    why = sums_not_compiled(recipe.distribution, devices.used, devices.workers.count)
    if training.xla is True and replicas > 1 and why:
        raise ConfigError(
            "training.xla",
            expected=f"false on {replicas} devices",
            got=f"true: {why}",
            remedy="use distribution.strategy: one_device, or leave it out",
        )
    dealt = devices.replica_tiles(training.global_batch)
    if uneven := [tiles for tiles in dealt if tiles % training.accumulate]:
        raise ConfigError(
            "training.accumulate",
            expected=f"a divisor of the {uneven[0]} tiles that each of {replicas} devices gets",
            got=training.accumulate,
        )


def check_memory(recipe: Recipe, devices: Devices, of_a_tile: int, parameters: int) -> str:
    """Return a warning if a step may exceed the memory; else empty text.

    The kernel kills a process that exhausts a machine's memory without a message; a GPU raises an error, so a
    warning suffices there.

    Args:
        of_a_tile: bytes by `training_bytes_per_image`.

    Raises:
        ConfigError: a step exceeds the machine's memory.
    """
    training, used = recipe.training, devices.used
    dealt = devices.replica_tiles(training.global_batch)[devices.first : devices.first + len(used)]
    tiles, of_model = [each // training.accumulate for each in dealt], parameters * BYTES_PER_PARAMETER
    on_processor = used[0].name.startswith("CPU")
    if on_processor:  # which has one memory for all replicas
        tiles, of_model, of_a_tile = [sum(tiles)], of_model * len(used), int(of_a_tile * ON_PROCESSOR)
    for device, at_once in zip(used, tiles, strict=False):
        if device.bytes is None:
            continue
        free = min(device.bytes, free_memory()) if on_processor else device.bytes
        needed = at_once * of_a_tile + of_model
        if needed <= free:
            continue
        line = (
            f"{counted(at_once, 'tile')} at a time on {device.name} take about {gibibytes(needed)} of its "
            f"memory, {gibibytes(free)} of {gibibytes(device.bytes)} are free: "
            f"{_smaller(recipe, (free - of_model) / of_a_tile / at_once)}"
        )
        if on_processor and needed * _SURELY > device.bytes:
            raise ConfigError(line)
        return line
    return ""


def _smaller(recipe: Recipe, share: float) -> str:
    """Return settings that reduce a step's memory, given the share of its tiles that fits."""
    batch = recipe.training.global_batch
    fits = int(batch * share)
    if fits < 1:
        return f"lower {recipe.model.smaller_by} or tiles.size"
    parts = parts_that_fit(batch, fits)
    return (
        f"set training.accumulate to {parts * recipe.training.accumulate} (the same step in parts), or lower "
        f"training.global_batch to {fits} or less, {recipe.model.smaller_by} or tiles.size"
    )


def check_same_plan(run: Run, tiles: TrainingTiles, planned_for: int, checkpoint: Checkpoint) -> None:
    """Refuse to resume with other data, or with a plan that differs from the one begun."""
    if changed := changed_data(run, tiles):
        raise CheckpointError(
            run.path,
            f"{changed} since this run was started: what follows would be another training",
            remedy="put back what was there, or use --init-from to start a new run from it",
        )
    if run.planned_replicas != planned_for:
        raise CheckpointError(
            run.path,
            f"sampling.per_replica: guarantee planned its steps for {run.planned_replicas} devices, there "
            f"are {planned_for}",
            remedy="resume on as many, or use --init-from to start a new run",
        )
    epoch, names = checkpoint.position.planned_epoch, run.classes.names
    plan = epoch_plan(run.recipe, tiles.index, names, epoch, planned_for)
    checkpoint.check_plan(plan.fingerprint, plan.steps)
    known, now = recipe_from(checkpoint.facts.recipe, str(checkpoint.path)).training, run.recipe.training
    if known.epochs != now.epochs:
        steps = epoch_plan(run.recipe, tiles.index, names, 0, planned_for).steps  # as the trainer counts
        check_rates(run.path, known, now, checkpoint.position.done, steps)


def in_memory(recipe: Recipe, replicas: int) -> AbstractContextManager[None]:
    """Convert errors of exhausted memory in a step, or in waiting batches, to one line."""
    return memory_errors(
        f"at {recipe.training.global_batch} tiles of {recipe.tiles.size} pixels a step on {replicas} devices",
        f"lower training.global_batch, tiles.size or {recipe.model.smaller_by}, or raise training.accumulate",
    )
