"""Commands on runs for others: describe one, hand it over, take one in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.files import gibibytes, write_whole
from segmenter.base.invocation import invocation, quote_path
from segmenter.base.options import Command, OverwriteOptions, option


@dataclass(frozen=True, kw_only=True)
class _RunOptions(OverwriteOptions):
    run_dir: Path = option(..., "run directory to read", "RUN", positional=True)
    license: str | None = option(
        None,
        "licence of the weights, as an SPDX identifier such as mit or cc-by-4.0 (default: not stated)",
        "ID",
    )


@dataclass(frozen=True, kw_only=True)
class _CardOptions(_RunOptions):
    output: Path | None = option(
        None,
        "model card to write (default: README.md in the run directory, where model hubs look for it)",
        "FILE",
    )


def _card(given: _CardOptions) -> int:
    from segmenter.extras.sharing.card import FILE, card_text
    from segmenter.extras.sharing.known_facts import read_known

    facts = read_known(given.run_dir)
    output = given.output or given.run_dir / FILE
    with given.exclusive_outputs(output):
        write_whole(output, card_text(facts, given.license).encode())
    print(f"{output}: model card of {facts.name}, weights of {facts.weights.name}")
    return 0


@dataclass(frozen=True, kw_only=True)
class _StacOptions(_RunOptions):
    output: Path | None = option(None, "JSON file to write (default: stac.json in the run directory)", "FILE")
    datetime: str | None = option(
        None,
        "period in which the imagery that the model is for was taken, as 2024-05-01/2024-09-30 (default: "
        "not known; the item has the time of the training)",
        "BEGIN/END",
    )
    href: str | None = option(
        None,
        "address under which the run's files can be fetched (default: paths relative to the item)",
        "URL",
    )


def _stac(given: _StacOptions) -> int:
    from segmenter.extras.sharing.card import FILE as CARD
    from segmenter.extras.sharing.known_facts import read_known
    from segmenter.extras.sharing.stac import FILE, base_of, item_text, times_of

    times = None if given.datetime is None else times_of(given.datetime)
    facts = read_known(given.run_dir)
    output = given.output or given.run_dir / FILE
    base, card = base_of(given.run_dir, output, given.href), (given.run_dir / CARD).exists()
    text = item_text(facts, given.license, base, times, card)
    with given.exclusive_outputs(output):
        write_whole(output, text.encode())
    item = json.loads(text)
    place = "bbox " + ", ".join(map(str, item["bbox"])) if "bbox" in item else "no place known"
    print(f"{output}: STAC item {item['id']}, {place}")
    return 0


@dataclass(frozen=True, kw_only=True)
class _PackOptions(_RunOptions):
    output: Path | None = option(None, "archive to write (default: NAME.run.zip in this folder)", "FILE")
    with_checkpoints: bool = option(
        False,
        "pack all checkpoints too, so that others can continue the training (default: only the weights "
        "that predict)",
    )
    anonymous: bool = option(
        False,
        "leave out what names this machine or place: paths, coordinates of the scenes, and pictures of "
        "imagery (default: all is packed)",
    )


def _pack(given: _PackOptions) -> int:
    from segmenter.extras.sharing.archive import pack_run, resumable
    from segmenter.runs.run import load_run

    output = given.output or Path(f"{load_run(given.run_dir).recipe.name}.run.zip")
    with given.exclusive_outputs(output):
        done = pack_run(
            given.run_dir,
            output,
            with_checkpoints=given.with_checkpoints,
            anonymous=given.anonymous,
            licence=given.license,
        )
    print(f"{output}: {len(done.files)} files, {gibibytes(output.stat().st_size)}")
    if done.left_out:
        print(f"not in it: {', '.join(done.left_out)}")
    if not resumable(done.files):
        print("predicts, and is a start for --init-from; to go on training, add --with-checkpoints")
    if done.paths:
        print(f"names places on this machine: {'; '.join(done.paths)}; --anonymous leaves them out")
    return 0


@dataclass(frozen=True, kw_only=True)
class _UnpackOptions:
    file: Path = option(..., "packed run to read, NAME.run.zip", "FILE", positional=True)
    output: Path | None = option(
        None,
        "run directory to write, which must be new or empty (default: runs/NAME, of NAME.run.zip)",
        "DIR",
    )


def _unpack(given: _UnpackOptions) -> int:
    from segmenter.extras.sharing.archive import resumable, unpack_run

    run, files = unpack_run(given.file, given.output)
    folder, name = run.path, run.recipe.name
    print(f"{folder}: {len(files)} files of the run {name}, each with the checksum that it was packed with")
    print(f"map rasters with: {invocation('predict')} {quote_path(folder)} INPUT --output DIR")
    if resumable(files):
        recipe = quote_path(folder / "recipe.yaml")
        print(
            f"go on with: {invocation('train')} {recipe} --run {quote_path(folder)} --resume "
            "--set dataset.root=…, on the same data"
        )
    return 0


COMMANDS = {
    "pack": Command(
        "write a run as one file, with its model card, its STAC item and a checksum of every file",
        _PackOptions,
        _pack,
    ),
    "unpack": Command("check a packed run and unpack it: whole, or not at all", _UnpackOptions, _unpack),
    "card": Command(
        "write a model card (Markdown): what the model maps, from what it learned, its scores and limits",
        _CardOptions,
        _card,
    ),
    "stac": Command(
        "write a STAC item with the Machine Learning Model extension (MLM 1.4)", _StacOptions, _stac
    ),
}
