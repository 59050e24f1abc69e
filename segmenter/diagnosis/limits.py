"""Limits of coverage: the limiting class, and remedies: batch size, larger tiles, labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, counted
from segmenter.config.recipe import Recipe, SamplingConfig
from segmenter.diagnosis.data import Lever, Limit
from segmenter.grid.scenes import Dataset
from segmenter.sampling import Plan, on_devices, part_table, plan
from segmenter.sampling.forecast import ClassStatistics, holds, scene_pixels
from segmenter.tiles.index import TileIndex

REPLICAS = 4
"""Devices over which a row is assumed to be split: the intended server has four."""
_LEAST_PIXELS = 32
"""The lowest `min_pixels` that is proposed: fewer are for who knows that the objects are that small."""
_LARGEST_TILE = 4096
_PRACTICAL_BATCH = 1024
"""No set of cards that this program is for takes more tiles in one step."""
_WORTH_IT = 1.25
"""Ratio of a class's shares of larger and present tiles from which larger tiles are recommended."""
_NAMED_SCENES = 5


@dataclass(frozen=True)
class _Case:
    """The limiting class, with the facts for the texts."""

    recipe: Recipe
    dataset: Dataset
    index: TileIndex
    statistics: ClassStatistics
    id: int

    @property
    def name(self) -> str:
        return self.dataset.classes.names[self.id]

    @property
    def tiles(self) -> int:
        return len(self.index)

    @property
    def held(self) -> int:
        """Number of tiles that hold the class."""
        return int(self.statistics.tiles_K[self.id])

    @property
    def batch(self) -> int:
        return self.recipe.training.global_batch

    @property
    def blocks(self) -> int:
        """Number of parts of a step of which each holds the class."""
        return REPLICAS if self.recipe.sampling.planned_per_replica else 1

    @property
    def steps(self) -> int:
        """Number of steps of an epoch without repeats."""
        return -(-self.tiles // self.batch)


def _least_batch(tiles: int, held: int, blocks: int, repeats: int = 0) -> int | None:
    """Return the least batch of which each block holds a class of so many tiles; None: none does.

    Args:
        repeats: times that a tile may be shown again in an epoch.
    """
    steps = held * (1 + repeats) // blocks
    return _four(-(-(tiles + max(0, steps * blocks - held)) // steps)) if steps else None


def plan_first_epoch(dataset: Dataset, index: TileIndex, recipe: Recipe, batch: int) -> Plan:
    """Return the plan of the first epoch at a batch size; a relaxed one if the recipe plans nothing.

    Raises:
        DatasetError: the recipe's rules refuse it.
    """
    recipe = recipe if recipe.sampling.plans_classes else _relax_coverage(recipe)
    names = dataset.classes.names
    return plan(
        part_table(index.counts_NK, index.strata, names),
        batch,
        recipe.sampling,
        recipe.seed,
        0,
        replicas=REPLICAS,
    )


def limit(recipe: Recipe, dataset: Dataset, index: TileIndex, statistics: ClassStatistics) -> Limit:
    """Return the class held by the fewest tiles, the reason, and remedies.

    A class with pixels that no tile holds has priority.
    """
    absent = [name for name, n in zip(dataset.classes.names, statistics.pixels_K, strict=True) if n == 0]
    nowhere = [Lever("label", _no_pixel(absent))] if absent else []
    seen = np.flatnonzero(statistics.pixels_K > 0)
    if not len(seen):
        return Limit(None, "no tile shows a pixel of any class", nowhere)
    rarest = min(seen, key=lambda c: (statistics.tiles_K[c], statistics.pixels_K[c]))
    case = _Case(_of_presence(recipe), dataset, index, statistics, int(rarest))
    texts = [
        ("batch", _batch(case)),
        ("min_pixels", _min_pixels(case)),
        ("tile_size", _tile_size(case)),
        ("label", _label(case)),
    ]
    levers = [Lever(lever, text) for lever, text in texts if text]
    apart = (
        " This is without the recipe's quotas, which repeat more." if recipe.sampling.plans_amounts else ""
    )
    return Limit(case.id, _why(case) + apart, levers + nowhere)


def _no_pixel(names: list[str]) -> str:
    verb, them = ("has", "it") if len(names) == 1 else ("have", "them")
    return (
        f"{', '.join(names)} {verb} no labelled pixel in these tiles, so nothing can be promised for {them}: "
        f"label scenes that show {them}."
    )


# --------------------------------------------------------------------------------------------- why


def _why(case: _Case) -> str:
    name, pixels = case.name, case.recipe.sampling.min_pixels
    if case.held == 0:
        scenes = counted(int(case.statistics.scenes_K[case.id]), "scene")
        total = counted(int(case.statistics.pixels_K[case.id]), "pixel")
        return f"{name} has {total} in {scenes}, but no tile shows {pixels} of them: no batch holds it."
    share = case.held / case.tiles
    text = f"{name} is held by the fewest tiles: {case.held} of {case.tiles} ({share:.2%}). "
    return text + _at_the_recipes_batch(case)


def _at_the_recipes_batch(case: _Case) -> str:
    at = f"At the recipe's global batch of {case.batch} an epoch has"
    try:
        result = plan_first_epoch(case.dataset, case.index, case.recipe, case.batch)
    except DatasetError as error:
        return f"At the recipe's global batch of {case.batch} no epoch is planned: {error}."
    steps = counted(result.steps, "step") + on_devices(result.blocks)
    if case.id in result.best_effort:
        most = 1 + case.recipe.sampling.max_repeats_per_tile
        times = "once" if most == 1 else f"{most} times"
        return f"{at} {steps}: more than these tiles serve when shown {times} each, so it is best effort."
    repeats = result.steps * result.blocks - case.held
    if repeats > 0:
        return f"{at} {steps}, so tiles that hold it are repeated {counted(repeats, 'time')} at least."
    text = f"{at} {steps}, no more than tiles that hold it: it forces no repeats."
    if result.coverage_repeats:
        text += (
            f" How the classes fall together costs {counted(result.coverage_repeats, 'repeat')} all the same."
        )
    return text


# ------------------------------------------------------------------------------------------ levers


def _batch(case: _Case) -> str:
    """Return text on the batch size at which an epoch's steps do not outnumber the class's tiles."""
    if case.held == 0:
        return ""
    need = _least_batch(case.tiles, case.held, case.blocks)
    if need is None:
        return (
            f"No batch size does without repeats: {REPLICAS} devices need a tile with {case.name} in each "
            f"step.{_promise_text(case)}"
        )
    if need <= case.batch:
        return (
            f"The recipe's {case.batch} is enough: from a global batch of {need} on, {case.name} forces no "
            "repeats."
        )
    steps = -(-case.tiles // need)
    text = (
        f"From a global batch of {need} on (the recipe has {case.batch}) an epoch has no more steps "
        f"({steps}{on_devices(case.blocks)}) than tiles with {case.name} ({case.held}), and it forces no "
        "repeats"
    )
    text += _rest_of_the_plan(case, need)
    if need > _PRACTICAL_BATCH:
        text += " That is no practical batch: more tiles that hold it are needed."
    return text + _promise_text(case)


def _four(number: int) -> int:
    """Round up to a multiple of four, so that four replicas have equal shares."""
    return -(-number // 4) * 4


def _rest_of_the_plan(case: _Case, batch: int) -> str:
    relaxed = _relax_coverage(case.recipe)
    try:
        repeats = plan_first_epoch(case.dataset, case.index, relaxed, batch).coverage_repeats
    except DatasetError:
        return "."
    if repeats == 0:
        return "; the plan at that size repeats nothing."
    return f"; how the classes fall together costs {counted(repeats, 'repeat')} all the same."


def _promise_text(case: _Case) -> str:
    """Return text on the batch size from which a best-effort class is promised, with repeats."""
    relaxed = _relax_coverage(case.recipe)
    repeats = case.recipe.sampling.max_repeats_per_tile
    enough = _least_batch(case.tiles, case.held, case.blocks, repeats)
    if enough is None:
        return ""
    try:
        now = plan_first_epoch(case.dataset, case.index, relaxed, case.batch)
        then = plan_first_epoch(case.dataset, case.index, relaxed, enough)
    except DatasetError:
        return ""
    if case.id in now.best_effort and case.id in then.promised:
        return f" From {enough} on it is promised{', with repeats' if repeats else ''}."
    return ""


def _of_presence(recipe: Recipe) -> Recipe:
    """Return the recipe without amounts of tiles: they repeat tiles that no limit forces."""
    sampling: SamplingConfig = recipe.sampling.model_copy(update={"quota": "presence", "quotas": {}})
    return recipe.model_copy(update={"sampling": sampling})


def _relax_coverage(recipe: Recipe) -> Recipe:
    sampling: SamplingConfig = recipe.sampling.model_copy(update={"method": "plan", "coverage": "relaxed"})
    return recipe.model_copy(update={"sampling": sampling})


def _min_pixels(case: _Case) -> str:
    """Return text on the effect of the lowest `min_pixels`; empty if the recipe has it."""
    pixels = case.recipe.sampling.min_pixels
    would = int(holds(case.index.counts_NK[:, case.id], _LEAST_PIXELS).sum())
    if would <= case.held:
        return ""
    return (
        f"With sampling.min_pixels: {_LEAST_PIXELS} instead of {pixels}, {counted(would, 'tile')} would hold "
        f"{case.name} instead of {case.held}; lower it no further, a few pixels teach little."
    )


def _tile_size(case: _Case) -> str:
    """Return text on tiles of twice the side, joined from neighbours; empty if not needed."""
    if case.held >= case.steps * case.blocks:
        return ""
    side = case.index.tile.height
    joined_NK = _count_blocks(case.index)
    larger = len(joined_NK)
    if 2 * side > _LARGEST_TILE or larger > 0.6 * case.tiles:  # most scenes are hardly larger than a tile
        return ""
    held = int(holds(joined_NK[:, case.id], case.recipe.sampling.min_pixels).sum())
    if held == 0 or held * case.tiles < _WORTH_IT * case.held * larger:
        return ""
    enough = _least_batch(larger, held, case.blocks)
    return (
        f"Tiles of {2 * side} px instead of {side} would hold {case.name} in about {held / larger:.1%} of "
        f"them instead of {case.held / case.tiles:.1%}"
        + (f", enough for every step from a global batch of {enough} on" if enough else "")
        + "; a tile then takes four times the memory."
    )


def _count_blocks(index: TileIndex) -> NDArray[np.int64]:
    """Return (blocks, classes): class counts of blocks of 2×2 neighbouring tiles.

    For overlapping tiles, the largest of the four counts: a sum would count pixels twice.
    """
    key = np.stack(
        [index.scene_N, index.row_N // (2 * index.tile.height), index.col_N // (2 * index.tile.width)]
    )
    _, block_N = np.unique(key, axis=1, return_inverse=True)
    joined = np.zeros((int(block_N.max()) + 1, index.counts_NK.shape[1]), np.int64)
    overlap = bool((index.row_N % index.tile.height).any() or (index.col_N % index.tile.width).any())
    (np.maximum if overlap else np.add).at(joined, block_N.reshape(-1), index.counts_NK)
    return joined


def _label(case: _Case) -> str:
    """Return text on the scene with most of the class, and the number of missing tiles."""
    index, c = case.index, case.id
    here_N = holds(index.counts_NK[:, c], case.recipe.sampling.min_pixels)
    tiles_S = np.bincount(index.scene_N[here_N], minlength=len(index.scenes))
    pixels_SK = scene_pixels(index.counts_NK, index.scene_N, len(index.scenes))
    share_S = pixels_SK[:, c] / np.maximum(pixels_SK.sum(axis=1), 1)
    most = [int(s) for s in np.lexsort((-share_S, -tiles_S))[:_NAMED_SCENES] if pixels_SK[s, c] > 0]
    named = ", ".join(
        f"{index.scenes[s].name} ({counted(int(tiles_S[s]), 'tile')}, {share_S[s]:.2%} of its pixels)"
        for s in most
    )
    scenes = int(case.statistics.scenes_K[c])
    total = len(np.unique(index.scene_N))
    text = f"{case.name} is in {scenes} of {total} scenes, most of all in {named}: label more of their kind."
    spare = case.batch - case.blocks
    steps = -(-(case.tiles - case.held) // spare) if spare > 0 else 0  # of an epoch with those, too
    missing = steps * case.blocks - case.held
    if missing > 0:
        text += (
            f" {counted(missing, 'more tile')} with it would do at the recipe's global batch of {case.batch}."
        )
    return text
