"""Join the parts of a cut scene into one GeoTIFF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import plain
from segmenter.base.invocation import ToolParser
from segmenter.base.options import OverwriteOptions, option
from segmenter.base.terminal import say

from .frame import parse_quietly, tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options(OverwriteOptions):
    pattern: str = option(
        ...,
        "glob pattern of the parts, in quotes; sorted by name they fill the scene row by row",
        "PATTERN",
        positional=True,
        path=True,
    )
    columns: int = option(..., "number of parts in a row of the scene", "N", least=1)
    output: Path = option(..., "GeoTIFF to write", "FILE.tif")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the scene; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)
    from ..stitch import find_parts, stitch

    parts = find_parts(given.pattern)
    with given.exclusive_outputs(given.output):
        size = stitch(parts, given.columns, given.output)
    say(f"{plain(str(given.output))}: {size} pixels from {len(parts)} parts")
    return 0


_CALLS = {
    "'tile_7/images/*.jpg' --columns 3 --output tile_7.tif": "parts in rows of three, sorted by name",
    "'parts/*.tif' --columns 8 --output scene.tif --overwrite": "replace an earlier result",
}


def _parser() -> ToolParser:
    return tool_parser("stitch", __doc__, _Options, calls=_CALLS)
