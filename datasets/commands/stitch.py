"""Join the parts of a cut scene into one GeoTIFF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import plain
from segmenter.base.invocation import ToolParser
from segmenter.base.options import OverwriteOptions, option
from segmenter.base.terminal import say

from .frame import parsed_quietly, tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options(OverwriteOptions):
    pattern: str = option(
        ..., "parts, in quotes; row by row in order of names", "PATTERN", positional=True, path=True
    )
    columns: int = option(..., "parts in a row", "N", least=1)
    output: Path = option(..., "the GeoTIFF to write", "FILE.tif")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the scene; return the exit code."""
    given = parsed_quietly(_parser(), _Options, arguments)
    from ..stitch import find_parts, stitch

    parts = find_parts(given.pattern)
    with given.alone_at(given.output):
        size = stitch(parts, given.columns, given.output)
    say(f"{plain(str(given.output))}: {size} pixels from {len(parts)} parts")
    return 0


def _parser() -> ToolParser:
    return tool_parser("stitch", __doc__, _Options)
