"""Diagnose the class coverage of batches, at random and as planned, and what limits it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from segmenter.base.errors import ConfigError, DatasetError, SegmenterError, plain
from segmenter.base.files import check_writable
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option
from segmenter.base.terminal import say, stdout_for_json

from .frame import parse_quietly, tool_parser
from .options import ClusterRecipeOptions

if TYPE_CHECKING:
    from segmenter.diagnosis import Diagnosis

_LARGEST_BATCH = 65_536
_STDOUT = Path("-")


@dataclass(frozen=True, kw_only=True)
class _Options(ClusterRecipeOptions):
    all: bool = option(False, "print also the classes, scales, other ways of sampling, and what would help")
    split: Literal["train", "validation", "test"] = option(
        "train",
        "part of the split whose scenes are diagnosed: which classes its tiles and batches hold "
        "(default: train)",
    )
    batch: str | None = option(
        None,
        "sizes of the global batch to diagnose, in tiles (default: 16,32,64,128 and the recipe's own)",
        "N,N,…",
    )
    run: Path | None = option(
        None, "run directory of a training whose steps are compared with the plan", "DIR"
    )
    report: Path | None = option(
        None, "HTML page to write with the whole diagnosis (default: none)", "FILE.html"
    )
    json: Path | None = option(
        None,
        "JSON file to write with the whole diagnosis; without FILE.json it is printed on stdout",
        "FILE.json",
        alone=_STDOUT,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the coverage, and write the requested files; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)
    from segmenter.base.files import write_whole

    files = [path for path in (given.json, given.report) if path not in (None, _STDOUT)]
    for path in files:  # before any work is done
        check_writable(path)
    if given.json and given.report and given.json.resolve() == given.report.resolve():
        raise SegmenterError(
            given.json, expected="two files for --json and --report", got="one name for both"
        )
    with stdout_for_json(given.json == _STDOUT) as answer:
        diagnosis = _diagnose(given)
        if given.json:
            facts = json.dumps(diagnosis.to_dict(), allow_nan=False)
            if given.json == _STDOUT:
                print(facts, file=answer, flush=True)
            else:
                write_whole(given.json, f"{facts}\n".encode())
        if given.report:
            from segmenter.diagnosis.report import html_report

            write_whole(given.report, html_report(diagnosis).encode())
        for path in files:
            say(plain(f"written: {path}"))
    return 0


def _diagnose(given: _Options) -> Diagnosis:
    from segmenter.diagnosis import diagnose, table
    from segmenter.extras.dask.spread import spread_over
    from segmenter.tiles.gsd import with_gsds
    from segmenter.tiles.index import build_index

    from .. import load_dataset

    recipe = given.read()
    batches = _batches(given.batch, recipe.training.global_batch)
    dataset = load_dataset(recipe)
    if not dataset.of(given.split):
        raise DatasetError(dataset.root, expected=f"scenes of the split {given.split}, there are none")
    for file, reason in dataset.unused:
        say(plain(f"left out: {file}: {reason}"))
    for note in dataset.notes:
        say(plain(note))
    with spread_over(given.cluster, dataset.root) as spread:
        built = build_index(dataset, given.split, recipe.tiles, spread=spread)
    diagnosis = diagnose(recipe, dataset, with_gsds(built, dataset, recipe), batches, given.run)
    say(table(diagnosis, everything=given.all))
    if not given.all:
        say("--all shows classes, other ways of sampling and what would help; --report draws it all")
    return diagnosis


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
            "--batch",
            expected=f"whole numbers of tiles in 1 … {_LARGEST_BATCH}, as in 16,32,64",
            got=f"{text!r}",
        )
    return sorted(sizes)


_CALLS = {
    "configs/mine.yaml": "classes in random and in planned batches",
    "configs/mine.yaml --all --report coverage.html": "all of it, also as a page",
    "configs/mine.yaml --batch 8,16,32": "for other batch sizes",
}


def _parser() -> ToolParser:
    return tool_parser("coverage", __doc__, _Options, calls=_CALLS)
