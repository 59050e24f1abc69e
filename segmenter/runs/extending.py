"""Extending a run: more epochs than it was begun with, where its schedule allows that.

The law: an extended run is, bit for bit, the run that had the larger number of epochs from its start. All but
the learning rate is a function of the seed and the step. So the schedule allows it exactly where the rates
of the steps that are done are the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import Recipe, TrainingConfig
from segmenter.runs.resume import Checkpoint, Position
from segmenter.runs.run import Extension, Run

EXTENDS = "training.epochs"
"""The setting that makes a run longer."""
_WITH_IT = "training.warmup"
"""What may have to be said with it: a warm-up takes at most a tenth of the steps, of which there are more."""
_TO_THE_END = ("poly", "cosine")
"""Schedules that fall from the warm-up to the last step: another last step is another rate at each."""


def extends(changed: Iterable[str]) -> bool:
    """Whether these settings, changed at a resumption, are an extension."""
    keys = set(changed)
    return EXTENDS in keys and keys <= {EXTENDS, _WITH_IT}


def check_extension(path: Path, known: Recipe, recipe: Recipe, position: Position) -> str:
    """Refuse what is no extension, as far as that can be told before the data are read; a line on what is.

    Args:
        path: the run directory, for messages.
        known: the recipe of the checkpoint.
        recipe: with another number of epochs.

    Raises:
        ConfigError: what to do instead.
    """
    before, now = known.training, recipe.training
    where = f"{path}: {EXTENDS}: {before.epochs} → {now.epochs}"
    begun = position.epoch + bool(position.step)
    if now.epochs < begun or (now.epochs < before.epochs and now.epochs == position.epoch):
        least = begun + (not position.step)
        raise ConfigError(
            f"{where}: expected at least {least}, since {begun} of its epochs are done or begun; it has "
            f"{before.epochs}: --set {EXTENDS}={before.epochs} goes on with these"
        )
    if now.stop_after and position.without_gain >= now.stop_after:
        count = position.without_gain
        raise ConfigError(
            f"{where}: the run ended early, after {count} validation{'s' * (count > 1)} without a gain: to "
            f"go on, set training.stop_after to more than {count}, or to 0, as well"
        )
    if now.schedule in _TO_THE_END and position.done > max(before.warmup, now.warmup) + 1:
        raise ConfigError(f"{where}: {_falls(path, now, position.done)}")
    return f"{EXTENDS}: {before.epochs} → {now.epochs}, from step {position.done} on"


def check_rates(path: Path, known: TrainingConfig, now: TrainingConfig, done: int, epoch_steps: int) -> None:
    """Refuse an extension under which the steps that are done would have had other learning rates.

    Args:
        path: the run directory, for messages.
        known: settings of the checkpoint.
        done: steps.
        epoch_steps: steps of an epoch.

    Raises:
        ConfigError: what to do instead.
    """
    before, after = (warmup_steps(each, each.epochs * epoch_steps) for each in (known, now))
    if now.schedule in _TO_THE_END and done > before + 1:  # the first after the warm-up has the peak
        why = _falls(path, now, done)
        raise ConfigError(f"{path}: {EXTENDS}: {known.epochs} → {now.epochs}: {why}")
    if before != after:
        total = known.epochs * epoch_steps
        raise ConfigError(
            f"{path}: {EXTENDS}: {known.epochs} → {now.epochs}: the warm-up was {before} steps of {total}, "
            f"and would be {after} of {now.epochs * epoch_steps}: keep it with --set {_WITH_IT}={before}"
        )


def warmup_steps(config: TrainingConfig, steps: int) -> int:
    """Steps of the warm-up in a training of so many: at most a tenth of it."""
    return min(config.warmup, steps // 10)


def _falls(path: Path, now: TrainingConfig, done: int) -> str:
    return (
        f"training.schedule: {now.schedule} falls to 0 at the last step, so that with another number of "
        f"epochs the {done} steps done would have had other rates; start a new run from its weights "
        f"(--init-from {path} --run OTHER); constant, exponential and piecewise can go on"
    )


def with_extension(run: Run, recipe: Recipe, checkpoint: Checkpoint) -> Run:
    """The run as it goes on from a checkpoint under a recipe; what made it longer is recorded in it."""
    done = checkpoint.position.done
    kept = tuple(each for each in run.extensions if each.step < done)
    before, now = checkpoint.facts.recipe.get("training", {}).get("epochs"), recipe.training.epochs
    new = (Extension(done, before, now),) if isinstance(before, int) and before != now else ()
    return replace(run, recipe=recipe, extensions=kept + new)
