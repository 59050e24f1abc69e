"""Commands on run directories: show, compare, describe, pack into one file, unpack."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import run_tool
from segmenter.base.invocation import ToolParser, as_started, invocation
from segmenter.extras.sharing.commands import COMMANDS as OF_SHARING
from segmenter.runs import compare
from segmenter.runs.report.sections import REPORT, write_report


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"to write (default: {REPORT} in the run)"
    )
    parser.add_argument(
        "--maps",
        type=Path,
        metavar="DIR",
        help="its maps, whose scores it shows",
    )


def _report(args: argparse.Namespace) -> int:
    print(write_report(args.run_dir, args.output, args.maps))
    return 0


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="two run directories or more, or a folder of them"
    )


def _compare(args: argparse.Namespace) -> int:
    print(compare.compare(args.runs))
    return 0


COMMANDS = {
    "report": ("write the report of a training anew", _add_report, _report),
    "compare": ("what runs reached, and in which settings they differ", _add_compare, _compare),
    **OF_SHARING,
}
"""Name → what it is for, what adds its options, and what runs it and gives the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    args = _parser().parse_args(arguments)
    return int(args.run(args))


def _parser() -> ToolParser:
    parser = ToolParser(prog=invocation("runs"), description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, add_arguments, run) in COMMANDS.items():
        said = as_started(f"`python -m segmenter.runs {name} …`: {about}")
        command = commands.add_parser(name, help=about, description=said)
        add_arguments(command)
        command.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(main))
