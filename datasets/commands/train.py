"""Train a model: recipe → dataset → tile index → devices → trainer. See `python train.py --help`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from segmenter.base.errors import run_script, run_tool
from segmenter.base.invocation import ToolParser, invocation, recipes_hint
from segmenter.base.machine import keep_freed_memory
from segmenter.base.terminal import enduring_output


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
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
    parser.settings = _setting_names
    parser.add_argument("recipe", type=Path, help=f"a YAML recipe; {recipes_hint()}")
    parser.add_argument("--run", type=Path, help="run directory to write (default: runs/NAME of the recipe)")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="go on from the run's newest checkpoint")
    start.add_argument(
        "--resume-from", type=int, metavar="STEP", help="go on from the checkpoint of this step instead"
    )
    start.add_argument("--init-from", type=Path, metavar="RUN", help="start from another run's weights")
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
    _add_cluster_options(parser)
    return parser


def _setting_names() -> Iterable[str]:
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


def run(arguments: Sequence[str] | None = None) -> int:
    """The whole program: signals, errors as one line, a reader that goes away; gives the exit code."""
    with enduring_output():
        return run_tool(lambda: main(arguments))  # `kill` before the trainer listens keeps what is indexed


def main(arguments: Sequence[str] | None = None) -> int:
    """Read aloud: each stage is one call that returns a named value; gives the exit code."""
    return _with_recipe(parse_arguments(arguments))


def _with_recipe(arguments: argparse.Namespace) -> int:

    # ---------------------------------------------------------------------------------- recipe
    from segmenter.config.reading import describe_recipe, load_recipe

    recipe = load_recipe(arguments.recipe, arguments.set)
    if arguments.print_config:
        print(describe_recipe(recipe), end="")
        return 0
    from segmenter.devices.installed import require_tensorflow

    require_tensorflow()

    # ----------------------------------------------------------------------- role in a cluster
    from segmenter.extras.parameter_servers.control import watching

    roles, cluster = _place(arguments, recipe)
    if roles is None:
        return _train(arguments, recipe, cluster, None)
    from segmenter.extras.parameter_servers.serving import leave, serve

    if roles.role != "chief":
        serve(recipe.distribution, roles)

    def as_chief() -> int:
        with watching(roles) as watch:
            return _train(arguments, recipe, None, watch)

    return leave(run_script(as_chief))


def _place(arguments: argparse.Namespace, recipe: Any) -> tuple[Any, Any]:
    """The process' role among parameter servers, or its place among workers; None where it has none."""
    from segmenter.devices.machines.cluster import find_cluster
    from segmenter.extras.parameter_servers.roles import refuse_options, roles_of

    strategy, words = recipe.distribution.strategy, arguments.cluster
    if strategy == "parameter_server":
        logical = {"logical-devices": arguments.logical_devices}
        refuse_options(logical, "without distribution.strategy: parameter_server, got both")
        return roles_of(words, arguments.role, arguments.index), None
    refuse_options({"role": arguments.role}, f"with distribution.strategy: parameter_server, got {strategy}")
    asked = None if words is None else ",".join(words)
    return None, find_cluster(strategy, asked, arguments.index, os.environ)


def _train(arguments: argparse.Namespace, recipe: Any, cluster: Any, watch: Any) -> int:
    """Alone, as one of several workers (`cluster`), or as the chief of parameter servers (`watch`)."""
    # -------------------------------------------------------------------- dataset, index, run
    from segmenter.base.terminal import quiet
    from segmenter.raster import quiet_gdal
    from segmenter.training import prepare
    from segmenter.training.beginning import fine_tuning, pretraining

    from .. import load_dataset

    quiet_gdal()
    chief = cluster is None or cluster.chief
    run_path = arguments.run or Path("runs") / recipe.name
    resume = arguments.resume or arguments.resume_from is not None
    checkpoint = None
    if chief:
        checkpoint = prepare.check_run_directory(
            run_path, recipe, resume=resume, resume_from=arguments.resume_from
        )
    dataset = load_dataset(recipe)
    source = None
    if arguments.init_from is not None and chief:
        partial = arguments.init_from_partial
        source = fine_tuning.find_source(arguments.init_from, recipe, dataset, partial=partial)
    elif not resume and chief:
        pretraining.check_encoder_weights(recipe, dataset)
    with quiet(not chief):
        tiles = prepare.prepare_tiles(recipe, dataset)

    # ------------------------------------------------- worker processes, before TensorFlow is imported
    from segmenter.devices.expected import gpus_expected
    from segmenter.tiles.feeding.start import worker_processes

    gpus = gpus_expected(recipe.distribution, arguments.logical_devices)
    if watch is not None:  # the chief's cores are free for what its workers need
        gpus = len(watch.roles.workers)
    workers_of_training = 1 if cluster is None else cluster.workers
    with worker_processes(recipe, *tiles.image_form, gpus, workers_of_training) as workers:
        # ----------------------------------------------------------------- devices, then training
        known = checkpoint is not None
        devices = _devices(
            arguments, recipe, tiles, len(dataset.classes), run_path if known else None, cluster, watch
        )
        from segmenter.training.start import start_training

        return start_training(
            recipe,
            dataset,
            tiles,
            devices,
            run_path,
            checkpoint=checkpoint,
            source=source,
            profile=arguments.profile,
            workers=workers,
        )


def _devices(
    arguments: argparse.Namespace,
    recipe: Any,
    tiles: Any,
    classes: int,
    resumed: Path | None,
    cluster: Any,
    watch: Any,
) -> Any:
    """The devices, with what each gets of a step, and a table of them; `resumed`: the run to go on with."""
    from segmenter.devices import strategy
    from segmenter.runs.run import load_run

    logical, several = arguments.logical_devices, cluster is not None and cluster.workers > 1
    strategy.load_tensorflow(
        logical,
        log_placement=recipe.distribution.log_placement,
        clustered=several,
        remote=watch is not None,
    )
    devices = strategy.make_devices(recipe.distribution, logical, cluster, watch)
    if devices.names[0].startswith("CPU"):
        keep_freed_memory()
    from segmenter.extras.unequal_cards.measured import share_out

    known = None if resumed is None else load_run(resumed).shares
    devices = share_out(devices, recipe, tiles.image_form, classes, known)
    print(strategy.describe(devices, recipe.training.global_batch, recipe.training.precision))
    return devices
