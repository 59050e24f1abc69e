"""Commands on run directories: report, compare, list the scenes, describe, pack into one file, unpack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import CheckpointError
from segmenter.base.invocation import ToolParser
from segmenter.base.options import Command, option, parsed_command
from segmenter.runs import compare
from segmenter.runs.report.sections import REPORT, write_report
from segmenter.runs.run import load_run
from segmenter.runs.scenes import FILE as SCENES
from segmenter.runs.scenes import load_scenes, scene_table

from ..frame import tool_parser
from .sharing import COMMANDS as OF_SHARING


@dataclass(frozen=True, kw_only=True)
class _ReportOptions:
    run_dir: Path = option(..., "run directory to read", "RUN", positional=True)
    output: Path | None = option(None, f"report to write (default: {REPORT} in the run directory)", "FILE")
    maps: Path | None = option(
        None, "folder of maps made by this run, whose scores the report shows too", "DIR"
    )


def _report(given: _ReportOptions) -> int:
    print(write_report(given.run_dir, given.output, given.maps))
    return 0


@dataclass(frozen=True, kw_only=True)
class _CompareOptions:
    runs: tuple[Path, ...] = option(
        ...,
        "run directories to compare, two or more, or a folder of them",
        "RUN",
        positional=True,
        several=True,
    )


def _compare(given: _CompareOptions) -> int:
    print(compare.compare(given.runs))
    return 0


@dataclass(frozen=True, kw_only=True)
class _ScenesOptions:
    run_dir: Path = option(..., "run directory to read", "RUN", positional=True)
    json: bool = option(False, "print the record of each scene as JSON on stdout")


def _scenes(given: _ScenesOptions) -> int:
    known = load_scenes(load_run(given.run_dir).path)
    if known is None or not known.told:
        raise CheckpointError(
            given.run_dir,
            expected=f"the roles of its scenes in {SCENES}",
            got="none" if known is None else "a record of before, without roles",
            remedy="runs that start now have it",
        )
    if given.json:
        print(json.dumps({"run": str(given.run_dir), "scenes": list(known.rows())}, indent=1))
    else:
        print("\n".join(scene_table(known)))
    return 0


COMMANDS = {
    "report": Command("write the report of a training anew", _ReportOptions, _report),
    "compare": Command(
        "compare scores of runs, and the settings in which they differ", _CompareOptions, _compare
    ),
    "scenes": Command("list the role that each scene had in a training", _ScenesOptions, _scenes),
    **OF_SHARING,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    return parsed_command(_parser(), COMMANDS, arguments)()


_CALLS = {
    "report runs/mine": "write report.html anew",
    "compare runs/a runs/b": "scores of several runs, and settings that differ",
    "scenes runs/mine": "role of each scene in the training",
    "pack runs/mine --output mine.run.zip": "one file to hand over",
    "unpack mine.run.zip --output runs/theirs": "check and unpack such a file",
    "card runs/mine": "write a model card",
    "stac runs/mine": "write a STAC item",
}


def _parser() -> ToolParser:
    return tool_parser("runs", __doc__, commands=COMMANDS, calls=_CALLS)
