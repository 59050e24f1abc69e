"""Commands on run directories: report, compare, describe, pack into one file, unpack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import run_tool
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.options import Command, add_commands, option, parsed_command
from segmenter.extras.sharing.commands import COMMANDS as OF_SHARING
from segmenter.runs import compare
from segmenter.runs.report.sections import REPORT, write_report


@dataclass(frozen=True, kw_only=True)
class _ReportOptions:
    run_dir: Path = option(..., "run directory", "RUN", positional=True)
    output: Path | None = option(None, f"to write (default: {REPORT} in the run)", "FILE")
    maps: Path | None = option(None, "its maps, whose scores it shows", "DIR")


def _report(given: _ReportOptions) -> int:
    print(write_report(given.run_dir, given.output, given.maps))
    return 0


@dataclass(frozen=True, kw_only=True)
class _CompareOptions:
    runs: tuple[Path, ...] = option(
        ..., "two run directories or more, or a folder of them", "RUN", positional=True, several=True
    )


def _compare(given: _CompareOptions) -> int:
    print(compare.compare(given.runs))
    return 0


COMMANDS = {
    "report": Command("write the report of a training anew", _ReportOptions, _report),
    "compare": Command("what runs reached, and in which settings they differ", _CompareOptions, _compare),
    **OF_SHARING,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    return parsed_command(_parser(), COMMANDS, arguments)()


def _parser() -> ToolParser:
    return add_commands(ToolParser(prog=invocation("runs"), description=__doc__), COMMANDS)


if __name__ == "__main__":
    sys.exit(run_tool(main))
