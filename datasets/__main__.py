"""Tools for datasets: check, pack, make, class coverage, stitching of scenes: `python -m datasets`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import (
    EXIT_SOME_FAILED,
    ConfigError,
    DatasetError,
    SegmenterError,
    plain,
    run_tool,
)
from segmenter.base.files import check_writable
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.options import add_options, positive
from segmenter.base.terminal import say, words_aside
from segmenter.extras.dask.options import ClusterOptions, taken_from
from segmenter.grid.scenes import SPLITS

from .commands.train import setting_names

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe

_ABOUT = "Check, pack or make a dataset, tell its class coverage, or stitch a scene."
_LARGEST_BATCH = 65_536
_STDOUT = Path("-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    args = _parser().parse_args(arguments)
    from segmenter.raster import quiet_gdal  # not before: --help answers at once

    quiet_gdal()
    with words_aside(getattr(args, "json", None) in (True, _STDOUT)) as args.answer:
        return int(args.run(args))


def _parser() -> ToolParser:
    parser = ToolParser(prog=invocation("datasets"), description=_ABOUT)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    check = commands.add_parser(
        "check", help="audit the dataset of a recipe; exit code 0 only if it is clean"
    )
    _add_recipe(check)
    check.add_argument("--all", action="store_true", help="print every finding and file, not only the first")
    check.add_argument(
        "--json",
        action="store_true",
        help="print findings as one JSON object on stdout",
    )
    add_options(check, ClusterOptions)
    check.set_defaults(run=_check)

    _add_coverage(commands)

    augmented = commands.add_parser(
        "augmented", help="a picture of augmented training tiles and their labels"
    )
    _add_recipe(augmented)
    augmented.add_argument("--output", type=Path, required=True, metavar="FILE.png", help="the PNG to write")
    augmented.add_argument("--tiles", type=positive(int), default=4, metavar="N", help="rows (default: 4)")
    augmented.add_argument(
        "--draws", type=positive(int), default=3, metavar="N", help="of each tile (default: 3)"
    )
    augmented.set_defaults(run=_augmented)

    pack = commands.add_parser(
        "pack", help="decode all training scenes once, for the fastest reading; training then uses the packs"
    )
    _add_recipe(pack)
    add_options(pack, ClusterOptions)
    pack.set_defaults(run=_pack)

    _add_files_commands(commands)
    return parser


def _add_coverage(commands: Any) -> None:
    coverage = commands.add_parser(
        "coverage", help="which classes batches hold, at random and as planned, and what limits it"
    )
    _add_recipe(coverage)
    coverage.add_argument(
        "--all", action="store_true", help="also classes, scales, other samplings, what would help"
    )
    coverage.add_argument(
        "--split", choices=("train", "validation", "test"), default="train", help="scenes to diagnose"
    )
    coverage.add_argument(
        "--batch", metavar="N,N,…", help="global batch sizes (default: 16,32,64,128 and the recipe's own)"
    )
    coverage.add_argument(
        "--run", type=Path, metavar="DIR", dest="run_dir", help="a run whose steps to set beside the plan"
    )
    coverage.add_argument("--report", type=Path, metavar="FILE.html", help="write all of it as one HTML page")
    coverage.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=_STDOUT,
        metavar="FILE.json",
        help="write all of it as JSON; without FILE on stdout",
    )
    add_options(coverage, ClusterOptions)
    coverage.set_defaults(run=_coverage)


def _add_files_commands(commands: Any) -> None:
    """Add the commands that need no recipe."""
    make = commands.add_parser(
        "make", help="make imagery in the layout of a published dataset, to try things on"
    )
    make.add_argument("kind", choices=("potsdam", "naic2020"), help="layout of the files")
    make.add_argument("folder", type=Path, metavar="DIR", help="folder to write to")
    make.add_argument("--scenes", type=positive(int), required=True, metavar="N", help="number of scenes")
    make.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed gives the same files")
    make.add_argument(
        "--size", type=positive(int), metavar="PX", help="side of a scene (potsdam: 6000, naic2020: 256)"
    )
    make.add_argument("--round", type=int, choices=(1, 2), help="naic2020: 8 classes (1) or 15 (2)")
    make.add_argument("--padded-names", action="store_true", help="potsdam: 02_10 instead of 2_10")
    make.set_defaults(run=_make, parser=make)

    stitch = commands.add_parser("stitch", help="join the parts of a cut scene into one GeoTIFF")
    stitch.add_argument(
        "pattern", metavar="PATTERN", help="the parts, in quotes; row by row in order of names"
    )
    stitch.add_argument("--columns", type=positive(int), required=True, metavar="N", help="parts in a row")
    stitch.add_argument("--output", type=Path, required=True, metavar="FILE.tif", help="the GeoTIFF to write")
    stitch.set_defaults(run=_stitch)


def _add_recipe(parser: ToolParser) -> None:
    parser.settings = setting_names
    parser.add_argument("config", type=Path, metavar="CONFIG", help="recipe (YAML)")
    parser.add_argument(
        *("--set", "-s"),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, as dataset.root=/data",
    )


def _recipe(args: argparse.Namespace) -> tuple[Recipe, ClusterOptions | None]:
    """Return the recipe and the cluster to use; with a cluster, paths become absolute for its workers."""
    from segmenter.config.reading import load_recipe

    recipe, cluster = load_recipe(args.config, args.set), taken_from(args)
    if cluster is None:
        return recipe, None
    paths = {"root": recipe.dataset.root, "cache": recipe.dataset.cache}
    more = [f"dataset.{name}={json.dumps(os.path.abspath(path))}" for name, path in paths.items() if path]
    return load_recipe(args.config, [*args.set, *more]), cluster


def _check(args: argparse.Namespace) -> int:
    from segmenter.extras.dask.spread import spread_over
    from segmenter.training.beginning.demands import unmet_demands

    from . import load_dataset
    from .check import check_dataset
    from .made import MadeFilesError

    recipe, cluster = _recipe(args)
    try:
        dataset = load_dataset(recipe)
    except MadeFilesError as error:
        say(error.text(everything=args.all))
        return EXIT_SOME_FAILED
    with spread_over(cluster, dataset.root) as spread:
        report = check_dataset(dataset, spread=spread)
    readable = not any(finding.kind in ("unreadable", "bands") for finding in report.findings)
    validation_K = report.pixels_PK[SPLITS.index("validation")]
    unmet = list(unmet_demands(recipe, dataset, validation_K, images=readable))
    say(report.text(everything=args.all, fits=not unmet))
    if args.json:
        reached = {**report.to_dict(), "unmet": [str(error) for error in unmet]}
        print(json.dumps(reached), file=args.answer, flush=True)
    if unmet:
        for each in unmet[:-1]:
            say(f"error: {each}", aside=True)
        raise unmet[-1]
    return 0 if report.clean else EXIT_SOME_FAILED


def _coverage(args: argparse.Namespace) -> int:
    from segmenter.base.files import write_whole
    from segmenter.diagnosis import diagnose, table
    from segmenter.extras.dask.spread import spread_over
    from segmenter.tiles.gsd import with_gsds
    from segmenter.tiles.index import build_index

    from . import load_dataset

    recipe, cluster = _recipe(args)
    batches = _batches(args.batch, recipe.training.global_batch)
    files = [path for path in (args.json, args.report) if path not in (None, _STDOUT)]
    for path in files:  # before any work is done
        check_writable(path)
    if args.json and args.report and args.json.resolve() == args.report.resolve():
        raise SegmenterError(
            f"{args.json}: expected two files for --json and --report, got one name for both"
        )
    dataset = load_dataset(recipe)
    if not dataset.of(args.split):
        raise DatasetError(f"{dataset.root}: expected scenes of the split {args.split}, there are none")
    for file, reason in dataset.unused:
        say(plain(f"left out: {file}: {reason}"))
    for note in dataset.notes:
        say(plain(note))
    with spread_over(cluster, dataset.root) as spread:
        built = build_index(dataset, args.split, recipe.tiles, spread=spread)
    index = with_gsds(built, dataset, recipe)
    diagnosis = diagnose(recipe, dataset, index, batches, args.run_dir)
    say(table(diagnosis, everything=args.all))
    if not args.all:
        say("--all shows classes, other ways of sampling and what would help; --report draws it all")
    if args.json:
        facts = json.dumps(diagnosis.to_dict(), allow_nan=False)
        if args.json == _STDOUT:
            print(facts, file=args.answer, flush=True)
        else:
            write_whole(args.json, f"{facts}\n".encode())
    if args.report:
        from segmenter.diagnosis.report import html_report

        write_whole(args.report, html_report(diagnosis).encode())
    for path in files:
        say(plain(f"written: {path}"))
    return 0


def _augmented(args: argparse.Namespace) -> int:
    from segmenter.config.reading import load_recipe
    from segmenter.diagnosis.augmented import draw_augmented

    from . import load_dataset

    recipe = load_recipe(args.config, args.set)
    check_writable(args.output)
    dataset = load_dataset(recipe)
    draw_augmented(recipe, dataset, args.output, tiles=args.tiles, draws=args.draws)
    say(plain(f"written: {args.output}"))
    return 0


def _pack(args: argparse.Namespace) -> int:
    from segmenter.extras.dask.spread import spread_over

    from . import load_dataset
    from .pack import pack_dataset

    recipe, cluster = _recipe(args)
    dataset = load_dataset(recipe)
    with spread_over(cluster, dataset.root) as spread:
        for line in pack_dataset(dataset, spread=spread):
            say(plain(line))
    return 0


def _batches(text: str | None, own: int) -> list[int]:
    """Return batch sizes in order: a comma-separated list, else the usual sizes and the recipe's own."""
    if text is None:
        from segmenter.diagnosis import USUAL_BATCHES

        return sorted({*USUAL_BATCHES, own})
    try:
        sizes = {int(part) for part in text.split(",")}
    except ValueError:
        sizes = {0}
    if not all(1 <= size <= _LARGEST_BATCH for size in sizes):
        raise ConfigError(
            f"--batch: expected whole numbers of tiles in 1 … {_LARGEST_BATCH}, as in 16,32,64, got {text!r}"
        )
    return sorted(sizes)


def _make(args: argparse.Namespace) -> int:
    from .synthetic.make import make_naic2020, make_potsdam

    sized = {} if args.size is None else {"size": args.size}
    if args.kind == "potsdam":
        if args.round is not None:
            args.parser.error("--round is for naic2020")
        options = {**sized, "padded_names": args.padded_names}
        files = make_potsdam(args.folder, scenes=args.scenes, seed=args.seed, **options)
    else:
        if args.padded_names:
            args.parser.error("--padded-names is for potsdam")
        files = make_naic2020(args.folder, scenes=args.scenes, seed=args.seed, round=args.round or 1, **sized)
    say(f"{len(files)} scenes in {args.folder}")
    return 0


def _stitch(args: argparse.Namespace) -> int:
    from .stitch import find_parts, stitch

    parts = find_parts(args.pattern)
    size = stitch(parts, args.columns, args.output)
    say(f"{plain(str(args.output))}: {size} pixels from {len(parts)} parts")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_tool(main))
