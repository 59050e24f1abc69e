"""Packing: `python -m segmenter.runs pack RUN --output mine.run.zip` writes a run as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from segmenter.base.errors import SegmenterError

HELP = "write a run as one file, with its model card, its STAC item and a checksum of every file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file to write (default: NAME.run.zip)")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument(
        "--with-checkpoints",
        action="store_true",
        help="all checkpoints too, so that others can go on training",
    )
    parser.add_argument(
        "--anonymous",
        action="store_true",
        help="leave out paths of this machine, the place of the scenes, and pictures of imagery",
    )
    parser.add_argument(
        "--license", metavar="ID", help="of the weights, as mit or cc-by-4.0, for card and STAC item"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print its content; return the exit code."""
    from segmenter.base.files import gibibytes
    from segmenter.extras.sharing.archive import pack_run
    from segmenter.runs.run import load_run

    output = args.output
    if output is None:
        output = Path(f"{load_run(args.run_dir).recipe.name}.run.zip")
    if output.exists() and not args.overwrite:
        raise SegmenterError(f"{output}: exists already; name another file, or add --overwrite")
    done = pack_run(
        args.run_dir,
        output,
        with_checkpoints=args.with_checkpoints,
        anonymous=args.anonymous,
        licence=args.license,
    )
    print(f"{output}: {done.files} files, {gibibytes(done.size)}")
    if done.left_out:
        print(f"not in it: {', '.join(done.left_out)}")
    if not done.checkpoints:
        print("predicts, and is a start for --init-from; to go on training, add --with-checkpoints")
    if done.paths:
        print(f"names places on this machine: {'; '.join(done.paths)}; --anonymous leaves them out")
    return 0
