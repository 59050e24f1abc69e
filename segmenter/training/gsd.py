"""Scale of a training: what it is trained for, and the lines that say what is shown and planned at which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segmenter.config.recipe import Recipe
from segmenter.config.sampling import SamplingConfig
from segmenter.grid.gsd import range_text
from segmenter.grid.scenes import Dataset
from segmenter.sampling import Plan, part_title
from segmenter.sampling.strata import tiles_of_parts
from segmenter.tiles.augmented_gsd import GroundScale
from segmenter.tiles.index import TileIndex
from segmenter.tiles.scene_gsd import scene_scales
from segmenter.tiles.store import SceneStore


def trained_scale(metres_S: Sequence[float | None], ground: GroundScale | None) -> float | None:
    """Return the metres a pixel that a model is trained for; None if unknown.

    The middle of what its scenes are shown at by `augmentation.scale_to`, else the median of their own.
    """
    if ground is not None:
        return ground.middle()
    scales = [metres for metres in metres_S if metres]
    return float(np.median(scales)) if scales else None


def describe_scales(recipe: Recipe, dataset: Dataset, index: TileIndex, store: SceneStore) -> list[str]:
    """Return lines on the scales that tiles are shown at, and on validation scenes of others.

    Raises:
        ConfigError: no scene can be shown at any of the asked scales.
    """
    ground = GroundScale.of(recipe, index, store)
    if ground is None:
        return []
    low, high = ground.ends()
    validation = scene_scales(dataset, dataset.of("validation"), progress=False)
    outside = [metres for metres in validation if metres and not 0.99 * low <= metres <= 1.01 * high]
    lines = ground.describe()
    if outside:
        lines.append(
            f"  {len(outside)} of {len(validation)} validation scenes are scored at their own scale, "
            f"{range_text(min(outside), max(outside))} a pixel, which the model is not trained for"
        )
    return lines


def describe_rare_parts(
    sampling: SamplingConfig, first: Plan, index: TileIndex, names: Sequence[str]
) -> list[str]:
    """Return a line on each class at a scale that the plan cannot promise."""
    if index.strata is None or not first.rare_parts:
        return []
    holds_NK = index.counts_NK >= sampling.min_pixels
    there_NP = tiles_of_parts(first.rare_parts, index.strata.number_N)
    held_P = (holds_NK[:, [part.class_id for part in first.rare_parts]] & there_NP).sum(axis=0)
    return [
        f"  best effort: {part_title(part, names, index.strata)}, held by {held} tiles, is too rare to be "
        "in every step"
        for part, held in zip(first.rare_parts, held_P, strict=True)
    ]
