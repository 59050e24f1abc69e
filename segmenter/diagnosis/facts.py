"""Which classes do batches hold, now and with a plan, and what limits it: all facts of a recipe's coverage.

`diagnose` gives them as plain data, which JSON and the report take; `table` gives them in short, for people.
Imports no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from segmenter.coverage import ClassStatistics, Forecast, Outlook, class_statistics, forecast, holds
from segmenter.diagnosis.limits import REPLICAS, limit, planned
from segmenter.diagnosis.maps import class_maps
from segmenter.diagnosis.run import run_coverage
from segmenter.errors import DatasetError
from segmenter.index import TileIndex
from segmenter.sampler import deal, plan
from segmenter.scenes import Dataset
from segmenter.schema import Recipe

VERSION = 1
"""Of the layout of a diagnosis; it changes where an older reader would misread it."""
_CURVE_END = 256
_DEALT_ROWS = 512
"""Rows of an epoch that are dealt to replicas: their mean tells enough, all would take seconds."""
_SHARES = {"90": 0.9, "99": 0.99, "99.9": 0.999}

Data = dict[str, Any]
Bools = NDArray[np.bool_]


def diagnose(
    recipe: Recipe,
    dataset: Dataset,
    index: TileIndex,
    batches: Sequence[int],
    run: Path | None = None,
    *,
    progress: bool = True,
) -> Data:
    """All facts about the class coverage of one split, as plain data (numbers, text, lists, None).

    Args:
        index: the tiles of the split.
        batches: global batch sizes for which the plan is compared with a plain shuffle.
        run: a run directory, to set the coverage of its steps beside what was promised.
        progress: show bars on stderr.

    Returns:
        version, dataset, split, scenes, tiles, left_out, tile_px, overlap_px, min_pixels, global_batch: what
            was looked at, and the recipe's batch.
        classes: of each class id, name, colour, tiles that hold it, pixels, share of the pixels, scenes.
        tiles_by_classes, together: tiles that hold exactly so many classes; that hold both of two.
        maps, maps_left_out: where the classes lie; see `class_maps`.
        forecast: of random batches: a curve, the `batches`, and the sizes needed for 90, 99 and 99.9 %.
        plans: for each of `batches` the first epoch's plan beside a shuffle. `refused` says why there is
            none; then `plan` is None and its numbers are 0.
        limit: which class limits, why, and what would lift it.
        run: None, or what `run_coverage` tells.

    Raises:
        DatasetError: the split has no tiles.
        CheckpointError: `run` has no log of coverage, or another number of classes.
        RasterError: an image's header cannot be read.
    """
    if not len(index):
        raise DatasetError(f"{dataset.root}: expected tiles to tell the coverage of, the split has none")
    names = dataset.classes.names
    ran = None if run is None else run_coverage(run, names)  # refused before any work is done
    pixels = recipe.sampling.min_pixels
    statistics = class_statistics(index.counts_NK, index.scene_N, pixels)
    holds_NK = holds(index.counts_NK, pixels)
    outlook = forecast(holds_NK, seed=recipe.seed)
    maps, left_out = class_maps(index, progress=progress)
    return {
        "version": VERSION,
        "dataset": dataset.name,
        "split": index.scenes[0].split,
        "scenes": len(index.scenes),
        "tiles": len(index),
        "left_out": index.left_out,
        "tile_px": index.tile.height,
        "overlap_px": recipe.tiles.overlap,
        "min_pixels": pixels,
        "global_batch": recipe.training.global_batch,
        "classes": _classes(dataset, statistics),
        "tiles_by_classes": statistics.tiles_by_classes.tolist(),
        "together": statistics.together_KK.tolist(),
        "maps": maps,
        "maps_left_out": left_out,
        "forecast": _forecast(outlook, batches),
        "plans": [
            _compared(recipe, dataset, index, holds_NK, outlook.classes, batch)
            for batch in tqdm(batches, desc="plans", unit="plan", disable=not progress)
        ],
        "limit": limit(recipe, dataset, index, statistics),
        "run": ran,
    }


def _classes(dataset: Dataset, statistics: ClassStatistics) -> list[Data]:
    total = max(1, int(statistics.pixels_K.sum()))
    return [
        {
            "id": i,
            "name": one.name,
            "colour": "#{:02x}{:02x}{:02x}".format(*one.colour),
            "tiles": int(statistics.tiles_K[i]),
            "pixels": int(statistics.pixels_K[i]),
            "share": float(statistics.pixels_K[i] / total),
            "scenes": int(statistics.scenes_K[i]),
        }
        for i, one in enumerate(dataset.classes.classes)
    ]


# --------------------------------------------------------------------------------------- forecast


def _forecast(outlook: Forecast, batches: Sequence[int]) -> Data:
    sizes = [size for size in _curve_sizes() if size <= outlook.tiles]
    found = outlook.outlook([*sizes, *batches])
    return {
        "method": outlook.method,
        "classes": list(outlook.classes),
        "curve": [_item(one) for one in found[: len(sizes)]],
        "batches": [_item(one) for one in found[len(sizes) :]],
        "needed": {label: outlook.needed(share) for label, share in _SHARES.items()},
    }


def _curve_sizes() -> list[int]:
    """Every size at first, then some 6 % apart: what a curve shows."""
    sizes = [*range(1, 17)]
    while sizes[-1] < _CURVE_END:
        sizes.append(min(_CURVE_END, sizes[-1] + max(1, sizes[-1] // 16)))
    return sizes


def _item(one: Outlook) -> Data:
    return {
        "batch": one.batch,
        "probability": round(one.probability, 12),  # the sum's rounding is no probability
        "error": one.error,
        "expected_classes": one.expected_classes,
    }


# ------------------------------------------------------------------------- the plan and the shuffle


def _compared(
    recipe: Recipe, dataset: Dataset, index: TileIndex, holds_NK: Bools, occurring: Sequence[int], batch: int
) -> Data:
    """An item of `plans`: one epoch of the plan, and one of a shuffle."""
    off = recipe.sampling.model_copy(update={"coverage": "off"})
    shuffle = plan(index.counts_NK[:, :1], batch, off, recipe.seed, 0)  # it looks at no class
    item: Data = {"batch": batch, "refused": None, "replicas": REPLICAS}
    item["shuffle"] = _side(shuffle.rows_SB, holds_NK, occurring, dealt=False)
    try:
        result = planned(dataset, index, recipe, batch)
    except DatasetError as error:
        numbers = dict.fromkeys(("steps", "coverage_repeats", "repeats_bound", "fillers"), 0)
        return {**item, "refused": str(error), **numbers, "promised": [], "best_effort": [], "plan": None}
    dealt = recipe.sampling.per_replica == "best_effort"
    return {
        **item,
        "steps": result.steps,
        "coverage_repeats": result.coverage_repeats,
        "repeats_bound": result.repeats_bound,
        "fillers": result.fillers,
        "promised": list(result.promised),
        "best_effort": list(result.best_effort),
        "plan": _side(result.rows_SB, holds_NK, occurring, dealt=dealt),
    }


def _side(rows_SB: NDArray[np.int64], holds_NK: Bools, occurring: Sequence[int], *, dealt: bool) -> Data:
    """What the steps of an epoch hold; `dealt`: its rows are dealt to replicas, not only cut."""
    held_SK: Bools = np.asarray(holds_NK[rows_SB].any(axis=1))
    gaps = [_gaps(held_S) for held_S in held_SK.T]
    return {
        "complete_steps": float(held_SK[:, list(occurring)].all(axis=1).mean()),
        "classes_per_step": float(held_SK.sum(axis=1).mean()),
        "held_share": held_SK.mean(axis=0).tolist(),
        "mean_gap": [None if gap is None else float(gap.mean()) for gap in gaps],
        "longest_gap": [None if gap is None else int(gap.max()) for gap in gaps],
        "classes_per_replica": _per_replica(rows_SB, holds_NK, dealt=dealt),
    }


def _gaps(held_S: Bools) -> NDArray[np.int64] | None:
    """Steps from one sighting of a class to the next, 1 where it is in each step; None if never seen.

    The start and the end of the epoch count as sightings: a class that is seen once is not seen often.
    """
    seen = np.flatnonzero(held_S)
    return np.diff(seen, prepend=-1, append=len(held_S)) if len(seen) else None


def _per_replica(rows_SB: NDArray[np.int64], holds_NK: Bools, *, dealt: bool) -> float:
    """Mean number of classes in a replica's block of a row, over rows spread evenly over the epoch."""
    steps, batch = rows_SB.shape
    replicas = min(REPLICAS, batch)
    shares = [batch // replicas + (r < batch % replicas) for r in range(replicas)]
    some = rows_SB[np.unique(np.linspace(0, steps - 1, _DEALT_ROWS).astype(np.int64))]
    if dealt:
        some = np.stack([deal(row_B, shares, holds_NK[row_B]) for row_B in some])
    blocks = np.split(holds_NK[some], np.cumsum(shares)[:-1], axis=1)
    return float(np.mean([block.any(axis=1).sum(axis=1) for block in blocks]))
