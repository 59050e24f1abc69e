"""Commands of `python -m segmenter.runs` on runs for others: describe one, hand it over, take one in."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.base.files import gibibytes, write_whole
from segmenter.base.invocation import invocation


def _add_description(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"file to write (default: {default})")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument(
        "--license", metavar="ID", help="of the weights, as mit or cc-by-4.0 (default: not stated)"
    )


def _free_output(args: argparse.Namespace, name: str) -> Path:
    """Return the path of the file to write.

    Raises:
        SegmenterError: the file already exists.
    """
    output = args.run_dir / name if args.output is None else args.output
    if output.exists() and not args.overwrite:
        raise SegmenterError(output, "exists already", remedy="name another file, or add --overwrite")
    return Path(output)


def _add_card(parser: argparse.ArgumentParser) -> None:
    _add_description(parser, "RUN/README.md, where model hubs look for it")


def _card(args: argparse.Namespace) -> int:
    from segmenter.extras.sharing.card import FILE, card_text
    from segmenter.extras.sharing.known_facts import read_known

    facts = read_known(args.run_dir)
    output = _free_output(args, FILE)
    write_whole(output, card_text(facts, args.license).encode())
    print(f"{output}: model card of {facts.name}, weights of {facts.weights.name}")
    return 0


def _add_stac(parser: argparse.ArgumentParser) -> None:
    _add_description(parser, "RUN/stac.json")
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


def _stac(args: argparse.Namespace) -> int:
    from segmenter.extras.sharing.known_facts import read_known
    from segmenter.extras.sharing.stac import FILE, base_of, item, times_of

    times = None if args.datetime is None else times_of(args.datetime)
    facts = read_known(args.run_dir)
    output = _free_output(args, FILE)
    names = [path.name for path in args.run_dir.iterdir()]
    content = item(facts, base_of(args.run_dir, output, args.href), names, args.license, times)
    write_whole(output, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    place = (
        "no place known" if content["geometry"] is None else "bbox " + ", ".join(map(str, content["bbox"]))
    )
    print(f"{output}: STAC item {content['id']}, {place}")
    return 0


def _add_pack(parser: argparse.ArgumentParser) -> None:
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


def _pack(args: argparse.Namespace) -> int:
    from segmenter.extras.sharing.archive import pack_run
    from segmenter.runs.run import load_run

    output = args.output
    if output is None:
        output = Path(f"{load_run(args.run_dir).recipe.name}.run.zip")
    if output.exists() and not args.overwrite:
        raise SegmenterError(output, "exists already", remedy="name another file, or add --overwrite")
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


def _add_unpack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a packed run")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="run directory to write, not there yet or empty (default: runs/NAME)",
    )


def _unpack(args: argparse.Namespace) -> int:
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


COMMANDS = {
    "pack": (
        "write a run as one file, with its model card, its STAC item and a checksum of every file",
        _add_pack,
        _pack,
    ),
    "unpack": ("check a packed run and unpack it: whole, or not at all", _add_unpack, _unpack),
    "card": (
        "write a model card (Markdown): what the model maps, from what it learned, its scores and limits",
        _add_card,
        _card,
    ),
    "stac": ("write a STAC item with the Machine Learning Model extension (MLM 1.4)", _add_stac, _stac),
}
"""Name → what it is for, what adds its options, and what runs it and gives the exit code."""
