"""Decode all training scenes once, for the fastest reading; training then uses the packs."""

from __future__ import annotations

from collections.abc import Sequence

from segmenter.base.errors import plain
from segmenter.base.invocation import ToolParser
from segmenter.base.terminal import say

from .frame import parse_quietly, tool_parser
from .options import ClusterRecipeOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the packs; return the exit code."""
    given = parse_quietly(_parser(), ClusterRecipeOptions, arguments)
    from segmenter.extras.dask.spread import spread_over

    from .. import load_dataset
    from ..pack import pack_dataset

    dataset = load_dataset(given.read())
    with spread_over(given.cluster, dataset.root) as spread:
        for line in pack_dataset(dataset, spread=spread):
            say(plain(line))
    return 0


_CALLS = {
    "configs/mine.yaml": "decode all training scenes into the cache",
    "configs/mine.yaml --workers 4": "in four processes (Dask)",
}


def _parser() -> ToolParser:
    return tool_parser("pack", __doc__, ClusterRecipeOptions, calls=_CALLS)
