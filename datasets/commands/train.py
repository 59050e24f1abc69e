"""Train a model: recipe → dataset → tile index → devices → trainer. See `python train.py --help`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from segmenter.base.invocation import ToolParser, invocation, recipes_hint
from segmenter.base.machine import keep_freed_memory
from segmenter.base.terminal import words_aside

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.devices.machines.cluster import Cluster
    from segmenter.devices.strategy import Devices
    from segmenter.extras.parameter_servers.control import Watch
    from segmenter.grid.scenes import Dataset
    from segmenter.runs.resume import Checkpoint
    from segmenter.training.beginning.fine_tuning import Source
    from segmenter.training.ending import Outcome


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.init_from_partial and parsed.init_from is None:
        parser.error("--init-from-partial says how to use --init-from RUN: it needs it")
    return parsed


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=invocation("train").removeprefix("python "),
        description="Train a segmentation model on land-cover tiles.",
    )
    parser.settings = setting_names
    parser.add_argument("recipe", type=Path, help=f"a YAML recipe; {recipes_hint()}")
    parser.add_argument("--run", type=Path, help="run directory to write (default: runs/NAME of the recipe)")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="go on from the run's newest checkpoint")
    start.add_argument(
        "--resume-from", type=int, metavar="STEP", help="go on from the checkpoint of this step instead"
    )
    start.add_argument("--init-from", type=Path, metavar="RUN", help="start from another run's weights")
    parser.add_argument(
        "--folds",
        nargs="?",
        const=0,
        type=int,
        metavar="K",
        help="train each fold of dataset.split.folds, or K folds in place of the validation, into "
        "RUN/fold_1, …; the same command goes on",
    )
    parser.add_argument(
        "--init-from-partial",
        action="store_true",
        help="with --init-from: also where less than half of the model's weights fit",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in training.global_batch=32"
    )
    parser.add_argument("--print-config", action="store_true", help="show the resolved recipe and end")
    parser.add_argument(
        "--logical-devices",
        type=int,
        choices=range(1, 65),
        metavar="N",
        help="split the CPU into N replicas, to try out several",
    )
    parser.add_argument(
        "--profile", action="store_true", help="write a TensorBoard profile of some steps into the run"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object, the usual lines on stderr",
    )
    _add_cluster_options(parser)
    return parser


def in_place_of_validation(folds: int) -> list[str]:
    """Return the overrides that deal a recipe's scenes into folds."""
    none = ("dataset.split.validation=[]", "dataset.split.validation_share=0")
    return [f"dataset.split.folds={folds}", *none]


