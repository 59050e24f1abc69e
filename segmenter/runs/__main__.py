"""Commands on run directories: show, compare, describe, pack into one file, unpack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import run_tool
from segmenter.base.invocation import ToolParser, as_started, invocation
from segmenter.base.terminal import enduring_output
from segmenter.extras.sharing.commands import card, pack, stac, unpack
from segmenter.runs import compare
from segmenter.runs.report import command as report

COMMANDS: dict[str, Any] = {
    "report": report,
    "compare": compare,
    "pack": pack,
    "unpack": unpack,
    "card": card,
    "stac": stac,
}
"""Name → module with `HELP`, `add_arguments(parser)` and `run(args)`, which gives the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    args = _parser().parse_args(arguments)
    return int(args.run(args))


def _parser() -> ToolParser:
    parser = ToolParser(prog=invocation("runs"), description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=as_started(module.__doc__))
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    with enduring_output():
        sys.exit(run_tool(main))
