"""Completion of tools, options, choices and files in a shell, by a script on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from segmenter.base.invocation import COMMAND, ToolParser, needing
from segmenter.base.options import option, parse_options
from segmenter.base.terminal import stdout_for_json

from .frame import tool_parser
from .tools import TOOLS, module_of


@dataclass(frozen=True, kw_only=True)
class _Options:
    shell: Literal["bash", "zsh", "tcsh", "fish"] = option(
        ..., "shell to print the script for", positional=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script; return the exit code."""
    given = parse_options(_parser(), _Options, arguments)
    with needing("completion", "scripts of completion"):
        import shtab
    everything = ToolParser(prog=COMMAND)
    tools = everything.add_subparsers()
    for name, about in TOOLS.items():
        tools.add_parser(name, help=about, parents=[module_of(name)._parser()], add_help=False)
    with stdout_for_json(True) as answer:
        print(shtab.complete(everything, given.shell), file=answer)
    return 0


_CALLS = {
    "bash": "for bash: append it to ~/.bashrc, or source it there",
    "zsh": "for zsh",
}


def _parser() -> ToolParser:
    return tool_parser("completion", __doc__, _Options, calls=_CALLS)
