"""Installed command `segmenter TOOL …`; its tools connect the loaders and the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import EXIT_WRONG_CALL, run_tool

if TYPE_CHECKING:
    from segmenter.base.invocation import ToolParser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool named by the first argument; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_tool(lambda: _run(words))


def module_of(tool: str) -> Any:
    """Return the module of a tool, whose loaders have another name if installed."""
    from segmenter.base.invocation import TOOLS

    return import_module(TOOLS[tool].module.replace("datasets", __package__.split(".")[0], 1))


def _run(words: Sequence[str]) -> int:
    from segmenter.base.invocation import TOOLS

    if words and words[0] in TOOLS:
        program = module_of(words[0])
        return int(getattr(program, "run", program.main)(words[1:]))
    if not words:
        _parser().print_help(sys.stderr)
        return EXIT_WRONG_CALL
    _parser().parse_args(words)  # --help, --version, or what is wrong
    return 0


def _parser() -> ToolParser:
    from argparse import RawDescriptionHelpFormatter

    from segmenter.base.invocation import COMMAND, TOOLS, ToolParser
    from segmenter.base.version import __version__

    width = max(map(len, TOOLS))
    listed = "\n".join(f"  {name:{width}}  {tool.about}" for name, tool in TOOLS.items())
    parser = ToolParser(
        prog=COMMAND,
        usage=f"{COMMAND} TOOL … (its options: {COMMAND} TOOL --help)",
        description="Land-cover segmentation of remote-sensing imagery.",
        epilog=f"tools:\n{listed}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("tool", choices=TOOLS, metavar="TOOL", help="one of the tools below")
    parser.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
    return parser
