"""Measure the input of a training alone: make batches without training and without writing a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import run_tool
from segmenter.base.invocation import ToolParser, invocation, recipes_hint
from segmenter.base.options import positive


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the cost of a tile and the number of cards that the input can feed; return the exit code."""
    given = _parser().parse_args(arguments)

    from segmenter.config.reading import load_recipe
    from segmenter.extras.strategies import cards_expected
    from segmenter.raster import quiet_gdal
    from segmenter.tiles.feeding.processes import worker_processes
    from segmenter.training import prepare
    from segmenter.training.input_only import measure_input

    from .. import load_dataset

    recipe = load_recipe(given.recipe, given.set)
    quiet_gdal()
    dataset = load_dataset(recipe)
    tiles = prepare.prepare_tiles(recipe, dataset)
    limits = {"steps": given.steps, "minutes": given.minutes, "need": given.need}
    with worker_processes(recipe, *tiles.image_form, cards_expected(recipe.distribution)) as workers:
        print(measure_input(recipe, tiles, dataset.classes.names, workers, **limits))
    return 0


def _parser() -> ToolParser:
    parser = ToolParser(prog=invocation("input"), description=__doc__)
    parser.add_argument("recipe", type=Path, help=f"a YAML recipe; {recipes_hint()}")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in training.global_batch=32"
    )
    parser.add_argument(
        "--steps", type=positive(int), default=1000, metavar="N", help="to feed at most (default: 1000)"
    )
    parser.add_argument(
        "--minutes", type=positive(float), default=0.5, metavar="M", help="at most (default: 0.5)"
    )
    parser.add_argument(
        "--need",
        type=positive(float),
        metavar="TILES_PER_S",
        help="of one card (default: what an RTX 2080 Ti takes of the recipe's model at most)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(main))
