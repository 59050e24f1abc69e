"""Facts of a recipe's coverage: classes in random and planned batches, and the limiting class.

`diagnose` returns them as a `Diagnosis` for JSON and the report; `table` prints them briefly. Does not import
TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError
from segmenter.config.recipe import Recipe
from segmenter.config.sampling import Method
from segmenter.diagnosis.data import (
    VERSION,
    ClassFacts,
    Diagnosis,
    ForecastFacts,
    GsdFacts,
    PlanFacts,
    QuotaFacts,
    SamplingFacts,
    Side,
)
from segmenter.diagnosis.limits import REPLICAS, limit, plan_first_epoch
from segmenter.diagnosis.scene_maps import class_maps
from segmenter.grid.gsd import OCTAVES, scene_strata
from segmenter.grid.scenes import Dataset
from segmenter.runs.log import run_coverage
from segmenter.sampling import (
    TileStrata,
    held_by_rows,
    mean_uses,
    order_for_replicas,
    part_table,
    part_title,
    plan,
)
from segmenter.sampling.forecast import ClassStatistics, Forecast, Outlook, class_statistics, forecast, holds
from segmenter.sampling.quotas import check_quotas
from segmenter.tiles.gsd import scene_gsds
from segmenter.tiles.index import TileIndex

USUAL_BATCHES = (16, 32, 64, 128)
"""Batch sizes to compare, besides the recipe's own."""
_LIFTS = (1.0, 2.0, 3.0, 5.0)
"""Values of `sampling.lift` to compare, besides the recipe's own."""
_CURVE_END = 256
_REPLICA_ROWS = 512
"""Rows of an epoch that are split over replicas: their mean is enough, all would take seconds."""
_SHARES = {"90": 0.9, "99": 0.99, "99.9": 0.999}

Bools = NDArray[np.bool_]


def diagnose(
    recipe: Recipe,
    dataset: Dataset,
    index: TileIndex,
    batches: Sequence[int],
    run: Path | None = None,
    *,
    progress: bool = True,
) -> Diagnosis:
    """Return all facts on the class coverage of one split.

    Args:
        batches: global batch sizes for which the plan is compared with a plain shuffle.
        run: a run directory, whose coverage is compared with the promises.

    Raises:
        DatasetError: the split has no tiles; the recipe's quotas are of other classes, or beyond the batch.
        CheckpointError: `run` has no log of coverage, or another number of classes.
        RasterError: an image's header cannot be read.
    """
    if not len(index):
        raise DatasetError(dataset.root, expected="tiles to tell the coverage of, the split has none")
    names = dataset.classes.names
    check_quotas(recipe.sampling, names, recipe.training.global_batch)
    ran = None if run is None else run_coverage(run, names)  # refused before any work is done
    pixels = recipe.sampling.min_pixels
    statistics = class_statistics(index.counts_NK, index.scene_N, pixels)
    holds_NK = holds(index.counts_NK, pixels)
    outlook = forecast(holds_NK, seed=recipe.seed)
    maps, left_out = class_maps(index, progress=progress)
    limits = limit(recipe, dataset, index, statistics)
    return Diagnosis(
        version=VERSION,
        dataset=dataset.name,
        split=index.scenes[0].split,
        scenes=len(index.scenes),
        tiles=len(index),
        left_out=index.left_out,
        tile_px=index.tile.height,
        overlap_px=recipe.tiles.overlap,
        min_pixels=pixels,
        global_batch=recipe.training.global_batch,
        classes=_classes(dataset, statistics),
        tiles_by_classes=statistics.tiles_by_classes.tolist(),
        together=statistics.together_KK.tolist(),
        maps=maps,
        maps_left_out=left_out,
        forecast=_forecast(outlook, batches),
        plans=[
            _compare_epochs(recipe, dataset, index, holds_NK, outlook.classes, batch)
            for batch in Bar(batches, desc="plans", unit="plan", shown=progress)
        ],
        limit=limits,
        run=ran,
        scales=class_gsds(recipe, dataset, index, batches, progress=progress),
        samplings=samplings(recipe, dataset, index, batches, limits.class_id),
        quotas=_quotas(recipe, dataset, index, holds_NK),
    )


def _classes(dataset: Dataset, statistics: ClassStatistics) -> list[ClassFacts]:
    total = max(1, int(statistics.pixels_K.sum()))
    return [
        ClassFacts(
            id=i,
            name=one.name,
            colour="#{:02x}{:02x}{:02x}".format(*one.colour),
            tiles=int(statistics.tiles_K[i]),
            pixels=int(statistics.pixels_K[i]),
            share=float(statistics.pixels_K[i] / total),
            scenes=int(statistics.scenes_K[i]),
        )
        for i, one in enumerate(dataset.classes.classes)
    ]


