"""Measure the input of a training alone: make batches without training and without writing a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from segmenter.base.invocation import ToolParser
from segmenter.base.options import option
from segmenter.config.recipe_options import RecipeOptions

from .frame import parse_quietly, tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options(RecipeOptions):
    steps: int = option(1000, "largest number of steps to make batches for (default: 1000)", "N", least=1)
    minutes: float = option(0.5, "time limit in minutes (default: 0.5)", "M", least=1e-9)
    need: float | None = option(
        None,
        "tiles a second that one card takes in training (default: the most that an RTX 2080 Ti takes of "
        "the recipe's model)",
        "TILES_PER_S",
        least=1e-9,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the cost of a tile and the number of cards that the input can feed; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)

    from segmenter.extras.input_cost import measure_input
    from segmenter.extras.strategies import cards_expected
    from segmenter.tiles.feeding.processes import worker_processes
    from segmenter.training import prepare

    from .. import load_dataset

    recipe = given.read()
    dataset = load_dataset(recipe)
    tiles = prepare.prepare_tiles(recipe, dataset)
    limits: dict[str, Any] = {"steps": given.steps, "minutes": given.minutes, "need": given.need}
    with worker_processes(recipe, *tiles.image_form, cards_expected(recipe.distribution)) as workers:
        print(measure_input(recipe, tiles, dataset.classes.names, workers, **limits))
    return 0


_CALLS = {
    "configs/mine.yaml": "cost of a tile, and number of GPUs that the input feeds",
    "configs/mine.yaml --need 400 --minutes 2": "for cards that train on 400 tiles a second",
}


def _parser() -> ToolParser:
    return tool_parser("input", __doc__, _Options, calls=_CALLS)
