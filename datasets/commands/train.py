"""Train a model: recipe → dataset → tile index → devices → trainer. See `python train.py --help`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from segmenter.base.errors import CheckpointError, counted, plain
from segmenter.base.machine import keep_freed_memory
from segmenter.base.options import parsed
from segmenter.base.terminal import warn, words_aside

from .train_options import TrainOptions
from .train_options import train_parser as _parser

if TYPE_CHECKING:
    from segmenter.config.recipe import DistributionConfig, Recipe
    from segmenter.devices.machines.cluster import Cluster
    from segmenter.devices.strategy import Devices
    from segmenter.extras.parameter_servers.control import Watch
    from segmenter.grid.scenes import Dataset
    from segmenter.training.beginning.fine_tuning import Source
    from segmenter.training.ending import Outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in this process's role, alone or with others; return the exit code."""
    given = parsed(_parser(), TrainOptions, arguments)
    with words_aside(given.json) as answer:
        return _main(given, answer)


def _main(given: TrainOptions, answer: TextIO) -> int:
    # ---------------------------------------------------------------------------------- recipe
    from segmenter.config.reading import describe_recipe

    recipe = given.read()
    if given.print_config:
        print(f"{recipe.model_dump_json()}\n" if given.json else describe_recipe(recipe), end="", file=answer)
        return 0
    from segmenter.devices.setup import require_tensorflow

    require_tensorflow()

    # ----------------------------------------------------------------------- role in a cluster
    served = recipe.distribution.strategy == "parameter_server"
    cluster = None if served else given.place_in_cluster(recipe.distribution.strategy)
    if given.folds is not None:
        from .folds import train_folds

        alone = not served and (cluster is None or cluster.workers == 1)
        return _told(train_folds(given, recipe, _train, alone=alone), given, answer)
    if served:
        from segmenter.extras.parameter_servers.strategy import run_role

        named = (given.cluster, given.role, given.index, given.logical_devices)
        run_role(
            recipe.distribution,
            named,
            lambda watch: _told([_train(given, recipe, watch=watch)], given, answer),
        )
    outcome = _train(given, recipe, cluster)
    return _told([outcome], given, answer) if cluster is None or cluster.chief else outcome.exit_code


def _told(outcomes: Sequence[Outcome], given: TrainOptions, answer: TextIO) -> int:
    """Print the result, or that of each fold, as JSON if requested; return the exit code."""
    if given.json:
        facts = [outcome.to_dict() for outcome in outcomes]
        told = facts[0] if given.folds is None else {"folds": facts}
        print(json.dumps(told, allow_nan=False), file=answer, flush=True)
    return outcomes[-1].exit_code


def _train(
    given: TrainOptions,
    recipe: Recipe,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
    sibling: Path | None = None,
) -> Outcome:
    """Train alone, as one of several workers (`cluster`), or as the chief of parameter servers (`watch`).

    Args:
        sibling: run of another fold, whose scenes it has; None: those of the folder.
    """
    # -------------------------------------------------------------------- dataset, index, run
    from segmenter.base.terminal import quiet
    from segmenter.raster import quiet_gdal
    from segmenter.training.prepare import check_run_directory, prepare_tiles

    from ..known import keep_deal

    quiet_gdal()
    chief = cluster is None or cluster.chief
    path = given.run or Path("runs") / recipe.name
    checkpoint = None
    if chief:
        checkpoint = check_run_directory(path, recipe, resume=given.resumes, resume_from=given.resume_from)
    dataset = _dataset(recipe, path if given.resumes else None, sibling)
    source = _source(given, recipe, dataset) if chief else None
    with quiet(not chief):
        tiles = prepare_tiles(recipe, dataset)
    if chief and not given.resumes:
        keep_deal(given.recipe, recipe.dataset.deals, dataset)

    # ------------------------------------------------- worker processes, before TensorFlow is imported
    from segmenter.extras.strategies import cards_expected, shared_out
    from segmenter.tiles.feeding.processes import worker_processes

    cards = cards_expected(recipe.distribution, given.logical_devices, watch)
    count = 1 if cluster is None else cluster.workers
    with worker_processes(recipe, *tiles.image_form, cards, count) as workers:
        # ----------------------------------------------------------------- devices, then training
        devices = _devices(given, recipe.distribution, cluster, watch)
        resumed = path if checkpoint else None
        devices = shared_out(devices, recipe, tiles.image_form, len(dataset.classes), resumed)
        from segmenter.training.start import start_training

        return start_training(
            *(recipe, dataset, tiles, devices, path),
            checkpoint=checkpoint,
            source=source,
            profile=given.profile,
            workers=workers,
        )


def _dataset(recipe: Recipe, resumed: Path | None, sibling: Path | None) -> Dataset:
    """Return the scenes of a training: a resumed one has its own, whatever has been added to the folder."""
    from segmenter.runs.run import RUN_FILE, load_run

    from .. import load_dataset
    from ..known import known_dataset

    begun = resumed or sibling
    if begun is None or not (begun / RUN_FILE).exists():
        return load_dataset(recipe)
    try:
        return known_dataset(recipe, load_run(begun), roles=resumed is not None)
    except CheckpointError:  # of before: other data are refused once they are compared
        return load_dataset(recipe)


def _source(given: TrainOptions, recipe: Recipe, dataset: Dataset) -> Source | None:
    """Return the run of `--init-from`; else check the encoder's initial weights and return None."""
    from segmenter.demands.encoder import check_encoder_weights
    from segmenter.training.beginning.fine_tuning import find_source

    if given.init_from is not None:
        source = find_source(given.init_from, recipe, dataset, partial=given.init_from_partial)
        _warn_of_seen(source, recipe, dataset)
        return source
    if not given.resumes:
        check_encoder_weights(recipe.model, dataset)
    return None


def _warn_of_seen(source: Source, recipe: Recipe, dataset: Dataset) -> None:
    """Warn of validation and test scenes that trained the run of `--init-from`."""
    from ..known import seen_by

    held_out = (*dataset.of("validation"), *dataset.of("test"))
    if seen := seen_by(source.run, held_out, dataset, recipe):
        splits = " and ".join(dict.fromkeys(scene.split for scene in seen))
        scenes = counted(len(seen), f"{splits} scene")
        warn(plain(f"{scenes} trained {source.run.path}, as {seen[0].image}, so that the scores flatter"))


def _devices(
    given: TrainOptions, config: DistributionConfig, cluster: Cluster | None, watch: Watch | None
) -> Devices:
    """Start TensorFlow with the recipe's devices and strategy."""
    from segmenter.devices.setup import load_tensorflow
    from segmenter.extras.strategies import make_devices

    several, logical = cluster is not None and cluster.workers > 1, given.logical_devices
    load_tensorflow(logical, log_placement=config.log_placement, clustered=several, remote=watch is not None)
    devices = make_devices(config, logical, cluster, watch)
    if devices.names[0].startswith("CPU"):
        keep_freed_memory()
    return devices
