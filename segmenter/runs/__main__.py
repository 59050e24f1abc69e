"""Commands on run directories: the report of a training, and several runs compared."""

from __future__ import annotations

import argparse
import sys

from segmenter.errors import run_script
from segmenter.runs import compare
from segmenter.runs.report import command as report
from segmenter.terminal import enduring_output

COMMANDS = {"report": report, "compare": compare}
"""Name → module with `add_arguments(parser)` and `run(arguments)`, which gives the exit code."""


def main(arguments: list[str] | None = None) -> int:
    """The exit code of a command."""
    parser = argparse.ArgumentParser(prog="python -m segmenter.runs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        text = str(module.__doc__).splitlines()[0]
        module.add_arguments(commands.add_parser(name, help=text, description=text))
    parsed = parser.parse_args(arguments)
    return COMMANDS[parsed.command].run(parsed)


if __name__ == "__main__":
    with enduring_output():
        sys.exit(run_script(main))