# --------------------------------------------------------------------------------------- forecast


def _forecast(outlook: Forecast, batches: Sequence[int]) -> ForecastFacts:
    sizes = [size for size in _curve_sizes() if size <= outlook.tiles]
    outlooks = [without_rounding(one) for one in outlook.outlook([*sizes, *batches])]
    return ForecastFacts(
        method=outlook.method,
        classes=list(outlook.classes),
        curve=outlooks[: len(sizes)],
        batches=outlooks[len(sizes) :],
        needed={label: outlook.batch_for(share) for label, share in _SHARES.items()},
    )


def _curve_sizes() -> list[int]:
    """Return the batch sizes of the curve: every size at first, then about 6 % apart."""
    sizes = [*range(1, 17)]
    while sizes[-1] < _CURVE_END:
        sizes.append(min(_CURVE_END, sizes[-1] + max(1, sizes[-1] // 16)))
    return sizes


# ------------------------------------------------------------------------- the plan and the shuffle


def _compare_epochs(
    recipe: Recipe, dataset: Dataset, index: TileIndex, holds_NK: Bools, occurring: Sequence[int], batch: int
) -> PlanFacts:
    """Return a comparison of one epoch of the plan with one epoch of a shuffle."""
    off = recipe.sampling.model_copy(update={"method": "shuffle"})
    shuffle = plan(index.counts_NK[:, :1], batch, off, recipe.seed, 0)  # it looks at no class
    beside = _side(shuffle.rows_SB, holds_NK, occurring, ordered=False)
    try:
        result = plan_first_epoch(dataset, index, recipe, batch)
    except DatasetError as error:
        return PlanFacts(batch, str(error), REPLICAS, beside)
    ordered = recipe.sampling.per_replica == "best_effort"
    return PlanFacts(
        batch=batch,
        refused=None,
        replicas=REPLICAS,
        shuffle=beside,
        steps=result.steps,
        coverage_repeats=result.coverage_repeats,
        repeats_bound=result.repeats_bound,
        fillers=result.fillers,
        promised=list(result.promised),
        best_effort=list(result.best_effort),
        rare_at_scale=[part_title(part, dataset.classes.names, index.strata) for part in result.rare_parts],
        plan=_side(result.rows_SB, holds_NK, occurring, ordered=ordered),
    )


def _side(rows_SB: NDArray[np.int64], holds_NK: Bools, occurring: Sequence[int], *, ordered: bool) -> Side:
    """Return an epoch's coverage; `ordered`: its rows are ordered for replicas, not just split."""
    held_SK: Bools = np.asarray(holds_NK[rows_SB].any(axis=1))
    gaps = [_gaps(held_S) for held_S in held_SK.T]
    return Side(
        complete_steps=float(held_SK[:, list(occurring)].all(axis=1).mean()),
        classes_per_step=float(held_SK.sum(axis=1).mean()),
        held_share=held_SK.mean(axis=0).tolist(),
        mean_gap=[None if gap is None else float(gap.mean()) for gap in gaps],
        longest_gap=[None if gap is None else int(gap.max()) for gap in gaps],
        classes_per_replica=_per_replica(rows_SB, holds_NK, ordered=ordered),
    )


def _gaps(held_S: Bools) -> NDArray[np.int64] | None:
    """Return steps between occurrences of a class, 1 if it is in each step; None if it never occurs.

    Start and end of the epoch count as occurrences, so a class that occurs once has large gaps.
    """
    seen = np.flatnonzero(held_S)
    return np.diff(seen, prepend=-1, append=len(held_S)) if len(seen) else None


def _per_replica(rows_SB: NDArray[np.int64], holds_NK: Bools, *, ordered: bool) -> float:
    """Return the mean number of classes in a replica's block of a row, over evenly chosen rows."""
    steps, batch = rows_SB.shape
    replicas = min(REPLICAS, batch)
    shares = [batch // replicas + (r < batch % replicas) for r in range(replicas)]
    some = rows_SB[np.unique(np.linspace(0, steps - 1, _REPLICA_ROWS).astype(np.int64))]
    if ordered:
        some = np.stack([order_for_replicas(row_B, shares, holds_NK[row_B]) for row_B in some])
    blocks = np.split(holds_NK[some], np.cumsum(shares)[:-1], axis=1)
    return float(np.mean([block.any(axis=1).sum(axis=1) for block in blocks]))


# ------------------------------------------------------------------------------- strata of the scenes' scale


_PROBED = 32
"""Scenes whose headers are read to find out if any scale is known: a header takes a millisecond."""


def class_gsds(
    recipe: Recipe, dataset: Dataset, index: TileIndex, batches: Sequence[int], *, progress: bool = True
) -> GsdFacts | None:
    """Count tiles and pixels of each class by stratum; None if there is one stratum or none is known.

    The strata are the recipe's, else octaves.

    Raises:
        RasterError: an image's header cannot be read.
    """
    step = -(-len(index.scenes) // _PROBED)
    if not any(scene_gsds(dataset, index.scenes[::step], progress=False)):
        return None
    boundaries = recipe.sampling.scale_strata
    strata = scene_strata(scene_gsds(dataset, index.scenes, progress=progress), boundaries or OCTAVES)
    if not strata.differ:
        return None
    holds_NK = holds(index.counts_NK, recipe.sampling.min_pixels)
    number_N = strata.number_S[index.scene_N]
    parts = part_table(index.counts_NK, TileStrata(number_N, strata.titles), None)
    outlook = forecast(holds(parts.counts_NP, recipe.sampling.min_pixels), seed=recipe.seed)
    members = [number_N == t for t in range(len(strata.titles))]
    return GsdFacts(
        planned=bool(boundaries),
        strata=list(strata.titles),
        scenes=np.bincount(strata.number_S, minlength=len(strata.titles)).tolist(),
        tiles=[int(member_N.sum()) for member_N in members],
        held=[holds_NK[member_N].sum(axis=0).tolist() for member_N in members],
        pixels=[index.counts_NK[member_N].sum(axis=0).tolist() for member_N in members],
        columns=len(outlook.classes),
        random=[without_rounding(one) for one in outlook.outlook(list(batches))],
    )


def without_rounding(one: Outlook) -> Outlook:
    """Return the outlook with the rounding error of its probability removed."""
    return replace(one, probability=round(one.probability, 12))


# --------------------------------------------------------------------------------------- methods of sampling


def samplings(
    recipe: Recipe, dataset: Dataset, index: TileIndex, batches: Sequence[int], limiting: int | None
) -> list[SamplingFacts]:
    """Return the first epoch of each sampling method, by the recipe's settings, at each batch size.

    Args:
        limiting: id of the class that limits coverage, if any.
    """
    return [
        _one(recipe, dataset, index, batch, method, limiting)
        for batch in batches
        for method in get_args(Method)
    ]


def _one(
    recipe: Recipe, dataset: Dataset, index: TileIndex, batch: int, method: Method, limiting: int | None
) -> SamplingFacts:
    rules, names = recipe.sampling, dataset.classes.names
    if method != "plan" or not rules.plans_classes:
        rules = rules.model_copy(update={"method": method, "coverage": "relaxed"})
    try:
        epoch = plan(
            part_table(index.counts_NK, index.strata, names), batch, rules, recipe.seed, 0, replicas=REPLICAS
        )
    except DatasetError as error:
        return SamplingFacts(batch, method, str(error))
    rows_SB = epoch.rows_SB
    held_SK = held_by_rows(rows_SB, index.counts_NK, rules.min_pixels)
    occurring_K = (index.counts_NK >= rules.min_pixels).any(axis=0)
    uses_N = np.bincount(rows_SB.reshape(-1), minlength=len(index))
    return SamplingFacts(
        batch=batch,
        method=method,
        steps=len(rows_SB),
        complete_steps=float(held_SK[:, occurring_K].all(axis=1).mean()),
        limiting_steps=None if limiting is None else float(held_SK[:, limiting].mean()),
        tiles_seen=float((uses_N > 0).mean()),
        most_uses=int(uses_N.max()),
    )


# -------------------------------------------------------------------------------------------- quotas


def _quotas(recipe: Recipe, dataset: Dataset, index: TileIndex, holds_NK: Bools) -> list[QuotaFacts]:
    """Return what amounts of tiles cost by presence and at each lift; nothing if the batch has no plan.

    What the recipe asks for by hand holds in all.
    """
    facts: list[QuotaFacts] = []
    own = recipe.sampling.lift if recipe.sampling.quota == "rarity" else _LIFTS[0]
    for lift in (None, *sorted({*_LIFTS, own})):
        amounts = {"quota": "presence"} if lift is None else {"quota": "rarity", "lift": lift}
        rules = recipe.sampling.model_copy(update={"method": "plan", "coverage": "relaxed", **amounts})
        changed = recipe.model_copy(update={"sampling": rules})
        try:
            result = plan_first_epoch(dataset, index, changed, recipe.training.global_batch)
        except DatasetError:
            return []
        tiles = [result.mean_tiles.get(c, 0.0) for c in range(len(dataset.classes))]
        uses = [float(uses) or None for uses in mean_uses(result.rows_SB, holds_NK)]
        facts.append(QuotaFacts(lift, result.steps, result.coverage_repeats, tiles, uses))
    return facts
