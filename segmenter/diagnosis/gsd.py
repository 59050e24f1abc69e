"""Classes by strata of the scenes' scale: which class is there at which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from segmenter.config.recipe import Recipe
from segmenter.diagnosis.data import ScaleFacts
from segmenter.grid.gsd import OCTAVES, scene_strata
from segmenter.grid.scenes import Dataset
from segmenter.sampling import TileStrata
from segmenter.sampling.forecast import Outlook, forecast, holds
from segmenter.sampling.strata import part_table
from segmenter.tiles.gsd import scene_scales
from segmenter.tiles.index import TileIndex

__all__ = ["class_scales", "without_rounding"]

_PROBED = 32
"""Scenes that are looked at to see whether any scale is known: a header takes a millisecond."""


def class_scales(
    recipe: Recipe, dataset: Dataset, index: TileIndex, batches: Sequence[int], *, progress: bool = True
) -> ScaleFacts | None:
    """Tiles and pixels of each class in each stratum; None where the scales do not differ or are not known.

    The strata are the recipe's, else octaves.

    Raises:
        RasterError: an image's header cannot be read.
    """
    step = -(-len(index.scenes) // _PROBED)
    if not any(scene_scales(dataset, index.scenes[::step], progress=False)):
        return None
    boundaries = recipe.sampling.scale_strata
    found = scene_strata(scene_scales(dataset, index.scenes, progress=progress), boundaries or OCTAVES)
    if not found.differ:
        return None
    holds_NK = holds(index.counts_NK, recipe.sampling.min_pixels)
    number_N = found.number_S[index.scene_N]
    parts = part_table(index.counts_NK, TileStrata(number_N, found.titles), None)
    outlook = forecast(holds(parts.counts_NP, recipe.sampling.min_pixels), seed=recipe.seed)
    members = [number_N == t for t in range(len(found.titles))]
    return ScaleFacts(
        planned=bool(boundaries),
        strata=list(found.titles),
        scenes=np.bincount(found.number_S, minlength=len(found.titles)).tolist(),
        tiles=[int(member_N.sum()) for member_N in members],
        held=[holds_NK[member_N].sum(axis=0).tolist() for member_N in members],
        pixels=[index.counts_NK[member_N].sum(axis=0).tolist() for member_N in members],
        columns=len(outlook.classes),
        random=[without_rounding(one) for one in outlook.outlook(list(batches))],
    )


def without_rounding(one: Outlook) -> Outlook:
    """The rounding errors of the sum are no probability."""
    return replace(one, probability=round(one.probability, 12))
