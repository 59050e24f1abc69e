"""`python -m segmenter.runs stac RUN`: the STAC item of a run's model."""

from __future__ import annotations

import argparse

from segmenter.extras.sharing.commands.card import add_description_arguments, free_output

HELP = "write a STAC item with the Machine Learning Model extension (MLM 1.4)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_description_arguments(parser, "RUN/stac.json")
    parser.add_argument(
        "--datetime",
        metavar="BEGIN/END",
        help="when the imagery was taken that the model is for, as 2024-05-01/2024-09-30 (default: not "
        "known; the item has the time of the training)",
    )
    parser.add_argument(
        "--href",
        metavar="URL",
        help="address under which the run's files are found (default: relative paths)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the item; return the exit code."""
    import json

    from segmenter.base.files import write_whole
    from segmenter.extras.sharing.known_facts import read_known
    from segmenter.extras.sharing.stac import FILE, base_of, item, times_of

    times = None if args.datetime is None else times_of(args.datetime)
    facts = read_known(args.run_dir)
    output = free_output(args, FILE)
    names = [path.name for path in args.run_dir.iterdir()]
    content = item(facts, base_of(args.run_dir, output, args.href), names, args.license, times)
    write_whole(output, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    place = (
        "no place known" if content["geometry"] is None else "bbox " + ", ".join(map(str, content["bbox"]))
    )
    print(f"{output}: STAC item {content['id']}, {place}")
    return 0
