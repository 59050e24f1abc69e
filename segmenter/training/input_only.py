"""Measurement screen: cost of a training's input and the number of cards it can feed, without training."""

from __future__ import annotations

from collections.abc import Sequence

from segmenter.base.machine import usable_cores
from segmenter.base.terminal import aligned
from segmenter.config.recipe import Recipe
from segmenter.sampling import Plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.measure import (
    AUGMENTING,
    COPYING,
    KEEPING,
    READING,
    WAITING,
    Cost,
    cost_of_a_tile,
    rate_of,
)
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.feeding.sizes import processes, threads_for
from segmenter.training.prepare import Tiles, epoch_plan

_COST_SECONDS = 3.0
"""Processor time for the cost of a tile: some thousand tiles."""
_REACHED, _REACHED_HALF = 13.4e12 * 0.6, 53.8e12 * 0.4
"""FLOP/s of an RTX 2080 Ti's convolutions in float32 and by tensor cores, assumed: studies/four_gpus.md."""
_MEND = {
    READING: "a packed store, or tiled GeoTIFFs in blocks of about a tile, are read faster",
    WAITING: "the disk, or the network to it, gives no more: a copy on a local disk would",
    AUGMENTING: "fewer or cheaper changes of augmentation, or more workers on more cores",
    KEEPING: "draws that lose a promised class are made again: less jitter, rotation or zoom",
    COPYING: "smaller batches or fewer bands; more memory bandwidth",
}


def measure_input(
    recipe: Recipe,
    tiles: Tiles,
    names: Sequence[str],
    workers: WorkerPool | None,
    *,
    steps: int,
    minutes: float,
    need: float | None,
) -> str:
    """Return text on the input: cost of a tile by stage, tiles a second, number of cards that can be fed.

    Args:
        workers: worker processes that make the batches; None: threads of this process.
        steps, minutes: limits of the measurement, whichever comes first.
        need: tiles a second of one card; None: upper limit for an RTX 2080 Ti, from its convolutions.
    """
    form = tiles.image_form
    plan = epoch_plan(recipe, tiles.index, names, 0)
    cost = cost_of_a_tile(recipe, tiles.index, tiles.store, tiles.statistics, plan, _COST_SECONDS)
    loader = BatchLoader(recipe, tiles.index, tiles.store, tiles.statistics)
    with Feed(loader, recipe.training.global_batch, workers) as feed:
        warm = workers.slots if workers is not None else 2 * threads_for()
        rate, done = rate_of(feed, plan, steps, 60 * minutes, warm)
    why = ""
    if need is None:
        need, why = _need_of_a_card(recipe, form[0], len(names))
    lines = [_head(recipe, form, plan), "", *_stages(cost), "", _limit(cost)]
    who = f"{threads_for()} threads" if workers is None else processes(workers.workers)
    lines.append(f"fed: {rate:.0f} tiles/s by {who} on {usable_cores()} cores ({done} steps)")
    lines.append(f"needed: {need:,.0f} tiles/s a card{why}; this feeds {rate / need:.1f} cards")
    return "\n".join(lines)


def _head(recipe: Recipe, form: tuple[int, str], plan: Plan) -> str:
    side, (bands, dtype) = recipe.tiles.size, form
    return (
        f"input of {recipe.name}: {plan.steps} steps an epoch of {recipe.training.global_batch} tiles of "
        f"{side} × {side} × {bands} {dtype}"
    )


def _stages(cost: Cost) -> list[str]:
    rows = [
        (stage, f"{1000 * seconds:.2f}", f"{seconds / cost.total:.0%}")
        for stage, seconds in cost.stages.items()
    ]
    rows.append(("all", f"{1000 * cost.total:.2f}", "100%"))
    return aligned(("stage, in one thread", "ms a tile", "share"), rows, left=1)


def _limit(cost: Cost) -> str:
    return f"limit: {cost.limit} ({_MEND[cost.limit]})"


def _need_of_a_card(recipe: Recipe, bands: int, classes: int) -> tuple[float, str]:
    """Return an upper limit of a card's tiles a second, and the source of that number."""
    from segmenter.devices.setup import load_tensorflow
    from segmenter.model.building import build_model
    from segmenter.model.size import convolution_flops

    load_tensorflow()
    side, precision = recipe.tiles.size, recipe.training.precision
    flops = 3 * convolution_flops(build_model(recipe.model, bands, classes), side, side)
    reached = _REACHED if precision == "float32" else _REACHED_HALF
    why = (
        f" at most (RTX 2080 Ti, {precision}: {flops / 1e9:.3g} GFLOP of convolutions a tile at "
        f"{reached / 1e12:.1f} TFLOP/s, studies/four_gpus.md)"
    )
    return reached / flops, why
