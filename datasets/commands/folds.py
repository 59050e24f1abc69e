"""Training of all folds of a recipe, one after the other: `segmenter train RECIPE --folds`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import CheckpointError, ConfigError, SegmenterError, counted, extended_error, plain
from segmenter.base.terminal import quiet, say, warn
from segmenter.base.threads import in_threads
from segmenter.config.datasets import FolderConfig
from segmenter.raster import raster_info

from ..contents import coarse_mask
from ..leaks import AuditedScene, find_leaks
from .train_stages import TrainRequest, scenes_of

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.grid.scenes import Dataset
    from segmenter.training.ending import TrainingOutcome

    from .train_options import TrainOptions


def train_folds(
    given: TrainOptions, recipe: Recipe, train: Callable[[TrainRequest], TrainingOutcome], *, alone: bool
) -> list[TrainingOutcome]:
    """Train each fold into its own run directory, and print the table of their scores.

    A fold that has a checkpoint goes on from it, so that the same command continues after any stop.

    Args:
        train: trains one run.
        alone: False: the training is of several machines.

    Returns:
        The outcome of each fold that trained.

    Raises:
        ConfigError: the recipe has no folds, or an option is of one run.
        CheckpointError: the folder holds a run of its own.
        SegmenterError: a fold cannot train on its scenes.
    """
    from segmenter.runs.checkpoints import has_checkpoint
    from segmenter.runs.run import RUN_FILE
    from segmenter.runs.score_files import fold_path, fold_table

    folds = _folds_wanted(given, recipe, alone)
    folder = given.run or Path("runs") / recipe.name
    if (folder / RUN_FILE).exists():  # predict.py would map with it, not with the folds
        raise CheckpointError(folder, "holds a run already", remedy="name another with --run")
    paths = [fold_path(folder, fold) for fold in range(1, folds + 1)]
    sources = _sources(given.init_from, folds)
    recipes = [given.read(f"dataset.split.fold={fold}") for fold in range(1, folds + 1)]
    _check_folds(recipes, paths)
    outcomes: list[TrainingOutcome] = []
    for fold, (path, own) in enumerate(zip(paths, recipes, strict=True), 1):
        say(plain(f"fold {fold} of {folds}: {path}"))
        sibling = next((each for each in paths if each != path and has_checkpoint(each)), None)
        resumed = has_checkpoint(path)
        source = None if resumed else sources[fold - 1]
        own_given = replace(
            given,
            run=path,
            resume=resumed,
            init_from=source,
            init_from_partial=(given.init_from_partial and source is not None),
        )
        outcomes.append(train(TrainRequest(own_given, own, sibling=sibling)))
        if outcomes[-1].exit_code:
            return outcomes
    say(fold_table(paths))
    say(plain(f"done: {folder} holds the folds, which predict together"))
    return outcomes


def _folds_wanted(given: TrainOptions, recipe: Recipe, alone: bool) -> int:
    """Return the number of folds; ConfigError: there are none, or an option is of one run."""
    folds = recipe.dataset.split.folds if isinstance(recipe.dataset, FolderConfig) else 0
    if not folds:
        raise ConfigError(
            "--folds",
            expected="a number of folds, as in --folds 5, or dataset.split.folds in a recipe of a folder",
            got="none",
        )
    if given.resume_from is not None or not alone:
        raise ConfigError(
            "--folds",
            expected="one machine, and no --resume-from",
            remedy="train one fold by --set dataset.split.fold=1",
        )
    return folds


def _check_folds(recipes: Sequence[Recipe], paths: Sequence[Path]) -> None:
    """Refuse folds that cannot train on their scenes, before hours are spent on others; tell leaks.

    Raises:
        SegmenterError: naming the fold.
    """
    from segmenter.runs.checkpoints import has_checkpoint
    from segmenter.training.prepare import prepare_tiles

    begun = [path for path in paths if has_checkpoint(path)]
    datasets = [scenes_of(own, None, next(iter(begun), None)) for own in recipes]
    for fold, (recipe, path, dataset) in enumerate(zip(recipes, paths, datasets, strict=True), 1):
        if path in begun:
            continue
        try:
            with quiet(True):
                prepare_tiles(recipe, dataset)
        except SegmenterError as error:
            raise extended_error(error, where=f"fold {fold}") from None
    if leaks := _leaks(datasets):
        warn(
            f"{counted(len(leaks), 'leak')} between folds, whose scores flatter: {leaks[0]}; "
            "dataset.split.group keeps scenes together"
        )


def _sources(init_from: Path | None, folds: int) -> list[Path | None]:
    """Return the run that each fold starts from: of a folder of folds, each its own.

    Raises:
        ConfigError: the folder has another number of folds.
    """
    from segmenter.runs.score_files import fold_path, folds_in

    found = [] if init_from is None else folds_in(init_from)
    if init_from is None or not found:
        return [init_from] * folds
    own: list[Path | None] = [fold_path(init_from, fold) for fold in range(1, folds + 1)]
    if sorted(found) != sorted(path for path in own if path is not None):
        raise ConfigError(
            f"--init-from {init_from}",
            expected=f"{folds} folds, as --folds says",
            got=len(found),
            remedy="train as many folds, or name one of them",
        )
    return own


def _leaks(folds: Sequence[Dataset]) -> list[str]:
    """Return a line for each pair of scenes that one fold trains on and validates, by their ground."""
    scenes = [scene for scene in folds[0].scenes if scene.split != "test"]
    infos = in_threads(lambda scene: raster_info(scene.image), scenes, description="ground", unit="scene")
    known = dict(zip((scene.image for scene in scenes), infos, strict=True))
    found: dict[frozenset[str], str] = {}
    for fold in folds:
        seen = [
            AuditedScene(scene, None, known[scene.image], partial(coarse_mask, scene.image, fold.bands))
            for scene in fold.scenes
            if scene.split != "test"
        ]
        for leak in find_leaks(seen):
            found.setdefault(frozenset((leak.first.name, leak.second.name)), leak.text())
    return list(found.values())
