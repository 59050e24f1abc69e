"""Draw a picture of augmented training tiles and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import plain
from segmenter.base.files import check_writable
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option
from segmenter.base.terminal import say
from segmenter.config.recipe_options import RecipeOptions

from .frame import parse_quietly, tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options(RecipeOptions):
    output: Path = option(..., "PNG picture to write", "FILE.png")
    tiles: int = option(4, "number of tiles to draw, each in a row (default: 4)", "N", least=1)
    draws: int = option(3, "number of random augmentations drawn of each tile (default: 3)", "N", least=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)
    from segmenter.diagnosis.augmented import draw_augmented

    from .. import load_dataset

    recipe = given.read()
    check_writable(given.output)
    dataset = load_dataset(recipe)
    draw_augmented(recipe, dataset, given.output, tiles=given.tiles, draws=given.draws)
    say(plain(f"written: {given.output}"))
    return 0


_CALLS = {
    "configs/mine.yaml --output tiles.png": "four tiles, each with three augmentations",
    "configs/mine.yaml --output tiles.png --tiles 8 --draws 5": "more tiles and more augmentations",
}


def _parser() -> ToolParser:
    return tool_parser("augmented", __doc__, _Options, calls=_CALLS)
