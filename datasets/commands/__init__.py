"""Installed command `segmenter TOOL …`; its tools connect the loaders and the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from segmenter.base.errors import EXIT_WRONG_CALL, run_tool

from .tools import TOOLS, module_of, with_new_name

if TYPE_CHECKING:
    from segmenter.base.invocation import ToolParser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool named by the first argument; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_tool(lambda: call(words))


def call(words: Sequence[str]) -> int:
    """Run the tool named by the first word as Python users do: its errors are raised.

    Raises:
        SegmenterError: the tool refuses or fails.
    """
    words = with_new_name(list(words))
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

    from segmenter.base.invocation import COMMAND, ToolParser
    from segmenter.base.version import __version__

    width = max(map(len, TOOLS))
    listed = "\n".join(f"  {name:{width}}  {about}" for name, about in TOOLS.items())
    parser = ToolParser(
        prog=COMMAND,
        usage=f"{COMMAND} TOOL … (its options: {COMMAND} TOOL --help)",
        description="Land-cover segmentation of remote-sensing imagery.",
        epilog=f"tools:\n{listed}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.calls = {
        "start data/mine": "plan a recipe for your images and labels",
        "train mine.yaml": "train a model, into runs/mine",
        "predict runs/mine scenes/ --output maps/": "map images with it",
    }
    parser.add_argument("tool", choices=TOOLS, metavar="TOOL", help="one of the tools below")
    parser.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
    return parser
