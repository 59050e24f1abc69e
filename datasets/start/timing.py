"""Time of a planned training on this machine: seconds of a step, measured on made tiles, kept for a day."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time

from segmenter.base.bars import clock
from segmenter.base.errors import SegmenterError, counted
from segmenter.base.files import caches, write_whole
from segmenter.base.terminal import say
from segmenter.config.recipe import Recipe
from segmenter.diagnosis.limits import plan_first_epoch
from segmenter.grid.scenes import Dataset
from segmenter.tiles.index import TileIndex, build_index

STEPS_OF_HOURS = 0.8
"""Share of the time that steps get; the rest is for validation, compiling and the input."""
_KEPT = 24 * 3600
"""Seconds that a measurement is kept."""
_DECIDING = {"global_batch", "precision", "accumulate", "optimizer", "xla"}
"""Settings of a training that decide the time of a step."""


def epoch_steps(recipe: Recipe, dataset: Dataset, index: TileIndex) -> int:
    """Return the steps of an epoch of a recipe's sampling, with its repeats."""
    if recipe.sampling.method != "plan":
        return -(-len(index) // recipe.training.global_batch)
    return plan_first_epoch(dataset, index, recipe, recipe.training.global_batch).steps


def time_here(recipe: Recipe, dataset: Dataset) -> str:
    """Return a line on the time of a recipe's training on this machine, and on what an hour would give."""
    steps = epoch_steps(recipe, dataset, build_index(dataset, "train", recipe.tiles))
    try:
        seconds = seconds_a_step(recipe)
    except SegmenterError as error:
        return f"time: not measured: {error}"
    whole = recipe.training.epochs * steps * seconds / STEPS_OF_HOURS
    hour = max(1, int(STEPS_OF_HOURS * 3600 / (steps * seconds)))
    return (
        f"about {clock(whole)} here ({seconds:.2g} s a step, measured); "
        f"--hours 1 gives {counted(hour, 'epoch')} of {counted(steps, 'step')}"
    )


def seconds_a_step(recipe: Recipe) -> float:
    """Return the seconds of a training step on this machine; a measurement of the last day counts."""
    file = caches() / "steps" / f"{_key(recipe)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = float(json.loads(file.read_text()))
        if known > 0 and 0 <= time.time() - file.stat().st_mtime < _KEPT:
            return known
    seconds = measure_step(recipe)
    with contextlib.suppress(OSError, SegmenterError):  # it is measured again
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(seconds).encode())
    return seconds


def measure_step(recipe: Recipe) -> float:
    """Return the seconds of a training step, timed for some ten seconds.

    Raises:
        SegmenterError: steps do not run here, as where other work fills a card.
    """
    from segmenter.devices.setup import load_tensorflow

    say("timing a step of this training, some 15 seconds; the time is kept for a day", aside=True)
    load_tensorflow(None)
    from segmenter.training.timing import seconds_of_step

    return seconds_of_step(recipe)


def _key(recipe: Recipe) -> str:
    """Return a digest of the machine and of all settings that decide the time of a step."""
    from segmenter.devices.setup import smallest_card

    machine = [platform.node(), platform.processor(), len(os.sched_getaffinity(0)), smallest_card()]
    training = recipe.training.model_dump(mode="json", include=_DECIDING)
    sections = [each.model_dump(mode="json") for each in (recipe.model, recipe.loss, recipe.distribution)]
    facts = [*machine, recipe.tiles.size, training, *sections]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:16]
