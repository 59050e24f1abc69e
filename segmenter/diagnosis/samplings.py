"""Sampling methods beside each other: what share of the steps would hold all classes under each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from segmenter.base.errors import DatasetError
from segmenter.config.recipe import Recipe
from segmenter.config.sampling import Method
from segmenter.diagnosis.data import SamplingFacts
from segmenter.diagnosis.limits import REPLICAS
from segmenter.grid.scenes import Dataset
from segmenter.sampling import held_by_rows, plan
from segmenter.tiles.index import TileIndex

__all__ = ["samplings"]


def samplings(
    recipe: Recipe, dataset: Dataset, index: TileIndex, batches: Sequence[int], limiting: int | None
) -> list[SamplingFacts]:
    """The first epoch by each method, with the recipe's settings of it, at each batch size.

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
        found = plan(index.counts_NK, batch, rules, recipe.seed, 0, names=names, replicas=REPLICAS)
    except DatasetError as error:
        return SamplingFacts(batch, method, str(error))
    rows_SB = found.rows_SB
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