def setting_names() -> Iterable[str]:
    """Return the names of all settings of recipes, for `did you mean`."""
    from segmenter.config.reading import default_recipe, flat_settings

    return flat_settings(default_recipe())


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    cluster = parser.add_argument_group("several machines (docs/machines.md)")
    cluster.add_argument(
        "--cluster",
        nargs="+",
        metavar="HOST:PORT,…",
        help="addresses of all workers, the chief first; or slurm; of parameter servers ROLE=HOST:PORT,… for "
        "the roles chief, worker and ps. Without it, TF_CONFIG says them",
    )
    cluster.add_argument(
        "--index", type=int, metavar="I", help="number of this process in --cluster, or in its role, from 0"
    )
    cluster.add_argument(
        "--role", choices=("chief", "worker", "ps"), help="with parameter servers (default: chief)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in this process's role, alone or with others; return the exit code."""
    given = parse_arguments(arguments)
    with words_aside(given.json) as answer:
        return _main(given, answer)


def _main(given: argparse.Namespace, answer: TextIO) -> int:
    # ---------------------------------------------------------------------------------- recipe
    from segmenter.config.reading import describe_recipe, load_recipe

    if given.folds:
        given.set = [*given.set, *in_place_of_validation(given.folds)]
    recipe = load_recipe(given.recipe, given.set)
    if given.print_config:
        print(describe_recipe(recipe), end="")
        return 0
    from segmenter.devices.installed import require_tensorflow

    require_tensorflow()

    # ----------------------------------------------------------------------- role in a cluster
    if recipe.distribution.strategy == "parameter_server":
        from segmenter.extras.parameter_servers.serving import run_role

        named = (given.cluster, given.role, given.index, given.logical_devices)
        run_role(
            recipe.distribution, named, lambda watch: _told(_train(given, recipe, watch=watch), given, answer)
        )
    if given.folds is not None:
        from .folds import train_folds

        return _told(train_folds(given, recipe, _train), given, answer)
    cluster = _cluster(given, recipe)
    outcome = _train(given, recipe, cluster)
    return _told(outcome, given, answer) if cluster is None or cluster.chief else outcome.exit_code


def _told(outcome: Outcome, given: argparse.Namespace, answer: TextIO) -> int:
    """Print the result as JSON if requested; return the exit code."""
    if given.json:
        print(json.dumps(outcome.to_dict(), allow_nan=False), file=answer, flush=True)
    return outcome.exit_code


def _cluster(given: argparse.Namespace, recipe: Recipe) -> Cluster | None:
    """Return this process's place among the workers of a training; None if it trains alone."""
    from segmenter.base.errors import ConfigError
    from segmenter.devices.machines.cluster import find_cluster

    strategy = recipe.distribution.strategy
    if given.role is not None:
        raise ConfigError(f"--role: expected with distribution.strategy: parameter_server, got {strategy}")
    asked = None if given.cluster is None else ",".join(given.cluster)
    return find_cluster(strategy, asked, given.index, os.environ)


def _train(
    given: argparse.Namespace, recipe: Recipe, cluster: Cluster | None = None, watch: Watch | None = None
) -> Outcome:
    """Train alone, as one of several workers (`cluster`), or as the chief of parameter servers (`watch`)."""
    # -------------------------------------------------------------------- dataset, index, run
    from segmenter.base.terminal import quiet
    from segmenter.raster import quiet_gdal
    from segmenter.training.prepare import prepare_tiles

    from .. import load_dataset

    quiet_gdal()
    chief = cluster is None or cluster.chief
    path = given.run or Path("runs") / recipe.name
    checkpoint = _checkpoint(given, recipe, path) if chief else None
    dataset = load_dataset(recipe)
    source = _source(given, recipe, dataset) if chief else None
    with quiet(not chief):
        tiles = prepare_tiles(recipe, dataset)

    # ------------------------------------------------- worker processes, before TensorFlow is imported
    from segmenter.extras.strategies import cards_expected, shared_out
    from segmenter.tiles.feeding.processes import worker_processes

    cards = cards_expected(recipe.distribution, given.logical_devices, watch)
    count = 1 if cluster is None else cluster.workers
    with worker_processes(recipe, *tiles.image_form, cards, count) as workers:
        # ----------------------------------------------------------------- devices, then training
        devices = _devices(given, recipe, cluster, watch)
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


def _checkpoint(given: argparse.Namespace, recipe: Recipe, path: Path) -> Checkpoint | None:
    """Check the run directory; return the checkpoint to resume from, if any."""
    from segmenter.training.prepare import check_run_directory

    return check_run_directory(path, recipe, resume=_resumes(given), resume_from=given.resume_from)


def _resumes(given: argparse.Namespace) -> bool:
    return given.resume or given.resume_from is not None


def _source(given: argparse.Namespace, recipe: Recipe, dataset: Dataset) -> Source | None:
    """Return the run of `--init-from`; else check the encoder's initial weights and return None."""
    from segmenter.training.beginning import fine_tuning, pretraining

    if given.init_from is not None:
        return fine_tuning.find_source(given.init_from, recipe, dataset, partial=given.init_from_partial)
    if not _resumes(given):
        pretraining.check_encoder_weights(recipe.model, dataset)
    return None


def _devices(
    given: argparse.Namespace, recipe: Recipe, cluster: Cluster | None, watch: Watch | None
) -> Devices:
    """Start TensorFlow with the recipe's devices and strategy."""
    from segmenter.devices.setup import load_tensorflow
    from segmenter.extras.strategies import make_devices

    config, logical = recipe.distribution, given.logical_devices
    several = cluster is not None and cluster.workers > 1
    load_tensorflow(logical, log_placement=config.log_placement, clustered=several, remote=watch is not None)
    devices = make_devices(config, logical, cluster, watch)
    if devices.names[0].startswith("CPU"):
        keep_freed_memory()
    return devices
