"""`python -m segmenter.runs card RUN`: the model card of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from segmenter.base.errors import SegmenterError

HELP = "write a model card (Markdown): what the model maps, from what it learned, its scores and limits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_description_arguments(parser, "RUN/README.md, where model hubs look for it")


def add_description_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options of a command that describes a run."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"file to write (default: {default})")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument(
        "--license", metavar="ID", help="of the weights, as mit or cc-by-4.0 (default: not stated)"
    )


def free_output(args: argparse.Namespace, name: str) -> Path:
    """Return the path of the file to write.

    Raises:
        SegmenterError: the file already exists.
    """
    output = args.run_dir / name if args.output is None else args.output
    if output.exists() and not args.overwrite:
        raise SegmenterError(f"{output}: exists already; name another file, or add --overwrite")
    return Path(output)


def run(args: argparse.Namespace) -> int:
    """Write the card; return the exit code."""
    from segmenter.base.files import write_whole
    from segmenter.extras.sharing.card import FILE, card_text
    from segmenter.extras.sharing.known_facts import read_known

    facts = read_known(args.run_dir)
    output = free_output(args, FILE)
    write_whole(output, card_text(facts, args.license).encode())
    print(f"{output}: model card of {facts.name}, weights of {facts.weights.name}")
    return 0
