"""Unpacking: `python -m segmenter.runs unpack mine.run.zip` restores a run written by `pack`."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "check a packed run and unpack it: whole, or not at all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a packed run")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="run directory to write, not there yet or empty (default: runs/NAME)",
    )


def run(args: argparse.Namespace) -> int:
    """Unpack the file and print how to use the run; return the exit code."""
    from segmenter.base.invocation import invocation
    from segmenter.extras.sharing.archive import unpack_run

    folder, manifest, files = unpack_run(args.file, args.output)
    print(
        f"{folder}: {files} files of the run {manifest.name}, each with the checksum that it was packed with"
    )
    print(f"map rasters with: {invocation('predict')} {folder} INPUT --output DIR")
    if manifest.checkpoints:
        print(
            f"go on with: {invocation('train')} {folder}/recipe.yaml --run {folder} --resume "
            "--set dataset.root=…, on the same data"
        )
    return 0
